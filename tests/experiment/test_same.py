"""same_result: real networks, correct changes and common mistakes."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import perfkit
from perfkit.base.errors import UsageError
from perfkit.experiment import setting
from perfkit.experiment.compare._judge import Judge
from perfkit.experiment.compare.same import same_result, tolerances
from perfkit.experiment.process._fingerprint import Fingerprint, Watch, _format_of, sketch
from perfkit.show import html
from tests.experiment._networks import NETWORKS, training

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def small_heap():
    """Names are looked for among all objects; those of other tests would take long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
def test_correct_changes_give_the_same_result(name: str, optimizer: str) -> None:
    start = training(name, optimizer=optimizer)
    changes = [{}, {"dtype": torch.float64}, {"autocast": torch.bfloat16}, {"compiled_names": True}]
    if name == "resnet":
        changes.append({"channels_last": True})
    else:
        changes.append({"parts": 4})  # no batch norm: accumulated gradients are the batch's
    for change in changes:
        found = same_result(start, training(name, optimizer=optimizer, **change))
        assert found.same is True, (change, found.sentence)
        assert found.precision == ("bf16" if "autocast" in change else "fp32")
        assert found.own_noise == 0, "these programs are deterministic"
        assert found.n_steps == 3
        assert len(found.losses) == 3
        assert not found.warnings, (change, found.warnings)


@pytest.mark.parametrize("name", NETWORKS)
def test_bf16_is_the_same_for_bf16_and_not_for_fp32(name: str) -> None:
    start, autocast = training(name), training(name, autocast=torch.bfloat16)
    assert same_result(start, autocast).same is True
    assert same_result(start, autocast, precision=torch.float32).same is False


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
def test_mistakes_are_seen(name: str, optimizer: str, precision: str | None) -> None:
    start = training(name, optimizer=optimizer)
    for mistake, what, step in (
        ({"zero_grad": False}, "norm of the gradient", 1),
        ({"seed": 5}, "starting weights", 0),
    ):
        found = same_result(
            start, training(name, optimizer=optimizer, **mistake), precision=precision
        )
        assert found.same is False, (mistake, found.sentence)
        assert found.first is not None
        assert found.first.what.startswith(what), (mistake, found.sentence)
        assert found.first.step == step
        assert found.first.difference > found.first.tolerance


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("name", ["transformer", "mlp"])
def test_a_missing_division_is_seen_in_the_gradient_although_the_loss_agrees(
    name: str, precision: str | None
) -> None:
    found = same_result(training(name), training(name, parts=4, divided=False), precision=precision)
    assert found.same is False
    assert found.first is not None
    assert (found.first.what, found.first.step) == ("norm of the gradient", 0)
    # four times as long is 300 % longer, as the sentence says it
    assert found.first.difference == pytest.approx(3.0, rel=0.05)
    assert found.losses[0].agrees
    assert "a different scale" in found.sentence


def test_a_broken_loss_is_seen_in_the_loss() -> None:
    found = same_result(training("resnet"), training("resnet", broken_loss=True))
    assert found.same is False
    assert found.first is not None
    assert (found.first.what, found.first.step) == ("loss", 0)


def test_one_parameter_that_gets_no_gradient_is_named() -> None:
    for precision in ("fp32", "bf16"):
        found = same_result(training("mlp"), training("mlp", detached=True), precision=precision)
        assert found.same is False
        assert found.first is not None
        assert found.first.what.endswith("gradient of 0.weight"), found.sentence
        assert found.first.difference == pytest.approx(1.0)


def test_random_augmentation_without_a_seed_cannot_be_told() -> None:
    for a, b, who in (
        (training(augmented=True), training(), "the first"),
        (training(), training(augmented=True), "the second"),
    ):
        found = same_result(a, b)
        assert found.same is None
        assert f"{who} does not agree with itself" in found.sentence
        assert "augmentation" in found.sentence
        assert found.own_noise is not None
        assert found.own_noise > 1


def test_a_loss_and_a_model_without_optimizer() -> None:
    def once(scale: float = 1.0):
        model = nn.Linear(8, 3)
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,)))
        (loss * scale).backward()
        return loss, model

    assert same_result(once, once).same is True
    found = same_result(once, lambda: once(2.0))
    assert found.same is False
    assert found.first is not None
    assert found.first.what == "norm of the gradient"

    def parameters():
        loss, model = once()
        return loss, model.parameters()

    assert same_result(once, parameters).same is True


@pytest.mark.parametrize(("shapes", "said"), [([(4, 3)], "1 layer;"), ([(4, 3)] * 2, "2 layers;")])
def test_the_rule_counts_the_layers(shapes: list[tuple[int, ...]], said: str) -> None:
    assert f"over {said}" in Judge("fp32", shapes).rule


def test_losses_alone_are_compared_and_it_is_said() -> None:
    found = same_result(lambda: [1.0, 0.5], lambda: [1.0, 0.5])
    assert found.same is True
    assert any("losses alone" in w for w in found.warnings)
    assert same_result(lambda: 1.0, lambda: 1.01).same is False
    assert same_result(lambda: 1.0, lambda: math.nan).same is False
    # two runs that have both overflowed cannot be compared
    assert same_result(lambda: math.inf, lambda: math.inf).same is None
    nothing = same_result(lambda: iter([None]), lambda: iter([None]))
    assert nothing.same is None
    assert "no loss" in nothing.sentence


def _unsteady_at(step: int, losses: list[float]) -> Callable[[], list[float]]:
    """A program whose loss at this step is a number in its first run only."""
    n_runs = itertools.count()

    def run() -> list[float]:
        told = losses.copy()
        if next(n_runs):
            told[step] = math.nan
        return told

    return run


@pytest.mark.parametrize(("step", "same"), [(1, None), (2, False)])
def test_a_difference_counts_where_the_program_still_agrees_with_itself(
    step: int, same: bool | None
) -> None:
    found = same_result(lambda: [1.0, 1.0, 1.0], _unsteady_at(step, [1.0, 2.0, 1.0]))
    assert found.same is same
    assert ("the second does not agree with itself" in found.sentence) is (same is None)
    assert "loss of step 2" in found.sentence


@pytest.mark.parametrize(("step", "told"), [(1, "for 1 step only"), (2, "for 2 steps only")])
def test_steps_are_compared_as_far_as_a_agrees_with_itself(step: int, told: str) -> None:
    found = same_result(_unsteady_at(step, [1.0, 1.0, 1.0]), lambda: [1.0, 1.0, 1.0])
    assert found.same is True
    assert any(told in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("losses", "told"),
    [([1.0], "the loss differs by at most"), ([1.0, 0.5], "the losses of 2 steps differ by")],
)
def test_what_agrees_is_counted(losses: list[float], told: str) -> None:
    assert told in same_result(lambda: losses, lambda: losses).sentence


def test_a_model_that_is_kept_between_calls_is_no_riddle() -> None:
    """Its gradients are cleared after each call; weights that keep training are reported."""
    model = nn.Linear(8, 3)
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))

    def once():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss, model

    assert same_result(once, once).same is True
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def trains():
        loss = once()[0]
        optimizer.step()
        return loss

    found = same_result(trains, trains)
    assert found.same is None
    assert "rebuild the model" in found.sentence


def test_the_callers_random_numbers_go_on_as_if_nothing_was() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    same_result(training(), training())
    after = random.random(), np.random.rand(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert after == (random.random(), np.random.rand(), float(torch.rand(())))


def test_what_cannot_be_compared_is_refused() -> None:
    for wrong in (3, "run", [], None):
        with pytest.raises(UsageError, match="same_result compares"):
            same_result(wrong, lambda: 1.0)
    with pytest.raises(UsageError, match="return the loss"):
        same_result(lambda: "loss", lambda: 1.0)
    with pytest.raises(UsageError, match="precision='int8'"):
        same_result(lambda: 1.0, lambda: 1.0, precision="int8")


def test_a_failing_program_leaves_no_hook_behind() -> None:
    def fails():
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        same_result(fails, fails)
    assert torch.autocast.__enter__.__module__.startswith("torch")


def test_tolerances_grow_with_depth_format_and_updates() -> None:
    shapes = [(64, 64)] * 10
    fp32, bf16 = (tolerances(p, shapes, 0) for p in ("fp32", "bf16"))
    assert fp32.loss < 1e-4 < 1e-2 < bf16.loss < 0.1
    assert tolerances("fp64", shapes, 0).loss < 1e-10
    assert tolerances("bf16", shapes * 4, 0).loss > bf16.loss
    later = tolerances("bf16", shapes, 1)
    assert later.direction is None, "in 16 bits nothing can be said of directions after an update"
    assert later.norm < math.log(1.4), "but a gradient that was added to another is longer"
    assert fp32.direction is not None


def test_projections_estimate_the_norm_of_a_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((1,), (7,), (33, 17), (4, 3, 5, 5), (70_001,), (600_000,)):
        ratios = []
        for _ in range(60 if math.prod(shape) < 1e4 else 6):
            a, b = torch.randn(2, *shape, generator=generator)
            one, other = sketch(a), sketch(b)
            square = np.mean(np.square(np.subtract(one.projections, other.projections)))
            ratios.append(square / float((a - b).norm()) ** 2)
            assert one.norm == pytest.approx(float(a.norm()), rel=1e-5)
        assert 0.3 < np.mean(ratios) < 3, shape
    x = torch.randn(16, 8, 3, 3)
    assert sketch(x) == sketch(x.contiguous(memory_format=torch.channels_last)), "logical order"
    assert sketch(x, 0.5).norm == pytest.approx(sketch(x).norm / 2)
    assert sketch(torch.empty(0)).norm == 0
    assert sketch(torch.randn(5, 3).to_sparse()).projections == ()


def test_watching_ends_with_its_steps_and_leaves_nothing() -> None:
    from torch.optim import optimizer as hooks

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    enter = torch.autocast.__enter__
    with Watch(2) as watch:
        for step in range(5):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            assert watch.after_step() is (step == 1)
            assert len(hooks._global_optimizer_pre_hooks) == (1 if step == 0 else 0)
        assert torch.autocast.__enter__ is enter
    found = watch.found()
    assert found is not None
    assert [s.step for s in found.steps] == [0, 1]
    assert found.names == ("weight", "bias")
    again = Fingerprint.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found


def test_a_fused_scaler_is_divided_out() -> None:
    model = nn.Linear(4, 2)

    class Scaled(torch.optim.SGD):
        """As torch.amp.GradScaler leaves an optimizer that unscales in its own kernel."""

        grad_scale = torch.tensor(4.0)

        def step(self, closure=None):
            return None

    model(torch.ones(1, 4)).sum().backward()
    with Watch(1) as watch:
        Scaled(model.parameters(), 0.1).step()
    found = watch.found()
    assert found is not None
    assert found.steps[0].gradients[1].norm == pytest.approx(math.sqrt(2) / 4)


@pytest.fixture
def matmul():
    """How matrix products of float32 are computed on a GPU, as torch 2.9 and newer set it."""
    found = torch.backends.cuda.matmul
    before = found.fp32_precision
    yield found
    found.fp32_precision = before


@pytest.mark.parametrize(("set_to", "told"), [("tf32", "tf32"), ("ieee", "fp32")])
def test_tf32_by_the_newer_setting_is_seen(matmul, set_to, told) -> None:
    """The older getter would refuse the question, and fp32 would be held to its own tolerance."""
    matmul.fp32_precision = set_to
    weight = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda"), dim=lambda: 2)
    assert _format_of(weight) == told


def test_a_step_that_a_cuda_graph_captures_is_not_read(monkeypatch) -> None:
    """Reading waits for the device, which would end the capture with an error."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    with Watch() as watch:
        torch.optim.SGD([weight], lr=0.1).step()
    assert watch.found() is None


def test_trouble_in_the_hook_does_not_reach_the_training(monkeypatch) -> None:
    from perfkit.experiment.process import _fingerprint

    def fails(*args):
        raise RuntimeError("no such layout")

    monkeypatch.setattr(_fingerprint, "sketch", fails)
    found = same_result(training(), training())
    assert found.same is True, "by the losses"
    assert any("no such layout" in w for w in found.warnings)


@pytest.mark.parametrize("wrong", [{}, {"names": 3}, {"names": ["w"], "steps": []}, []])
def test_a_fingerprint_from_elsewhere_is_refused(wrong) -> None:
    with pytest.raises(UsageError, match="not a fingerprint"):
        Fingerprint.from_dict(wrong)


@pytest.fixture(scope="module")
def runs():
    """Two runs of a correct workload and two that forget zero_grad, in processes of their own."""

    def workload(s):
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(8):
            x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))
            if s.zero:
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield {"loss": loss if s.tell else None, "samples": 32}

    known = [setting("zero", [True, False]), setting("tell", [True, False])]
    with perfkit.experiment.Session(workload, known, seconds=5, start_timeout_s=100) as session:
        made = {
            "right": [session.run(), session.run()],
            "wrong": [session.run(zero=False), session.run(zero=False)],
            "silent": [session.run(tell=False), session.run(tell=False)],
        }
    for arm in made.values():
        assert [run.state for run in arm] == ["done", "done"]
    return made


def test_a_loss_beyond_all_floats_is_no_loss() -> None:
    with pytest.raises(UsageError, match="a returned int"):
        same_result(lambda: 10**400, lambda: 1.0)
    assert same_result(lambda: [10**400, 1.0], lambda: [1.0, 1.0]).same is not True


def test_runs_carry_fingerprints_of_the_warm_up_alone(runs) -> None:
    run = runs["right"][0]
    assert run.gradients.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    watched = {s.step for s in run.gradients.steps}
    assert watched == {0, 1}
    assert not run.counted[sorted(watched)].any()
    assert len(json.dumps(run.gradients.to_dict())) < 5000
    assert run.to_dict()["gradients"] == run.gradients.to_dict()


def test_runs_are_compared(runs) -> None:
    right, wrong = runs["right"], runs["wrong"]
    same = same_result(right[:1], right[1:])
    assert same.same is True
    found = same_result(right, wrong)
    assert found.same is False
    assert found.first is not None
    assert (found.first.what, found.first.step) == ("norm of the gradient", 1)
    one = same_result(right[0], wrong[0])
    assert one.same is None, "each ran once: it may be the workload's own randomness"
    assert "second time" in one.sentence


def test_runs_without_a_loss_are_compared_by_gradients(runs) -> None:
    silent = runs["silent"]
    found = same_result(runs["right"], silent)
    assert found.same is True
    assert any("reported no loss" in w for w in found.warnings)
    bare = [dataclasses.replace(run, gradients=None) for run in silent]
    assert same_result(bare, bare).same is None


def test_other_batches_and_failed_runs_cannot_be_told(runs) -> None:
    right = runs["right"]
    half = [dataclasses.replace(r, samples_per_s=r.samples_per_s / 2) for r in right]
    found = same_result(right, half)
    assert found.same is None
    assert "samples" in found.sentence
    dead = dataclasses.replace(right[0], state="killed", message="killed (<SIGKILL>)")
    found = same_result(right, dead)
    assert found.same is None
    assert "<SIGKILL>" in found.sentence
    assert "<SIGKILL>" not in html(found)


@pytest.mark.parametrize(("times", "same"), [(1.009, True), (1.011, None)])
def test_a_last_batch_that_is_smaller_makes_no_other_batches(runs, times, same) -> None:
    """Samples a step are a mean: up to a hundredth more are those of the same batches."""
    more = [dataclasses.replace(r, samples_per_s=r.samples_per_s * times) for r in runs["right"]]
    assert same_result(runs["right"], more).same is same


def test_it_shows_itself(runs) -> None:
    found = same_result(runs["right"], runs["wrong"])
    assert "norm of the gradient" in str(found)
    assert max(map(len, str(found).splitlines())) <= 100
    assert "rounding explains" in html(found)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["same"] is False
