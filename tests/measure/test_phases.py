"""Phases of a run, by a made clock."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from perfkit.base import torch_compat
from perfkit.measure.phases import PHASES, Phases
from perfkit.measure.tracker import StepTracker
from tests.left_running import n_optimizer_step_hooks

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 1

    def __call__(self) -> int:
        return self.ns

    def ms(self, passed: float) -> None:
        self.ns += round(passed * MS)


class Slow(nn.Module):
    def __init__(self, clock: Clock, ms: float = 1.0) -> None:
        super().__init__()
        self.clock, self.ms = clock, ms
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.ms(self.ms)
        out = self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.clock.ms(2 * self.ms))
        return out


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def phases(clock: Clock) -> Iterator[Phases]:
    save = torch.save
    made = Phases(clock)
    made.start()
    yield made
    made.stop()
    assert made.failure is None
    assert n_optimizer_step_hooks() == 0
    assert not torch_module._global_forward_pre_hooks
    assert torch.save is save


def taken(phases: Phases) -> dict[str, float]:
    return {name: ns / MS for name, ns in zip(PHASES, phases.take(), strict=True) if ns}


X = torch.zeros(2, 4)


def test_a_step_by_hand(phases: Phases, clock: Clock) -> None:
    model = Slow(clock, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: clock.ms(4))
    phases.take()
    loss = model(X).sum()
    clock.ms(5)
    loss.backward()
    optimizer.step()
    assert taken(phases) == {"forward": 3, "backward": 6, "other": 5, "optimizer": 4}


def test_an_optimizer_that_steps_in_the_backward_pass_has_its_own_time(
    phases: Phases, clock: Clock
) -> None:
    """One for each weight, which steps as its gradient comes, was all backward."""
    model = Slow(clock, 3)
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], 0.1)
        optimizer.register_step_pre_hook(lambda *_: clock.ms(4))
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    phases.take()
    for _ in range(2):
        model(X).sum().backward()
        assert taken(phases) == {"forward": 3, "backward": 6, "optimizer": 8}


def test_a_closure_runs_in_its_own_phases(phases: Phases, clock: Clock) -> None:
    model = Slow(clock, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(X + 1).square().sum()
        loss.backward()
        return loss

    phases.take()
    optimizer.step(closure)
    assert taken(phases) == {"forward": 3, "backward": 6}


@pytest.mark.parametrize("n_batches", [1, 2])
def test_an_evaluation_that_forgot_eval_is_one(
    phases: Phases, clock: Clock, n_batches: int
) -> None:
    model = Slow(clock, 1)
    own, other = (torch.utils.data.DataLoader(torch.zeros(n, 4)) for n in (3, n_batches))
    phases.take()
    told = []
    for x in own:
        model(x).sum().backward()
        with torch.no_grad():
            for y in other:
                model(y)
        told.append(taken(phases))
    phases.stop()
    told.append(taken(phases))
    assert sum(one.get("evaluation", 0) for one in told) == 3 * n_batches
    assert sum(one["forward"] for one in told if "forward" in one) == 3


def test_a_teacher_without_gradients_belongs_to_the_step(phases: Phases, clock: Clock) -> None:
    teacher, model = Slow(clock, 7).eval(), Slow(clock, 1)
    loader = torch.utils.data.DataLoader([0, 1, 2, 3], batch_size=2)
    phases.take()
    for _ in loader:
        with torch.no_grad():
            teacher(X)
        model(X).sum().backward()
    assert taken(phases) == {"forward": 16, "backward": 4}


def test_training_in_evaluation_mode_is_training(phases: Phases, clock: Clock) -> None:
    model = Slow(clock, 1).eval()  # as with frozen batch norm
    loader = torch.utils.data.DataLoader([0, 1, 2, 3], batch_size=2)
    phases.take()
    for _ in loader:
        model(X).sum().backward()
    assert taken(phases) == {"forward": 2, "backward": 4}


def test_evaluation_without_a_loader(phases: Phases, clock: Clock) -> None:
    model = Slow(clock, 1)
    model(X).sum().backward()
    phases.take()
    model.eval()
    with torch.no_grad():
        for _ in range(10):
            model(X)
            clock.ms(1)
    model.train()
    model(X).sum().backward()
    assert taken(phases) == {"evaluation": 20, "forward": 1, "backward": 2}


def test_two_passes_of_the_trained_model_after_each_step_are_evaluation(
    phases: Phases, clock: Clock
) -> None:
    """A graph network is one batch: its example tests with two passes after each step."""
    model = Slow(clock, 1)
    criterion = nn.MSELoss()  # a module, too
    for _ in range(2):
        criterion(model(X), X).backward()
        phases.take()
        model.eval()
        with torch.no_grad():
            model(X)
            model(X)
        model.train()
    model(X).sum().backward()
    assert taken(phases) == {"evaluation": 2, "forward": 1, "backward": 2}


@pytest.mark.parametrize("loss", ["a function", "a module"])
def test_a_look_at_the_trained_model_that_keeps_gradients_is_evaluation(
    loss: str, phases: Phases, clock: Clock
) -> None:
    """Graph networks often leave no_grad out: half of their steps was forward."""
    model = Slow(clock, 1)
    criterion = nn.MSELoss() if loss == "a module" else nn.functional.mse_loss
    for _ in range(2):
        model.train()
        criterion(model(X), X).backward()
        phases.take()
        model.eval()
        criterion(model(X), X)
        clock.ms(3)
    model.train()
    criterion(model(X), X).backward()
    assert taken(phases) == {"evaluation": 4, "forward": 1, "backward": 2}


def test_a_model_that_goes_on_to_train_in_evaluation_mode_is_no_evaluation(
    phases: Phases, clock: Clock
) -> None:
    """Its test has left it in that mode, or an adversarial example is made in it."""
    model, criterion = Slow(clock, 1), nn.MSELoss()
    criterion(model(X), X).backward()
    model.eval()
    for _ in range(2):
        phases.take()
        criterion(model(X), X).backward()
        assert taken(phases) == {"forward": 1, "backward": 2}
    model.train()
    criterion(model(X), X).backward()
    assert taken(phases) == {"forward": 1, "backward": 2}


def test_labels_that_a_model_makes_for_its_own_training_are_forward(
    phases: Phases, clock: Clock
) -> None:
    model = Slow(clock, 1)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader([X], batch_size=None):
            model.eval()
            with torch.no_grad():
                labels = model(batch)
            model.train()
            (model(batch) - labels).sum().backward()
            assert taken(phases) == {"forward": 2, "backward": 2}


def test_frozen_parts_in_evaluation_mode_are_forward_however_many_there_are(
    phases: Phases, clock: Clock
) -> None:
    """As the encoders of text and of pictures, while the network between them trains."""
    parts, model = [Slow(clock, 1).eval() for _ in range(5)], Slow(clock, 1)
    with torch.no_grad():
        encoded = [part(X) for part in parts]
    model(sum(encoded)).sum().backward()
    assert taken(phases) == {"forward": 6, "backward": 2}


@pytest.mark.parametrize("gradients", [True, False])
def test_a_frozen_network_is_forward_however_often_it_is_called_before_the_step(
    gradients: bool, phases: Phases, clock: Clock
) -> None:
    """As the features of five crops: from the fourth call on, all of it was evaluation."""
    frozen = Slow(clock, 1).eval().requires_grad_(requires_grad=False)
    model = Slow(clock, 1)
    loader = torch.utils.data.DataLoader([0, 1], batch_size=1)
    phases.take()
    for _ in loader:
        with torch.set_grad_enabled(gradients):
            seen = [frozen(X) for _ in range(5)]
        clock.ms(1)
        model(sum(seen)).sum().backward()
        assert taken(phases) == {"forward": 6, "other": 1, "backward": 2}


def test_a_network_that_is_the_loss_is_forward_however_often_it_is_called(
    phases: Phases, clock: Clock
) -> None:
    """As a perceptual loss at several scales; its targets, without gradients, come after, too."""
    model, judge = Slow(clock, 1), Slow(clock, 1).eval().requires_grad_(requires_grad=False)
    for _ in range(2):
        made = model(X)
        loss = torch.zeros(())
        for _ in range(5):
            clock.ms(1)
            with torch.no_grad():
                target = judge(X)
            loss = loss + (judge(made) - target).square().sum()
        loss.backward()
        # a backward pass of 1 + 5 forward passes that keep a graph
        assert taken(phases) == {"forward": 11, "other": 5, "backward": 12}


def test_modules_that_are_gone_are_forgotten(phases: Phases) -> None:
    """Who makes a new loss for each step makes a million in a long run."""
    model = nn.Linear(4, 4)
    for _ in range(50):
        nn.MSELoss()(model(X), X).backward()
    gc.collect()
    assert set(phases._trained) == {model}


def test_modules_in_one_place_after_each_other_are_not_one_that_is_evaluated(
    phases: Phases, clock: Clock
) -> None:
    model = Slow(clock, 1)
    ids = set()
    with torch.no_grad():
        for _ in range(8):
            part = Slow(clock, 1).eval()
            ids.add(id(part))
            part(X)
            del part
    model(X).sum().backward()
    assert len(ids) < 8  # else this shows nothing
    assert taken(phases) == {"forward": 9, "backward": 2}


def test_an_episode_played_without_gradients_is_no_evaluation(phases: Phases, clock: Clock) -> None:
    """As PPO plays: the policy stays in training mode, and the game is between its passes."""
    model = Slow(clock, 1)
    phases.take()
    with torch.no_grad():
        for _ in range(10):
            model(X)
            clock.ms(3)
    model(X).sum().backward()
    assert taken(phases) == {"forward": 11, "other": 30, "backward": 2}


def test_transforms_that_are_modules_are_data_wait(phases: Phases, clock: Clock) -> None:
    """Of 50 samples a batch, they made each step one of many loose modules."""
    transform, model = Slow(clock, 1), Slow(clock, 1)

    class Data(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> torch.Tensor:
            return transform(X).detach()

    phases.take()
    for _ in torch.utils.data.DataLoader(Data(), batch_size=50):
        model(X).sum().backward()
        assert taken(phases) == {"data_wait": 50, "forward": 1, "backward": 2}
    assert phases.sees_modules


def test_the_wait_for_a_batch_that_is_evaluated_is_evaluation(clock: Clock) -> None:
    class Data(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            clock.ms(5)
            return index

    phases, model = Phases(clock), Slow(clock, 1)
    loader = torch.utils.data.DataLoader(Data(), batch_size=1)
    phases.start()
    for _ in loader:
        with torch.no_grad():
            model(X)
    next(iter(loader))
    model(X).sum().backward()
    assert taken(phases) == {"evaluation": 12, "data_wait": 5, "forward": 1, "backward": 2}
    phases.stop()


def test_what_raises_in_a_forward_pass_passes_and_leaves_no_hook(
    phases: Phases, clock: Clock
) -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clock.ms(2)
            raise LookupError("theirs")

    bad = Bad()
    phases.take()
    with pytest.raises(LookupError, match="theirs"):
        bad(X)
    Slow(clock, 3)(X).sum().backward()
    assert not bad._forward_hooks
    assert taken(phases)["backward"] == 6


def test_an_optimizer_that_raises_leaves_nothing_open(phases: Phases, clock: Clock) -> None:
    class Bad(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise LookupError("theirs")

    model = Slow(clock, 3)
    phases.take()
    with pytest.raises(LookupError):
        Bad(model.parameters(), 0.1).step()
    phases.take()
    clock.ms(3)
    assert taken(phases) == {"other": 3}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_hooks_are_in_no_copy_and_no_checkpoint(phases: Phases, clock: Clock) -> None:
    model = nn.Linear(4, 4)
    model(X)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not other._forward_hooks
        assert not other._forward_pre_hooks
    torch.save(model, io.BytesIO())
    torch.jit.script(model)(X)


@pytest.mark.filterwarnings("ignore")  # torch's, of saving without a process group
def test_a_distributed_checkpoint_is_a_checkpoint(
    phases: Phases, clock: Clock, tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    class State:
        def state_dict(self) -> dict[str, Any]:
            clock.ms(5)  # what its caller waits for
            return {"x": torch.ones(3)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    phases.take()
    clock.ms(2)
    checkpoint.save({"of": State()}, checkpoint_id=tmp_path / "now")
    assert taken(phases) == {"checkpoint": 5, "other": 2}
    writing = checkpoint.async_save({"of": State()}, checkpoint_id=tmp_path / "later")
    clock.ms(3)
    writing.result()
    assert taken(phases) == {"checkpoint": 5, "other": 3}


@pytest.mark.slow
def test_a_distributed_checkpoint_is_seen_if_it_is_imported_later() -> None:
    """In a program of its own: nobody knows what has imported it in this one."""
    program = """
import sys
import torch
from perfkit.measure.phases import Phases

phases = Phases()
phases.start()
assert "torch.distributed.checkpoint" not in sys.modules
from torch.distributed.checkpoint import async_save, save, state_dict_saver
import torch.distributed.checkpoint as dcp

assert save is not state_dict_saver.save
assert async_save is not state_dict_saver.async_save
phases.stop()
assert dcp.save is state_dict_saver.save
assert dcp.async_save is state_dict_saver.async_save
print("seen")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "seen\n", done.stderr


def test_another_thread_is_not_counted(phases: Phases, clock: Clock) -> None:
    model = Slow(clock, 3)
    phases.take()
    thread = threading.Thread(target=lambda: model(X).sum().backward())
    thread.start()
    thread.join()
    assert taken(phases) == {"other": 9}


def test_many_calls_of_a_long_step_are_told_apart(phases: Phases, clock: Clock) -> None:
    """LBFGS calls its closure 20 times a step; forward was counted as optimizer from then on."""
    model, criterion = Slow(clock, 30), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        for _ in range(25):
            loss = criterion(model(X + 1), torch.zeros(1).expand_as(model(X + 1)))
        loss.backward()
        return loss

    phases.take()
    for _ in range(2):
        optimizer.step(closure)
        assert taken(phases)["forward"] == 25 * 2 * 30
    assert phases.sees_modules
    assert phases.doubt == ""
    assert phases.told((1, 2, 3, 4, 5, 6, 7)) == (1, 2, 3, 4, 5, 6, 7)


def test_a_step_of_many_loose_modules_gives_up_on_them(phases: Phases, clock: Clock) -> None:
    layers = [nn.Linear(4, 4) for _ in range(50)]
    phases.take()
    for layer in layers:
        layer(X)
    phases.take()
    assert not phases.sees_modules
    assert "a step of this code calls many modules by themselves" in phases.doubt
    # what is known of the steps before is no share of the run
    assert phases.told((1, 2, 3, 4, 5, 6, 7)) == (1, 0, 3, 4, 0, 6, 14)
    assert not torch_module._global_forward_pre_hooks


@pytest.mark.parametrize(
    ("n_calls", "step_ms", "gives_up"),
    [
        (40, 0.0, False),
        (41, 0.0, True),
        (50, 199.0, True),  # 50 calls of 80 µs are 4 ms: more than 2 % of the step
        (50, 201.0, False),
        (100, 399.0, True),
        (100, 401.0, False),
    ],
)
def test_modules_are_told_apart_where_that_costs_a_fiftieth_of_the_step_at_most(
    n_calls: int, step_ms: float, gives_up: bool, phases: Phases, clock: Clock
) -> None:
    layer = nn.ReLU()
    phases.take()
    for _ in range(n_calls):
        layer(X)
    clock.ms(step_ms)
    phases.take()
    assert phases.sees_modules is not gives_up


def test_a_network_that_trains_twenty_times_in_one_step_keeps_its_forward_passes(
    phases: Phases, clock: Clock
) -> None:
    """A GAN whose generator has its turn: "a step of this code calls 60 modules" was said of 3."""
    model = Slow(clock, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases.take()
    for _ in range(20):
        for _ in range(3):
            model(X).sum().backward()
        optimizer.step()
    assert taken(phases) == {"forward": 60, "backward": 120}
    assert phases.sees_modules


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_forward_pass_of_a_scripted_module_is_forward(phases: Phases, clock: Clock) -> None:
    model = torch.jit.script(nn.Linear(4, 4))
    phases.take()
    handle = torch_module.register_module_forward_hook(lambda *_: clock.ms(5))
    try:
        loss = model(X).sum()
    finally:
        handle.remove()
    clock.ms(1)
    loss.backward()
    assert taken(phases) == {"forward": 5, "other": 1}
    assert not model._forward_hooks


def test_a_trace_by_torch_jit_is_left_alone(phases: Phases) -> None:
    """There a size is a tensor, and to read its number warns."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.jit.trace(nn.ReLU(), X)
    assert not [one for one in said if one.category is torch.jit.TracerWarning]


def test_it_fails_quietly(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(Phases, "_opens", lambda *_: 1 / 0)
    phases = Phases(clock)
    phases.start()
    Slow(clock)(X).sum().backward()
    assert phases.failure is not None
    assert "ZeroDivisionError" in phases.failure.sentence()
    assert not torch_module._global_forward_pre_hooks
    phases.stop()
    assert n_optimizer_step_hooks() == 0


def test_it_may_fail_in_the_middle_of_the_optimizer_hooks(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    phases = Phases(clock)
    monkeypatch.setattr(Phases, "_trains", lambda *_: 1 / 0)
    phases.start()
    model = nn.Linear(4, 4)
    torch.optim.SGD(model.parameters(), 0.1).step()  # torch loops over the hooks
    assert phases.failure is not None
    phases.stop()
    assert n_optimizer_step_hooks() == 0


def test_two_at_once_end_in_any_order(clock: Clock) -> None:
    original = torch.save
    first, second = Phases(clock), Phases(clock)
    first.start()
    second.start()
    model = Slow(clock, 3)
    loader = torch.utils.data.DataLoader([0, 1], batch_size=1)
    first.take()
    second.take()
    for _ in loader:
        model(X).sum().backward()
    assert taken(first)["backward"] == taken(second)["backward"] == 12
    first.stop()
    model(X).sum().backward()
    assert taken(second)["backward"] == 6
    second.stop()
    assert torch.save is original
    assert n_optimizer_step_hooks() == 0


@pytest.mark.slow
def test_compiled_code_is_neither_warned_of_nor_compiled_again(clock: Clock) -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = torch.compile(plain, backend=backend, fullgraph=True)

    @torch.compile(backend=backend, fullgraph=True)  # type: ignore[untyped-decorator]
    def step(x: torch.Tensor) -> torch.Tensor:
        return plain(x).sum()  # type: ignore[no-any-return]

    phases = Phases(clock)
    phases.start()
    with warnings.catch_warnings(), ExitStack() as at_the_end:
        at_the_end.callback(phases.stop)
        warnings.simplefilter("error")
        for _ in range(3):
            model(X).sum().backward()
            step(X).backward()
            phases.take()
    assert phases.failure is None
    assert len(graphs) == 2


def test_a_run_without_a_loader_does_not_say_that_it_waits_little(clock: Clock) -> None:
    run = StepTracker(now=clock)
    run.start()
    for _ in range(12):
        began = clock()
        clock.ms(10)
        run.step_ended(began, clock())
    run.stop()
    sentence = run.summary("made", "finished", 0.12).sentence
    assert "how long the steps wait for data is not known" in sentence
    assert "bound" not in sentence


def test_a_run_says_that_its_forward_passes_are_not_told_apart(clock: Clock) -> None:
    """Forward was shown with the time of the first steps alone, and nothing said so."""
    layers = [nn.Linear(4, 4) for _ in range(50)]
    run = StepTracker(now=clock)
    run.start()
    for _ in range(6):
        began = clock()
        for layer in layers:
            layer(X)
        clock.ms(10)
        run.step_ended(began, clock())
    run.stop()
    summary = run.summary("made", "finished", 0.06)
    assert any("forward passes are not told apart" in words for words in summary.warnings)
    assert {phase.name: phase.seconds for phase in summary.phases}["forward"] == 0


def test_an_evaluation_leaves_forward_in_the_run(phases: Phases, clock: Clock) -> None:
    """100 batches of it within one step were a step of 100 loose modules."""
    model = Slow(clock, 1)
    loader = torch.utils.data.DataLoader(list(range(100)), batch_size=1)
    phases.take()
    model(X).sum().backward()
    model.eval()
    for _ in loader:
        model(X)
    model.train()
    for _ in torch.utils.data.DataLoader([0]):
        model(X).sum().backward()
    assert taken(phases) == {"forward": 2, "backward": 4, "evaluation": 100}
    assert phases.sees_modules
    model(X).sum().backward()
    assert taken(phases) == {"forward": 1, "backward": 2}


def test_an_evaluation_after_the_last_step_leaves_forward_in_the_run(clock: Clock) -> None:
    model = Slow(clock, 1)
    run = StepTracker(now=clock)
    run.start()
    for _ in range(3):
        began = clock()
        model(X).sum().backward()
        run.step_ended(began, clock())
    for _ in torch.utils.data.DataLoader(list(range(100)), batch_size=1):
        model.eval()(X)
    run.stop()
    assert run.phases.doubt == ""
    summary = run.summary("made", "finished", 0.2)
    ms = {phase.name: 1e3 * phase.seconds for phase in summary.phases}
    assert (ms["forward"], ms["evaluation"]) == pytest.approx((3, 100))


def test_calls_after_the_last_step_say_nothing_of_the_steps(clock: Clock) -> None:
    """There is no step that could be slowed: the hooks are gone when their number is read."""
    layers = [nn.Linear(4, 4) for _ in range(50)]
    run = StepTracker(now=clock)
    run.start()
    began = clock()
    Slow(clock, 1)(X).sum().backward()
    run.step_ended(began, clock())
    for layer in layers:
        layer(X)
    run.stop()
    assert run.phases.doubt == ""


def test_forward_is_seen_after_compiled_code_in_an_evaluation(phases: Phases, clock: Clock) -> None:
    """The hook of modules stayed away until the next compiled call outside of an evaluation."""
    model = Slow(clock, 3)
    phases.take()
    phases.begin("evaluation")
    ended = torch_compat._compiled_listeners._calls.begin(model)  # as a compiled module begins
    assert ended is not None
    assert not torch_module._global_forward_pre_hooks  # of which it would warn
    clock.ms(5)
    ended(None)
    phases.end()
    model(X).sum().backward()
    assert taken(phases) == {"evaluation": 5, "forward": 3, "backward": 6}


def test_compiled_code_within_a_module_leaves_the_hook_away(phases: Phases, clock: Clock) -> None:
    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ended = torch_compat._compiled_listeners._calls.begin(self)
            if ended is not None:
                ended(None)
            assert not torch_module._global_forward_pre_hooks  # those inside run at full speed
            clock.ms(2)
            return x

    phases.take()
    Around()(X)
    assert torch_module._global_forward_pre_hooks
    assert taken(phases) == {"forward": 2}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (torch_compat, "watch_backward"),
        (torch_compat, "watch_saves"),
        (torch_compat, "watch_compiled_modules"),
        (torch_optimizer, "register_optimizer_step_pre_hook"),
        (torch_optimizer, "register_optimizer_step_post_hook"),
    ],
)
def test_what_fails_at_the_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    def places() -> list[Any]:
        return [
            torch.autograd._engine_run_backward,
            torch.save,
            torch.utils.data.DataLoader.__iter__,
            torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
            dict(torch_module._global_forward_pre_hooks),
            n_optimizer_step_hooks(),
            list(sys.meta_path),
        ]

    before = places()
    monkeypatch.setattr(module, name, lambda *_: 1 / 0)
    phases = Phases()
    phases.start()
    assert places() == before
    assert not phases.is_on
    assert phases.failure is not None
    assert "ZeroDivisionError" in phases.failure.sentence()


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("theirs")


def test_a_model_whose_forward_raised_can_be_copied(phases: Phases) -> None:
    """Our hook is still on it in the user's ``except``, and held a lock: no copy, no pickle."""
    model = Raises()
    with pytest.raises(LookupError):
        model(X)
    pickled = pickle.dumps(model)
    assert b"perfkit" not in pickled  # whoever loads it may not have it
    for other in (copy.deepcopy(model), pickle.loads(pickled)):
        assert not any(isinstance(hook, Phases) for hook in other._forward_hooks.values())
        other.forward = lambda x: x + 1
        assert torch.equal(other(X), X + 1)  # nothing of it changes the result


def test_a_model_whose_forward_raised_is_saved_without_our_hook(
    phases: Phases, clock: Clock
) -> None:
    model, file = Raises(), io.BytesIO()
    phases.take()
    with pytest.raises(LookupError):
        model(X)
    torch.save(model, file)
    assert not model._forward_hooks
    file.seek(0)
    assert not torch.load(file, weights_only=False)._forward_hooks
    Slow(clock, 3)(X).sum().backward()
    assert taken(phases) == {"forward": 3, "backward": 6}


def test_a_module_that_saves_in_its_forward_pass_is_still_in_it(
    phases: Phases, clock: Clock
) -> None:
    class Saves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Slow(clock, 2)

        def forward(self, x: torch.Tensor) -> Any:
            torch.save(x, io.BytesIO())
            clock.ms(3)
            return self.inner(x)

    phases.take()
    Saves()(X).sum().backward()
    assert taken(phases) == {"forward": 5, "backward": 4}


def test_a_policy_whose_parts_train_plays_in_its_step(phases: Phases, clock: Clock) -> None:
    """As stable-baselines3 plays: its policy is in evaluation mode, one observation a pass."""
    part = Slow(clock, 1)
    policy = Policy(part)
    for _ in range(2):  # before the first step, and after one
        phases.take()
        policy.eval()
        with torch.no_grad():
            for _ in range(10):
                policy(X[:1])
                clock.ms(3)
        policy.train()
        part(X.repeat(8, 1)).sum().backward()
        assert taken(phases) == {"forward": 11, "other": 30, "backward": 2}


def test_samples_of_a_generator_are_evaluation_and_what_trains_next_is_not(
    phases: Phases, clock: Clock
) -> None:
    generator, judge = Slow(clock, 1), Slow(clock, 2)
    generator(X).sum().backward()
    phases.take()
    with torch.no_grad():
        generator.eval()(X)
    judge(X).sum().backward()
    assert taken(phases) == {"evaluation": 1, "forward": 2, "backward": 4}


class Policy(nn.Module):
    """Its parts train, it does not: what trains calls them by themselves."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.part(seen)
