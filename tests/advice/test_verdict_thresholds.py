"""What a verdict says a little above and a little below each of its thresholds, of made shares."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_traces import SINGLE, Simulated, cpu_training

from perfkit.advice.case import Case
from perfkit.advice.cost import _here, step_elsewhere
from perfkit.advice.diagnose import (
    _Bound,
    _bound,
    _sentence,
    _waiting,
    diagnose,
)
from perfkit.advice.outside import outside
from perfkit.base.errors import UsageError
from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.base.machine.gpu_state import GpuReading, GpuThrottling
from perfkit.base.machine.throttling import HostThrottling
from perfkit.measure.summary import summarize
from perfkit.trace import breakdown, find_steps, load
from perfkit.trace.ask.breakdown import HOST_CLASSES
from perfkit.trace.ask.idle import IDLE_CAUSES, Sitting
from perfkit.trace.ask.typical import _of_another_kind
from perfkit.trace.read.intervals import EMPTY, span
from perfkit.trace.record.elsewhere import Elsewhere, Stretch


@pytest.mark.parametrize(
    ("bound", "waiting", "said"),
    [
        (_Bound("host", "host", 0.6, 0.3), (0.7, 0.0), "Waiting: 60 % of each step is outside of"),
        (_Bound("host", "host", 0.5, 0.3), (0.5, 0.0), "Waiting: 50 % of each step is outside of"),
        (_Bound("host", "host", 0.4, 0.3), (0.7, 0.0), "Partly waiting: 40 % of each step is"),
        (_Bound("host", "host", 0.6, 0.3), (0.4, 0.0), "Host-bound: 60 % of each step is Python"),
        (_Bound("data", "data", 0.6, 0.3), (0.9, 0.0), "Data-bound: 60 % of each step waits for"),
        (_Bound("data", "data", 0.5, 0.3), (0.0, 0.0), "Data-bound: 50 % of each step waits for"),
        (_Bound("data", "data", 0.49, 0.3), (0.0, 0.0), "Partly data-bound: 49 % of each step"),
    ],
)
def test_a_part_bounds_the_step_from_its_half_on(
    bound: _Bound, waiting: tuple[float, float], said: str
) -> None:
    case: Any = SimpleNamespace(
        on_device=False,
        has_host=True,
        has_operators=True,
        driver=("", 0.0),
        joins_launches=True,
        unseen_device="",
        knows_of_python=True,
        is_file=False,
        waiting=waiting,
        compiling=None,
        set_up=_set_up(None),
        capturing=None,
        share_of=lambda parts: 0.0,
        idle_in=lambda parts: 0.0,
    )
    assert _sentence(bound, case).startswith(said)


def _set_up(first: Any) -> Any:
    """Only first calls."""
    longest = (("aten::conv2d", 50.0),)
    return SimpleNamespace(first=first, searching="searching", parts=first, longest=longest)


def _steps(*kinds: tuple[int, float]) -> Any:
    return [SimpleNamespace(n_fetches=n, wall_ns=ms * 1e6) for n, ms in kinds]


@pytest.mark.parametrize(
    ("steps", "others"),
    [
        ([], []),
        ([(1, 1.0)] * 5 + [(3, 2.0)], [5]),
        ([(1, 1.0)] * 5 + [(2, 2.0)], []),  # one more batch ends an epoch
        ([(1, 1.0)] * 5 + [(3, 1.5)], []),  # not clearly longer
        ([(1, 1.0)] * 4 + [(3, 2.0)] * 2, [4, 5]),  # a third is still the exception
        ([(1, 1.0)] * 3 + [(3, 2.0)] * 2, []),
        ([(1, 1.0), (1, 1.4)] * 2 + [(3, 2.0)] * 2, [4, 5]),  # longer than the others are
        ([(0, 1.0)] * 5 + [(3, 2.0)], []),  # training reads no loader
        ([(2, 1.0)] * 5 + [(4, 2.0)], [5]),
    ],
)
def test_a_step_of_another_kind_reads_two_batches_more_and_is_longer(
    steps: list[tuple[int, float]], others: list[int]
) -> None:
    assert _of_another_kind(_steps(*steps)) == others


class Opened:
    """Eleven operators of 100 µs that take 1, 2 … 11 times their lower bound here."""

    def __init__(self, **falls: Any) -> None:
        usual = {"floor_ms": 0.1, "working_above_ms": 1.0, "step_ms": 1.1, "host_ms": 0.0}
        self.falls = SimpleNamespace(**{"workers_set_the_pace": False} | usual | falls)

    def ask(self, name: str, **options: Any) -> Any:
        if name == "waterfall":
            return self.falls
        faster = 2 if options else 1
        ops = [SimpleNamespace(measured_us=100.0, least_us=100 / n / faster) for n in range(1, 12)]
        return SimpleNamespace(
            ops=ops, is_known=True, n_steps=1, on_device=True, kind="predicted", device="H200",
            recorded_on="", least_us=1.0,
        )  # fmt: skip


def test_doubts_of_a_prediction_are_those_of_the_recorded_device() -> None:
    assert step_elsewhere(Opened(), "H200").doubts == ()  # type: ignore[arg-type]

    class OnACpu(Opened):
        def ask(self, name: str, **options: Any) -> Any:
            found = super().ask(name, **options)
            found.on_device = False
            found.kind = "predicted" if options else "measured here"
            return found

    doubts = step_elsewhere(OnACpu(), "H200").doubts  # type: ignore[arg-type]
    assert [one[:22] for one in doubts] == ["recorded on a CPU: wha", "rates of the recorded "]


def test_nothing_is_predicted_of_operators_that_are_not_counted() -> None:
    class Uncounted(Opened):
        def ask(self, name: str, **options: Any) -> Any:
            found = super().ask(name, **options)
            if name == "limit":
                found.ops = [SimpleNamespace(measured_us=100.0, least_us=None)]
            return found

    with pytest.raises(UsageError, match="no operator was counted"):
        step_elsewhere(Uncounted(), "H200")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ({"kind": "measured here", "recorded_on": "NVIDIA H200"}, "H200"),
        ({"kind": "measured here", "recorded_on": "an unknown card"}, None),
        ({"kind": "predicted", "recorded_on": "NVIDIA H200"}, None),
        ({"kind": "measured here", "on_device": False, "recorded_on": "NVIDIA H200"}, None),
    ],
)
def test_data_sheets_are_divided_by_data_sheets(known: dict[str, Any], asked: str | None) -> None:
    usual = {"on_device": True} | known
    opened: Any = SimpleNamespace(ask=lambda name, **options: SimpleNamespace(**usual, **options))
    assert getattr(_here(opened), "device", None) == asked


def test_another_device_is_predicted_from_the_closest_and_the_farthest_tenth() -> None:
    found = step_elsewhere(Opened(), "H200")  # type: ignore[arg-type]
    least_ms = sum(0.05 / n for n in range(1, 12))
    assert found.ms == pytest.approx(0.55)
    assert found.low_ms == pytest.approx(min(2 * least_ms, 0.55))
    assert found.high_ms == pytest.approx(10 * least_ms)
    assert found.share_kept == 0


def test_without_the_profiler_a_gpu_computes_as_long_and_a_cpu_less() -> None:
    found = step_elsewhere(Opened(), "H200", step_ms=0.55)  # type: ignore[arg-type]
    assert found.ms == pytest.approx(0.55)

    class OnACpu(Opened):
        def ask(self, name: str, **options: Any) -> Any:
            found = super().ask(name, **options)
            found.on_device = False
            return found

    floor = step_elsewhere(Opened(host_ms=9.0), "H200", step_ms=0.7)  # type: ignore[arg-type]
    assert floor.ms == pytest.approx(0.7)
    on_cpu = step_elsewhere(OnACpu(), "H200", step_ms=0.55)  # type: ignore[arg-type]
    assert on_cpu.ms == pytest.approx(0.275)


@pytest.mark.parametrize(
    ("falls", "ms"),
    [
        ({}, 0.55),
        ({"step_ms": 2.0}, 0.55 + 0.9),  # what is not the device's stays
        ({"host_ms": 0.7}, 0.7),  # and the host's own work is a floor
        ({"workers_set_the_pace": True}, 1.1),
        ({"host_ms": 9.0}, 1.1),
    ],
)
def test_what_is_not_the_devices_stays_as_recorded(falls: dict[str, Any], ms: float) -> None:
    assert step_elsewhere(Opened(**falls), "H200").ms == pytest.approx(ms)  # type: ignore[arg-type]


def _case(shares: dict[str, float], idle: dict[str, float], device: dict[str, float]) -> Any:
    """A case whose host classes, idle causes and device classes have these shares."""
    host = dict.fromkeys(HOST_CLASSES, 0.0) | shares
    causes = dict.fromkeys(IDLE_CAUSES, 0.0) | idle
    return SimpleNamespace(
        on_device=bool(device),
        shares=host,
        idle=causes,
        device_shares={"compute": 0.0, "copy": 0.0, "communication": 0.0, "idle": 0.0} | device,
        capturing=EMPTY,
        set_up=_set_up(EMPTY),
        driver=("", 0.0),
        share_of=lambda parts: 0.0,
        idle_in=lambda parts: 0.0,
    )


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({"data wait": 0.5, "forward": 0.5}, _Bound("data", "data", 0.5, 0.5)),
        ({"data wait": 0.49, "forward": 0.51}, _Bound("compute", "data", 0.49, 0.51)),
        ({"data wait": 0.2, "backward": 0.8}, _Bound("compute", "data", 0.2, 0.8)),
        ({"data wait": 0.19, "optimizer": 0.81}, _Bound("compute", "compute", 0.81, 0.81)),
        ({"other": 0.6, "data wait": 0.4}, _Bound("host", "host", 0.6, 0.0)),
        (
            {"communication": 0.6, "forward": 0.4},
            _Bound("communication", "communication", 0.6, 0.4),
        ),
    ],
)
def test_on_a_cpu_the_largest_part_bounds_the_step(shares: dict[str, float], bound: _Bound) -> None:
    assert _bound(_case(shares, {}, {})) == bound


@pytest.mark.parametrize(
    ("idle", "device", "bound"),
    [
        ({"launch": 0.2, "data": 0.1}, {"compute": 0.7}, _Bound("launch", "launch", 0.2, 0.7)),
        ({"launch": 0.19}, {"compute": 0.7}, _Bound("compute", "compute", 0.7, 0.7)),
        ({"launch": 0.19}, {"compute": 0.3, "copy": 0.4}, _Bound("copy", "copy", 0.4, 0.3)),
        ({"kernels": 0.1, "queued": 0.1}, {"compute": 0.7}, _Bound("gaps", "gaps", 0.2, 0.7)),
        (
            {"communication": 0.1, "driver": 0.15},
            {"compute": 0.6, "communication": 0.1},
            _Bound("communication", "communication", 0.2, 0.6),
        ),
        ({"sync": 0.3, "copy": 0.31}, {"compute": 0.3}, _Bound("copy", "copy", 0.31, 0.3)),
    ],
)
def test_on_a_device_a_loss_bounds_the_step_from_a_fifth_on(
    idle: dict[str, float], device: dict[str, float], bound: _Bound
) -> None:
    found = _bound(_case({}, idle, device))
    assert (found.bound_by, found.part) == (bound.bound_by, bound.part)
    assert (found.share, found.work) == pytest.approx((bound.share, bound.work))


def _first_calls(*own_us: float, op: str = "aten::conv2d", within: str = "") -> tuple[str, ...]:
    """The operators that count as start-up: one call in each step, and a kernel of it."""
    sim = Simulated()
    for number, us in enumerate(own_us):
        at = number * 1e6
        sim.step(number, at, 1e6)
        if within:
            sim.host(within, at + 5, us + 10)
        sim.host(op, at + 10, us)
        launch = sim.call("cudaLaunchKernel", at + 20 + us, 2)
        sim.device("gemm", at + 30 + us, 100, launch)
    trace = load(sim.json())
    steps = find_steps(trace)
    return tuple(name for name, _ in Case(trace, steps, breakdown(trace, steps)).set_up.longest)


@pytest.mark.parametrize(
    ("own_ms", "is_first"),
    [
        ([900, 80, 80], True),  # less than a tenth later
        ([900, 100, 80], False),
        ([900, 120, 5, 5], True),  # one long call among many short ones
        ([900, 120, 5], False),
        ([900, 120], False),
        ([900, 120, 20, 20], False),
        ([100, 1, 1], False),  # under a twentieth of the steps
        ([900, 1], True),
        ([900], False),  # no later call, and no allocation
    ],
)
def test_a_first_call_is_start_up_where_later_ones_are_short(
    own_ms: list[float], is_first: bool
) -> None:
    assert _first_calls(*(1e3 * ms for ms in own_ms)) == ("aten::conv2d",) * is_first


def test_a_single_allocation_is_start_up() -> None:
    assert _first_calls(9e5, op="aten::empty_strided") == ("aten::empty_strided",)
    assert _first_calls(1e3, 9e5, op="aten::empty_strided") == ()


def test_start_up_is_told_of_the_operator_that_does_it() -> None:
    """Whoever calls it only waits."""
    assert _first_calls(9e5, 1e3, within="aten::linear") == ("aten::conv2d",)


@pytest.mark.parametrize(
    ("call_us", "before_us", "is_first"),
    [
        ([1_400, 14, 12, 11], 0, True),
        ([1_400, 141, 12, 11], 0, False),  # over a tenth later
        ([14, 1_400, 12, 11], 0, False),  # not the first
        ([1_400], 0, False),  # nothing to compare it with
        ([1_400, 14, 12, 11], 800, False),  # the device works: the queue may be full
        ([1_400, 14, 12, 11], 600, True),
    ],
)
def test_a_first_launch_is_start_up_also_without_operators(
    call_us: list[float], before_us: float, is_first: bool
) -> None:
    sim = Simulated()
    if before_us:
        sim.device("gemm", 0, before_us, 99)
    at = 0.0
    for number, us in enumerate(call_us):
        launch = sim.call("cudaLaunchKernel", at, us)
        sim.call("cuLaunchKernel", at + 1, us - 2)  # the same launch, in the driver
        sim.device("gemm", at + (us - 1 if number == 0 else 10), 5, launch)
        at += us + 60
    found = tuple(name for name, _ in _made(sim).set_up.longest)
    assert found == ("cudaLaunchKernel",) * is_first


def _made(sim: Simulated) -> Case:
    trace = load(sim.json())
    steps = find_steps(trace)
    return Case(trace, steps, breakdown(trace, steps))


def test_the_longest_call_of_the_driver_is_one_within_the_steps() -> None:
    sim = Simulated()
    for number in range(2):
        at = number * 20_000
        sim.step(number, at, 10_000)
        for name, start, us in (
            ("cudaMalloc", 100, 1_500), ("cudaFree", 2_000, 1_200),
            ("cudaLaunchKernel", 4_000, 3_000), ("cudaHostAlloc", 11_000, 8_000),
        ):  # fmt: skip
            sim.call(name, at + start, us)
    assert _made(sim).driver[0] == "cudaMalloc"


def test_shares_of_typical_steps_leave_the_others_out() -> None:
    sim, at = Simulated(), 0.0
    for number in range(6):
        n = 10 if number == 5 else 1  # an evaluation in the last one
        sim.step(number, at, 1_000 * n)
        for k in range(n):
            sim.label(SINGLE, at + 1_000 * k, 100)
            sim.host("aten::conv2d", at + 1_000 * k + 100, 900)
        at += 1_000 * n
    case = _made(sim)
    assert case.typical.indices == (0, 1, 2, 3, 4)
    first = span(case.trace, case.trace.named(lambda name: name == "aten::conv2d"))
    kept = type(first)(first.start[:1], first.end[:1])
    assert case.share_of(kept) == pytest.approx(0.9 / 15)


@pytest.mark.parametrize(
    ("sat", "said"),
    [
        (None, "the host waits, or has just waited, for it"),
        (Sitting("cudaFree", 1, 9.0, 0.9, 0, 0.9), "the host sat in cudaFree for 9.00 ms"),
        (Sitting("cudaFree", 1, 9.0, 9.0, 0, 1.0), "it sat in cudaFree for 9.00 ms, and the trace"),
    ],
)
def test_a_wait_names_the_call_that_the_host_sat_in(sat: Any, said: str) -> None:
    found = _waiting(SimpleNamespace(sitting=lambda cause: sat), "30 %")  # type: ignore[arg-type]
    assert said in found
    assert ("sat in" in found) == (sat is not None)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("x = f(y)", "# look at what this line does each time"),
        ("evaluate(model)", "with torch.inference_mode():"),
        ("torch.save(model, path)", "# less often, and only what a restart needs"),
        ("torch.save(activation, path)", "if n % 500 == 0:  # rarely"),
        ("x = torch.load(path)", "# read ahead in a DataLoader's workers"),
        ("time.sleep(3)", "# the step sleeps"),
    ],
)
def test_time_outside_of_the_steps_is_a_finding(source: str, advice: str) -> None:
    stretch = Stretch("after the last step", 6.0, 0, "a.py:3", source)
    known = Elsewhere(8.0, 1.0, (stretch,))
    (found,) = outside(known)
    assert found.what_to_do.startswith(advice)
    assert found.gain_at_most == pytest.approx(4.0)
    assert found.line == f"a.py:3: {source}"
    assert outside(None) == []
    assert outside(Elsewhere(800.0, 1.0, (stretch,))) == []


@pytest.mark.parametrize("phases", [(("evaluation", 0.9),), ()])
def test_long_steps_that_evaluate_are_called_so_in_headline_and_finding(phases: Any) -> None:
    """As their code says, where no phase does, too; a policy that plays is none."""
    when, at = "in steps 61 and 121", ("t.py:30", "right = evaluate(model, loader)")
    told = Stretch(when, 6.0, 2, *at, numbers=(61, 121), phases=phases)
    assert Elsewhere(8.0, 1.0, (told,)).headline() == (
        "75 % of the time is evaluation in steps 61 and 121."
    )
    (found,) = outside(Elsewhere(8.0, 1.0, (told,)))
    assert found.title == "75 % of the time is spent in steps 61 and 121: evaluation"
    assert found.what_to_do.startswith("# less often")
    # where phases are known, one that keeps graphs is told by itself
    assert ("inference_mode" in found.what_to_do) is (not phases)
    after = dataclasses.replace(told, when="after the last step", numbers=(), below="t.py:9: run()")
    (found,) = outside(Elsewhere(8.0, 1.0, (after,)))
    assert found.title.endswith(": evaluation")
    assert ("inference_mode" in found.what_to_do) is (not phases)
    assert found.line == "t.py:9: run()"  # the call that is to be made less often
    # the first step runs the same line, and evaluates nothing
    first = dataclasses.replace(told, when="before the first step ended", numbers=(1,), phases=())
    both = [f.title for f in outside(Elsewhere(20.0, 1.0, (after, first)))]
    assert both[0] == "30 % of the time is spent after the last step: evaluation"
    plays = dataclasses.replace(told, source="action = policy(state)")
    assert Elsewhere(8.0, 1.0, (plays,)).headline() == "75 % of the time is in steps 61 and 121."


@pytest.mark.parametrize(
    ("source", "inside"),
    [
        ("ok = self.collect_rollouts(self.env, buffer, n_steps)", ""),
        ("action, value = agent(state)", "state, reward, done, info = envs.step(action.numpy())"),
    ],
)
def test_rollouts_between_updates_are_no_evaluation(source: str, inside: str) -> None:
    """They were told so, and to be made less often; training needs each of them."""
    others = (("t.py:40", inside, 0.4),) * bool(inside)
    told = Stretch(
        "in every 16th step", 6.0, 9, "t.py:30", source, numbers=(17, 33), inside=others,
        phases=(("evaluation", 0.9),),
    )  # fmt: skip
    (found,) = outside(Elsewhere(8.0, 1.0, (told,)))
    assert found.title == "75 % of the time is spent in every 16th step: rollouts"
    assert "SyncVectorEnv" in found.what_to_do
    assert found.changes
    made = dataclasses.replace(told, when="before the first step ended", numbers=(1,), phases=())
    (found,) = outside(Elsewhere(8.0, 1.0, (made,)))
    assert "rollouts" not in found.title  # that makes environments, perhaps
    checks = dataclasses.replace(told, source="evaluate(policy, envs)")
    (found,) = outside(Elsewhere(8.0, 1.0, (checks,)))
    assert found.title.endswith(": evaluation")


@pytest.mark.parametrize(("numbers", "n"), [((1, 11), 500), ((2, 502, 1002), 2000), ((), 500)])
def test_less_often_is_less_often_than_it_is(numbers: tuple[int, ...], n: int) -> None:
    told = Stretch("in some steps", 6.0, 9, "t.py:30", "evaluate(model)", numbers=numbers)
    (found,) = outside(Elsewhere(8.0, 1.0, (told,)))
    assert (f"if step % {n} == 0:" in found.what_to_do) is bool(numbers)


def test_time_outside_of_the_steps_is_told_by_the_line_and_library_that_it_goes_to() -> None:
    """``model(x)`` after training: its weights are made out of parameters at each call."""
    inside = (("a.py:23", "x = self.layer(x)", 0.9),)
    stretch = Stretch(
        "after the last step", 6.0, 0, "a.py:55", "y = model(x)", inside=inside,
        mostly="forward (torch/nn/utils/parametrizations.py)", phases=(("evaluation", 1.0),),
    )  # fmt: skip
    (found,) = outside(Elsewhere(8.0, 1.0, (stretch,)))
    assert "cached()" in found.what_to_do
    assert found.line == "a.py:23: x = self.layer(x)"


@pytest.mark.parametrize(
    ("mostly", "is_told"),
    [
        ("kaiming_uniform_ (torch/nn/init.py)", False),
        ("reset_parameters (torch/nn/modules/conv.py)", False),
        ("forward (torch/nn/modules/linear.py)", True),
        ("read_csv (pandas/io/parsers/readers.py)", True),
    ],
)
def test_first_weights_that_are_drawn_are_nothing_to_keep_in_a_file(
    mostly: str, is_told: bool
) -> None:
    when = "before the first step ended"
    made = Stretch(when, 2.0, 1, "net.py:19", "nn.Conv2d(n, m, 3)", numbers=(1,), mostly=mostly)
    assert bool(outside(Elsewhere(8.0, 1.0, (made,)))) is is_told


def _by_class(labels: Any, n: int) -> list[int]:
    """A loop that the rule finds by its variable, here in this file."""
    return [int((labels == category).sum()) for category in range(n)]


@pytest.mark.parametrize(("compared", "is_loop"), [("category", True), ("prediction", False)])
def test_a_loop_over_classes_is_told_as_one_pass(
    compared: str, is_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.base.source._MOST_FILES", sys.maxsize)  # tests import many
    assert _by_class(np.array([1, 1, 0]), 2) == [1, 2]
    inside = (("a.py:38", f"t = labels == {compared}", 0.5),)
    at = ("a.py:64", "metric.update(prediction, y)")
    told = Stretch("after the last step", 6.0, 0, *at, inside=inside, phases=(("evaluation", 1.0),))
    (found,) = outside(Elsewhere(8.0, 1.0, (told,)))
    assert (found.title == "Each class goes through the whole tensor anew") is is_loop
    assert ("torch.bincount" in found.what_to_do) is is_loop
    labels, predictions, n_classes = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]), 3
    names = {"torch": torch, "labels": labels, "predictions": predictions, "n_classes": n_classes}
    if is_loop:
        exec(found.what_to_do, names)
        assert names["both"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("gpu", "major"),
    [
        ({"name": "NVIDIA A100", "computeMajor": 8, "warpSize": 32}, 8),
        ({"name": "AMD Instinct MI300X", "computeMajor": 9, "warpSize": 32}, 0),
        ({"name": "a card", "computeMajor": 9, "warpSize": 64}, 0),
        ({"name": "NVIDIA A100", "computeMajor": "8"}, 0),
        ({}, 0),
    ],
)
def test_a_compute_capability_is_an_nvidia_gpus(gpu: dict[str, Any], major: int) -> None:
    for devices in ([gpu], [gpu, {"computeMajor": 3}]):
        whole = json.loads(cpu_training(1).json()) | {"deviceProperties": devices}
        trace = load(json.dumps(whole).encode())
        case = Case(trace, None, None)  # type: ignore[arg-type]
        assert case.nvidia_major == major


@pytest.mark.parametrize("devices", [None, [], {}, [3], "text", {"name": "a card"}, 3])
def test_a_trace_that_names_no_device_has_no_gpu(devices: object) -> None:
    whole = json.loads(cpu_training(1).json()) | {"deviceProperties": devices}
    trace = load(json.dumps(whole).encode())
    assert Case(trace, None, None).nvidia_major == 0  # type: ignore[arg-type]


BUSY = CpuContention(wall_s=10.0, n_cores=2, process_s=5.0, waited_s=6.0, others_s=12.0)
CALM = CpuContention(wall_s=10.0, n_cores=2, process_s=5.0)
OUTSIDE = Elsewhere(10.0, 3.0, (Stretch("what ran after the last step", 9.0, 0),))
PARTLY_OUTSIDE = Elsewhere(10.0, 3.0, (Stretch("what ran after the last step", 3.0, 0),))


@pytest.mark.parametrize(
    ("known", "first", "what", "no_cure"),
    [
        ({}, [], "Data-bound: 70 % of each step waits for the DataLoader (median", False),
        ({"busy": CALM}, [], "Data-bound: 70 % of each step", False),
        (
            {"no_step": "None was found.", "is_piece": True}, ["None was found."],
            "That piece: data-bound: 70 % of that time waits for the DataLoader (", False,
        ),
        (
            {"elsewhere": OUTSIDE}, ["Most of this code's time (90 %"],
            "The recorded steps: data-bound: 70 %", False,
        ),
        ({"elsewhere": PARTLY_OUTSIDE}, [], "Data-bound: 70 % of each step", False),
    ],
)  # fmt: skip
def test_what_is_said_before_the_verdict(
    known: dict[str, Any], first: list[str], what: str, no_cure: bool
) -> None:
    case = _made(cpu_training(6, wait=2_000, python=20, loader=SINGLE))
    found = diagnose(case, summarize(case.breakdown.wall_ms), "simulated", **known)
    assert [one[: len(told)] for one, told in zip(found.first, first, strict=True)] == first
    part = "1 / (1 - 0.30)" if known.get("elsewhere") is PARTLY_OUTSIDE else "0.90 of the time"
    assert found.sentence.startswith(what)
    assert bool(found.no_cure) is no_cure
    assert found.findings[0].gain_at_most >= found.findings[-1].gain_at_most
    assert all(one.always or one.gain_at_most >= 1.05 for one in found.findings)
    outside = [one.formula for one in found.findings if one.rule == "outside-the-steps"]
    assert bool(outside) is ("elsewhere" in known)
    assert all(part in told and "step" not in told for told in outside)


def test_a_line_whose_cure_is_known_is_told_and_not_the_call_of_the_evaluation() -> None:
    told = Stretch(
        "after the last step", 6.0, 0, "t.py:9", "out = torch.cat((out, model(x)))",
        below="t.py:30: run(model)", phases=(("evaluation", 0.9),),
    )  # fmt: skip
    (found,) = outside(Elsewhere(8.0, 1.0, (told,)))
    assert found.line == "t.py:9: out = torch.cat((out, model(x)))"


@pytest.mark.parametrize(("others_s", "is_first"), [(6.0, True), (4.0, False)])
def test_what_is_most_of_the_time_goes_before_what_gains_more_of_a_step(
    others_s: float, is_first: bool
) -> None:
    case = _made(cpu_training(6, wait=2_000, python=20, loader=SINGLE))
    stretch = Stretch("in every 16th step", others_s, 4, "ppo.py:9", "envs.step(action)")
    known = Elsewhere(10.0, 10.0 - others_s, (stretch,))
    told = diagnose(case, summarize(case.breakdown.wall_ms), "simulated", elsewhere=known).findings
    assert (told[0].rule == "outside-the-steps") is is_first
    assert max(f.gain_at_most for f in told) > told[0].gain_at_most or not is_first


def test_what_held_the_machine_back_is_said_before_the_verdict() -> None:
    slow = HostThrottling(10.0, process_s=9.0, clock_mhz=1200.0, max_mhz=3800.0)
    hot = dataclasses.replace(CALM, host=slow)
    case = _made(cpu_training(6))
    found = diagnose(case, summarize(case.breakdown.wall_ms), "simulated", busy=hot)
    assert [one[:55] for one in found.doubts] == [
        "The fastest core ran at 1.20 GHz of at most 3.80 GHz wh"
    ]
    assert found.sentence.startswith("Compute-bound")


def test_what_held_a_gpu_back_is_said_with_its_part_of_the_step() -> None:
    sim = Simulated()
    for i in range(4):
        begin = i * 1_000
        sim.step(i, begin, 1_000)
        op = sim.host("aten::linear", begin, 990)
        copy = sim.call("cudaMemcpyAsync", begin + 5, 5, op)
        sim.device("Memcpy HtoD (Pinned -> Device)", begin + 20, 200, copy, "gpu_memcpy")
        launch = sim.call("cudaLaunchKernel", begin + 20, 5, op)
        sim.device("gemm", begin + 600, 380, launch)
    at_end = GpuReading(0, "a GPU", state=0, link=(3, 16), max_link=(4, 16), n_processes=3)
    held = dataclasses.replace(CALM, gpus=(GpuThrottling({"power": 1.0}, at_end),))
    case = _made(sim)
    first = diagnose(case, summarize(case.breakdown.wall_ms), "simulated", busy=held).doubts
    power, link, others = first
    assert "it computes for your steps for 38 % of their time" in power
    assert "copies between host and GPU, 20 % of the step, get 50 % of the bandwidth" in link
    assert others.startswith("2 other processes had a context on GPU 0")


@pytest.mark.parametrize(
    ("known", "no_cure"),
    [
        ({}, "Nothing stands out: no rule of perfkit knows a cure for this."),
        ({"elsewhere": PARTLY_OUTSIDE}, ""),
        ({"busy": BUSY}, "Nothing stands out: no rule of perfkit knows a cure for this."),
    ],
)
def test_that_there_is_no_cure_is_said_of_a_verdict_alone(
    known: dict[str, Any], no_cure: str
) -> None:
    case = _made(cpu_training(6))
    found = diagnose(case, summarize(case.breakdown.wall_ms), "simulated", **known)
    assert found.no_cure[: len(no_cure)] == no_cure
    assert bool(found.no_cure) is bool(no_cure)
    assert found.bound_by == "compute"
