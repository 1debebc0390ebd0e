"""Callbacks for trainers, driven by small stand-ins of the trainers: no library is needed."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.integrations import TrainerRun
from perfkit.show.timing import phase_lines
from tests.left_running import n_optimizer_step_hooks

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 1

    def __call__(self) -> int:
        return self.ns

    def ms(self, passed: float) -> None:
        self.ns += round(passed * MS)


class Data(torch.utils.data.Dataset[torch.Tensor]):
    """Eight samples, each of which takes a while by the clock."""

    def __init__(self, clock: Clock, ms: float) -> None:
        self.clock, self.ms = clock, ms

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.ms(self.ms)
        return torch.zeros(4)


class Slow(nn.Module):
    """A model whose forward and backward take a while by the clock."""

    def __init__(self, clock: Clock, ms: float) -> None:
        super().__init__()
        self.clock, self.ms = clock, ms
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.ms(self.ms)
        out = self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.clock.ms(2 * self.ms))
        return out


class Loop:
    """Loader, model and optimizer under one clock."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.clock = Clock()
        self.loader = torch.utils.data.DataLoader(Data(self.clock, 1.0), batch_size=2)
        self.model = Slow(self.clock, 3.0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def backward(self, batch: torch.Tensor) -> None:
        self.model(batch).sum().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for batch in self.loader:
                self.model(batch)
                self.clock.ms(5)
        self.model.train()

    def save(self) -> None:
        class Slowly(io.BytesIO):
            def write(inner, data: Any) -> int:  # noqa: N805
                self.clock.ms(1)
                return super().write(data)

        torch.save({"x": 1}, Slowly())


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    before = n_optimizer_step_hooks(), torch.save, torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    yield
    assert n_optimizer_step_hooks() == before[0]
    assert torch.save is before[1]
    assert torch.autograd._engine_run_backward is before[2]  # type: ignore[attr-defined]
    assert not torch_module._global_forward_pre_hooks
    assert not torch_module._global_forward_hooks


def shares(run: TrainerRun) -> dict[str, float]:
    return {one.name: round(1e3 * one.seconds, 3) for one in run.summary.phases}


def test_every_phase_of_a_run_has_its_time(loop: Loop) -> None:
    run = TrainerRun(live=False, now=loop.clock)
    run.begin("made")
    for _ in range(3):
        for batch in loop.loader:
            loop.backward(batch)
            loop.step()
            run.step()
        loop.evaluate()
        loop.save()
    run.end("finished")
    found = shares(run)
    assert found["data_wait"] == 3 * 8
    assert found["forward"] == 12 * 3
    assert found["backward"] == 12 * 6
    assert found["evaluation"] == 3 * (8 + 4 * 3 + 4 * 5)
    assert found["checkpoint"] >= 3
    assert found["other"] == 0
    assert run.summary.n_steps == 12
    assert run.summary.n_epochs == 3
    # neither evaluation nor the checkpoint is part of a step
    assert run.summary.step is not None
    assert run.summary.step.median == pytest.approx(11)
    assert run.summary.wait_share == pytest.approx(2 / 11)
    assert run.summary.wall_s == pytest.approx(sum(found.values()) / 1e3)
    assert not run.summary.warnings


def test_a_short_phase_is_named_too(loop: Loop) -> None:
    """A fused optimizer's step took less than 0.5 %, and the run seemed to have had none."""
    loop.optimizer.register_step_post_hook(lambda *_: loop.clock.ms(0.001))
    run = TrainerRun(live=False, now=loop.clock)
    run.begin("made")
    for batch in loop.loader:
        loop.backward(batch)
        loop.step()
        run.step()
    run.end("finished")
    (line,) = phase_lines(run.summary)
    assert ", optimizer < 0.1 %" in line
    # of what has not run, nothing is said
    assert "checkpoint" not in line
    assert "other" not in line


def _trained(loop: Loop, mark: Any) -> TrainerRun:
    run = TrainerRun(live=False, now=loop.clock, mark=mark)
    run.begin("made")
    for _ in range(20):
        for batch in loop.loader:
            loop.backward(batch)
            loop.step()
            run.step()
    run.end("finished")
    return run


def test_a_busy_machine_is_the_verdict(loop: Loop) -> None:
    class Loaded:
        def until_now(self) -> CpuContention:
            return CpuContention(10.0, 2, 8.0, waited_s=7.5, others_s=17.0)

    summary = _trained(loop, Loaded).summary
    assert summary.sentence.startswith("The machine was busy: other programs used 1.7 of 2 cores")
    assert "ata-bound" not in summary.sentence
    assert summary.to_dict()["busy"]["is_busy"]


def test_a_look_at_the_machine_that_fails_costs_only_itself(loop: Loop) -> None:
    class Broken:
        def until_now(self) -> CpuContention:
            raise OSError("no /proc")

    def raises() -> Any:
        raise OSError("no /proc")

    for mark in (Broken, raises):
        summary = _trained(loop, mark).summary
        assert summary.n_steps == 80
        assert "the look at the machine failed" in " ".join(summary.warnings)


def test_gradient_accumulation_makes_one_step_of_several_batches(loop: Loop) -> None:
    run = TrainerRun(live=False, now=loop.clock)
    run.begin("made")
    for _ in range(4):
        for n, batch in enumerate(loop.loader, 1):
            loop.backward(batch)
            if n % 2 == 0:
                loop.step()
                run.step()
    run.end("finished")
    assert run.summary.n_steps == 8
    assert run.summary.step is not None
    assert run.summary.step.median == pytest.approx(2 * (2 + 3 + 6))
    assert run.summary.samples_per_s == pytest.approx(1e3 * 4 / 22)


def test_what_the_trainer_calls_evaluation_is_evaluation(loop: Loop) -> None:
    for retroactive in (False, True):
        run = TrainerRun(live=False, now=loop.clock)
        run.begin("made")
        for batch in loop.loader:
            loop.backward(batch)
            loop.step()
            run.step()
        if not retroactive:
            run.evaluation_begins()
        for batch in loop.loader:
            with torch.no_grad():
                loop.model(batch)  # in training mode: no hook could tell
        loop.clock.ms(10)
        if retroactive:
            run.was_evaluation()
        else:
            run.evaluation_ends()
        run.end("finished")
        assert shares(run)["evaluation"] == 8 + 12 + 10
        assert shares(run)["forward"] == 12


def test_the_log_gets_numbers_with_their_units(loop: Loop) -> None:
    logged: list[dict[str, float]] = []
    run = TrainerRun(live=False, log=logged.append, now=loop.clock)
    run.begin("made")
    for _ in range(3):
        for batch in loop.loader:
            loop.backward(batch)
            loop.clock.ms(90)
            loop.step()
            run.step()
    run.end("finished")
    # steps of 101 ms: at most every half second, and at the end what is left
    assert [m["step"] for m in logged] == [1, 6, 11, 12]
    last = logged[1]
    assert last["step_ms"] == pytest.approx(101)
    assert (last["data_wait_ms"], last["forward_ms"]) == pytest.approx((2, 3))
    assert (last["backward_ms"], last["other_ms"]) == pytest.approx((6, 90))
    assert last["samples_per_s"] == pytest.approx(1e3 * 2 / 101)
    assert last["memory_bytes"] > 0
    assert not {"evaluation_ms", "checkpoint_ms"} & last.keys()


def test_a_log_that_raises_is_left_out_and_told(loop: Loop) -> None:
    def log(_: dict[str, float]) -> None:
        raise ConnectionError("no server")

    run = TrainerRun(live=False, log=log, now=loop.clock)
    run.begin("made")
    for batch in loop.loader:
        loop.backward(batch)
        loop.step()
        run.step()
    run.end("finished")
    assert run.summary.n_steps == 4
    assert "no server" in " ".join(run.summary.warnings)


def test_a_run_that_nobody_ended_ends_with_the_next(loop: Loop) -> None:
    run = TrainerRun(live=False, now=loop.clock)
    run.begin("first")
    for batch in loop.loader:
        loop.backward(batch)
        loop.step()
        run.step()
    run.begin("second")
    assert run.is_running
    run.end("finished")
    assert run.summary.name == "second"
    assert run.summary.n_steps == 0


class Observer:
    """Notes what a run tells about itself."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def begin(self, run: TrainerRun) -> None:
        self.seen.append(("begins in epoch", run.epochs))

    def update(self, update: Any) -> None:
        self.seen.append(("updates", None))

    def end(self, summary: Any) -> None:
        self.seen.append(("ends", summary.ended))


def test_what_shows_a_run_is_told_of_it(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    observer, logged = Observer(), []
    monkeypatch.setattr("perfkit.integrations.trainer_run.verdict_observer", lambda _: observer)
    run = TrainerRun(log=logged.append, now=loop.clock)
    run.begin("first")
    for _ in range(2):
        for batch in loop.loader:
            loop.backward(batch)
            loop.step()
            run.step()
    run.end("finished")
    run.step()  # of a trainer that goes on: no step of this run
    assert run.n_steps == run.summary.n_steps == 8
    n_logged = len(logged)
    run.begin("second")
    run.end("raised ValueError")
    told = [one for one in observer.seen if one[0] != "updates"]
    assert told == [
        ("begins in epoch", 1),
        ("ends", "finished"),
        ("begins in epoch", 1),  # it waits for its first batch, too
        ("ends", "raised ValueError"),
    ]
    assert ("updates", None) in observer.seen
    assert len(logged) == n_logged  # of no step nothing is logged
    assert not run.summary.warnings


def test_a_cell_that_ends_ends_the_runs_of_which_nobody_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    events = SimpleNamespace(
        register=lambda name, call: calls.append((name, call)),
        unregister=lambda name, call: calls.remove((name, call)),
    )
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(events=events))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    first, second = TrainerRun(live=False), TrainerRun(live=False)
    first.begin("first")
    assert len(calls) == 1
    second.begin("second")
    first.end("finished")
    ((name, cell_ends),) = calls
    assert name == "post_run_cell"
    cell_ends(None)
    assert second.summary.ended == "ended early"
    assert not calls


@pytest.mark.parametrize("shows", [False, True])
def test_the_recorded_steps_are_shown_where_the_run_is(
    shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = SimpleNamespace(start=lambda: None, stop=lambda: None, recording="recorded")
    monkeypatch.setattr("perfkit.trace.record.record.Recorder", lambda **_: recorder)
    monkeypatch.setattr("perfkit.advice.profile.explain", lambda recording: f"{recording} steps")
    shown: list[object] = []
    monkeypatch.setattr("perfkit.integrations.trainer_run._show", shown.append)
    observer = Observer() if shows else None
    monkeypatch.setattr("perfkit.integrations.trainer_run.verdict_observer", lambda _: observer)
    run = TrainerRun(profile=True)
    run.begin("made")
    run.end("finished")
    assert run.profile == "recorded steps"
    assert shown == ["recorded steps"] * shows


def test_a_step_makes_few_calls() -> None:
    """Code that has left the caches costs microseconds a call: each one counts."""
    run = TrainerRun(live=False, log=lambda metrics: None)
    run.begin("calls")
    calls: list[str] = []

    def seen(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    try:
        for _ in range(3):
            run.step()  # the first one updates
        sys.setprofile(seen)
        run.step()
    finally:
        sys.setprofile(None)
        run.end("finished")
    assert "update_wrapper" not in calls  # the guard is made once, not in each step
    assert len(calls) <= 23, calls


def test_wrong_use_is_told_at_once() -> None:
    with pytest.raises(UsageError, match="function of one dict"):
        TrainerRun(log="wandb")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Jupyter kernel"):
        TrainerRun(live=True)
    run = TrainerRun(live=False)
    run.step()  # before it has begun: nothing
    with pytest.raises(MeasurementError, match="no training run has ended"):
        _ = run.summary
    with pytest.raises(MeasurementError, match="profile=True"):
        _ = run.profile


def test_it_travels_to_another_process_without_its_run(loop: Loop) -> None:
    run = TrainerRun(live=False, profile=True)
    run.begin("made")
    other = pickle.loads(pickle.dumps(run))
    run.end("finished")
    assert not other.is_running


# --- the callbacks, with stand-ins ------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules with the base classes of the callbacks; the callbacks are imported over them."""

    def fake(name: str, **things: Any) -> None:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(things)
        monkeypatch.setitem(sys.modules, name, made)

    class Callback:
        pass

    fake("lightning")
    fake("lightning.pytorch")
    fake("lightning.pytorch.callbacks", Callback=Callback)
    fake("transformers", TrainerCallback=Callback)
    homes = [f"perfkit.integrations.{x}" for x in ("lightning", "hugging_face", "accelerate")]
    for home in homes:
        monkeypatch.delitem(sys.modules, home, raising=False)
    yield SimpleNamespace(
        LightningWatch=importlib.import_module(homes[0]).LightningWatch,
        TrainerWatch=importlib.import_module(homes[1]).TrainerWatch,
        AccelerateWatch=importlib.import_module(homes[2]).AccelerateWatch,
    )
    for home in homes:
        sys.modules.pop(home, None)


def test_lightning_counts_steps_by_global_step(stand_ins: Any, loop: Loop) -> None:
    watch = stand_ins.LightningWatch(live=False)
    trainer = SimpleNamespace(global_step=40, is_global_zero=True, should_stop=False)
    watch.on_train_start(trainer, loop.model)  # resumed at step 40
    for n, batch in enumerate(loop.loader, 1):
        loop.backward(batch)
        if n % 2 == 0:
            loop.step()
            trainer.global_step += 2  # two optimizers
        watch.on_train_batch_end(trainer, loop.model, None, batch, n)
    watch.on_validation_start(trainer, loop.model)
    loop.evaluate()
    watch.on_validation_end(trainer, loop.model)
    watch.on_train_end(trainer, loop.model)
    watch.teardown(trainer, loop.model, "fit")
    assert watch.summary.n_steps == 2
    assert watch.summary.name == "Slow"
    assert watch.summary.ended == "finished"
    assert {p.name: p.seconds for p in watch.summary.phases}["evaluation"] > 0


def test_lightning_says_how_it_ended(stand_ins: Any, loop: Loop) -> None:
    trainer = SimpleNamespace(global_step=40, is_global_zero=True, should_stop=True)
    watch = stand_ins.LightningWatch(live=False)
    watch.on_train_start(trainer, loop.model)  # resumed
    for _ in range(3):
        trainer.global_step += 2  # two optimizers
        watch.on_train_batch_end(trainer, loop.model)
    watch.on_train_end(trainer, loop.model)
    assert (watch.summary.n_steps, watch.summary.ended) == (3, "was stopped after 3 steps")
    for error, words in ((KeyboardInterrupt(), "interrupted"), (KeyError(), "raised KeyError")):
        watch.on_train_start(trainer, loop.model)
        watch.on_exception(trainer, loop.model, error)
        assert watch.summary.ended == words


def test_hugging_face_counts_optimizer_steps(stand_ins: Any, loop: Loop) -> None:
    watch = stand_ins.TrainerWatch(live=False)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=8)
    watch.on_train_begin(None, state, None, model=loop.model)
    for _ in range(2):
        for batch in loop.loader:
            loop.backward(batch)
            loop.step()
            state.global_step += 1
            watch.on_step_end(None, state, None)
        loop.evaluate()
        watch.on_evaluate(None, state, None)
    watch.on_train_end(None, state, None)
    assert watch.summary.n_steps == 8
    assert watch.summary.ended == "finished"
    assert {p.name: p.seconds for p in watch.summary.phases}["evaluation"] > 0


def test_hugging_face_says_that_it_was_stopped(stand_ins: Any) -> None:
    watch = stand_ins.TrainerWatch(live=False)
    state = SimpleNamespace(is_world_process_zero=False, global_step=40, max_steps=80)
    watch.on_train_begin(None, state, None)  # resumed
    for _ in range(2):
        state.global_step += 1
        watch.on_step_end(None, state, None)
    watch.on_train_end(None, state, None)
    assert (watch.summary.n_steps, watch.summary.ended) == (2, "was stopped after 2 steps")
    state.max_steps = state.global_step
    watch.on_train_begin(None, state, None)
    watch.on_train_end(None, state, None)
    assert watch.summary.ended == "finished"


def test_accelerate_steps_when_the_first_optimizer_does(stand_ins: Any, loop: Loop) -> None:
    other = torch.optim.SGD(loop.model.parameters(), 0.1)
    accelerator = SimpleNamespace(is_main_process=True)
    with stand_ins.AccelerateWatch(accelerator, live=False) as watch:
        for n, batch in enumerate(loop.loader, 1):
            loop.backward(batch)
            if n % 2 == 0:
                loop.step()
                other.step()
    assert watch.summary.n_steps == 2
    with (
        pytest.raises(ValueError, match="theirs"),
        stand_ins.AccelerateWatch(accelerator, live=False) as watch,
    ):
        raise ValueError("theirs")
    assert watch.summary.ended == "raised ValueError"
    with pytest.raises(UsageError, match="Accelerator, got int"):
        stand_ins.AccelerateWatch(3)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import perfkit.integrations as integrations

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "perfkit.integrations.hugging_face", raising=False)
    monkeypatch.delitem(vars(integrations), "TrainerWatch", raising=False)
    with pytest.raises(MissingError, match=r"needs transformers.*\[integrations\]"):
        _ = integrations.TrainerWatch
    with pytest.raises(AttributeError, match="Keras"):
        _ = integrations.Keras
    assert "LightningWatch" in dir(integrations)
