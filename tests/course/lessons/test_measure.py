"""Lesson 01: its exercise, its made-up devices and machines, and the cost of profiling."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perfkit.base.errors import MeasurementError, UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.kit.picture import picture
from perfkit.course.ledger.recording import Outcome
from perfkit.course.lessons.lesson_01_measure import cost as measure_cost
from perfkit.course.lessons.lesson_01_measure.async_device import SimulatedDevice, async_device
from perfkit.course.lessons.lesson_01_measure.cost import LabelCost, label_cost, profiler_cost
from perfkit.course.lessons.lesson_01_measure.exercise import time_one_step
from perfkit.course.lessons.lesson_01_measure.first_steps import first_steps
from perfkit.course.lessons.lesson_01_measure.pictures import (
    draw_cost,
    draw_drift,
    draw_first_steps,
)
from perfkit.course.lessons.lesson_01_measure.slowing_machine import SlowingMachine
from perfkit.measure.paired import ratio_interval
from perfkit.measure.summary import summarize

Call = Callable[[], Any]


def _training_step() -> Call:
    """A step on the CPU with eight small layers, forward to optimizer."""
    layers: list[Any] = []
    for _ in range(8):
        layers += [nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(64, 128), torch.randint(10, (64,))

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


def _right(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    for _ in range(warmup):
        step()
    times = []
    for _ in range(n):
        synchronize()
        start = now()
        step()
        synchronize()
        times.append(now() - start)
    return statistics.median(times)


def _times(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> list[float]:
    for _ in range(warmup):
        step()
    times = []
    for _ in range(n):
        synchronize()
        start = now()
        step()
        synchronize()
        times.append(now() - start)
    return times


def _one_wait_before(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    """Also right: the wait that ends one call is the wait before the next one."""
    for _ in range(warmup):
        step()
    synchronize()
    marks = [now()]
    for _ in range(n):
        step()
        synchronize()
        marks.append(now())
    return statistics.median(np.diff(marks))


def _no_wait(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    return _right(step, n, warmup, lambda: None, now)


def _no_warm_up(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    return _right(step, n, 0, synchronize, now)


def _warm_up_timed(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    return _right(step, n + warmup, 0, synchronize, now)


def _no_wait_after_warm_up(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    for _ in range(warmup):
        step()
    times = []
    for _ in range(n):
        start = now()
        step()
        synchronize()
        times.append(now() - start)
    return statistics.median(times)


def _wait_before_only(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    for _ in range(warmup):
        step()
    times = []
    for _ in range(n):
        synchronize()
        start = now()
        step()
        times.append(now() - start)
    return statistics.median(times)


def _many_at_once(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    for _ in range(warmup):
        step()
    synchronize()
    start = now()
    for _ in range(n):
        step()
    synchronize()
    return (now() - start) / n


def _own_clock(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    return _right(step, n, warmup, synchronize, time.perf_counter)


def _with_numpy(step: Call, n: int, warmup: int, synchronize: Call, now: Call) -> Any:
    def one() -> float:
        synchronize()
        start = now()
        step()
        synchronize()
        return float(now() - start)

    [step() for _ in range(warmup)]
    return np.median([one() for _ in range(n)])


@pytest.mark.parametrize("answer", [_right, _one_wait_before, _with_numpy])
def test_a_right_answer_passes_with_its_facts(answer: Callable[..., Any]) -> None:
    said = " ".join(repr(time_one_step.check(answer)).split())
    assert said.startswith("Done")
    assert "10 calls of step for warmup=3, n=7" in said
    assert "nothing left to do at any reading" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (_times, "return one number, the median time of a step, got list"),
        (lambda *_: True, "got bool"),
        (lambda *_: 23.0, "step was called 0 times; with warmup=3 and n=7 it must be 10"),
        (_no_warm_up, "step was called 7 times"),
        (_warm_up_timed, "first read after 0 of 3 warm-up calls"),
        (_no_wait, "how long it takes to ask"),
        (_no_wait_after_warm_up, "still busy with the warm-up when the clock was first read"),
        (_wait_before_only, "after step() and before now()"),
        (_many_at_once, "one time for many calls is a mean"),
        (_own_clock, "the clock was never read: call now()"),
        (lambda *a: statistics.mean(_times(*a)), "the mean of the times"),
        (lambda *a: min(_times(*a)), "the fastest time"),
        (lambda *a: max(_times(*a)), "the slowest time"),
        (lambda *a: sum(_times(*a)), "the sum of the times"),
        (lambda *a: 2 * statistics.median(_times(*a)), "their median is 23"),
        # right for the first run alone
        (lambda *a: 23.0 if _times(*a) else 0.0, "you returned 23"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(time_one_step.check(answer)).split())
    assert said.startswith("Not yet")
    assert reason in said


def test_an_answer_of_other_arguments_is_told_its_error() -> None:
    said = " ".join(repr(time_one_step.check(lambda step: 1.0)).split())
    assert said.startswith("Your function cannot be called like that")


def test_show_gives_the_order_of_calls() -> None:
    said = " ".join(repr(time_one_step.show(_right)).split())
    assert "step → step → synchronize → now → step → synchronize → now" in said
    assert "it returned 22.0" in said
    assert "returns nothing yet" in repr(time_one_step.show(lambda *_: None))


def test_show_rounds_what_was_returned() -> None:
    said = " ".join(repr(time_one_step.show(lambda *_: 500 / 3)).split())
    assert "it returned 166.667 " in said


def test_hints_come_one_by_one() -> None:
    titles = [repr(time_one_step.hint()).splitlines()[0] for _ in range(4)]
    assert titles == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "No further hint"]


def test_a_simulated_device_returns_before_its_work_is_done() -> None:
    device = SimulatedDevice(work_ms=50)
    start = time.perf_counter()
    for _ in range(4):
        device.launch()
    assert device.pending()
    device.synchronize()
    # each job sleeps at least its time: no load makes this shorter
    assert time.perf_counter() - start >= 4 * 0.05
    assert not device.pending()
    device.synchronize()  # nothing to wait for


def test_a_simulated_device_leaves_no_thread() -> None:
    device = SimulatedDevice(work_ms=1)
    for _ in range(3):
        device.launch()
        device.launch()
        device.synchronize()
    for thread in threading.enumerate():
        if thread.name == "perfkit-simulated-device":
            thread.join(5)
            assert not thread.is_alive()
    with pytest.raises(UsageError, match="some time"):
        SimulatedDevice(0)


def test_the_device_of_this_machine_waits() -> None:
    device = async_device(work_ms=1)
    assert ("simulated" in device.name) == (not torch.cuda.is_available())
    device.launch()
    device.synchronize()
    assert not device.pending()


def test_drift_fools_one_order_and_not_the_other() -> None:
    alarms = {"apart": 0, "together": 0}
    for seed in range(40):
        machine = SlowingMachine(rise=0.1, calls=80, seed=seed)
        arms = [[[machine.run(), machine.run()] for _ in range(20)] for _ in "ab"]
        alarms["apart"] += ratio_interval(*arms).different
        machine = SlowingMachine(rise=0.1, calls=80, seed=seed)
        blocks = [[machine.run() for _ in range(4)] for _ in range(20)]
        found = ratio_interval([[b[0], b[3]] for b in blocks], [[b[1], b[2]] for b in blocks])
        alarms["together"] += found.different
    assert alarms["apart"] >= 38
    assert alarms["together"] <= 4


def test_a_machine_that_does_not_slow_down_keeps_its_time() -> None:
    machine = SlowingMachine(rise=0.0, jitter=0.0)
    assert {machine.run() for _ in range(10)} == {10.0}
    machine = SlowingMachine(rise=0.5, calls=10, jitter=0.0)
    assert [machine.run() for _ in range(11)][-1] == pytest.approx(15.0)
    with pytest.raises(UsageError):
        SlowingMachine(rise=-1)


def _broken() -> Call:
    raise ValueError("no model today")


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
def test_first_steps_that_fail_say_why() -> None:
    # by value, as from a notebook: the program cannot import this test
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(MeasurementError, match="no model today"):
            first_steps(_broken, processes=1, steps=1)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class _Birthplace:
    """Unpickled, the number of the process in which that happened."""

    def __reduce__(self) -> Any:
        return os.getpid, ()


@pytest.mark.slow
def test_first_steps_come_from_fresh_processes_where_they_are_unpickled() -> None:
    # a tensor on a GPU would put CUDA to use in the parent, and no fork could use it any more
    born: Any = _Birthplace()

    def make_step() -> Call:  # inside, so that it travels by value, as from a notebook
        assert born == os.getpid()
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"  # nor does an import ask CUDA
        layer = nn.Linear(8, 8)
        return lambda: layer(torch.ones(4, 8)).sum().backward()

    times = first_steps(make_step, processes=2, steps=3)
    assert times.shape == (2, 3)
    assert (times > 0).all()
    with pytest.raises(UsageError):
        first_steps(make_step, processes=0)


@pytest.fixture(scope="module")
def cost() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFKIT_BUDGET_SCALE", "0.1")
        return profiler_cost(_training_step(), steps=1, budget_s=0.1)


@pytest.mark.slow
def test_the_profilers_options_leave_the_events_that_they_promise(cost: Any) -> None:
    shapes, memory, stack, everything = (one.events for one in cost.options[-4:])
    assert cost.options[0].events == 0
    assert shapes > 100  # each operator of eight layers, forward, backward and optimizer
    assert min(memory, stack) > shapes
    assert everything > max(memory, stack)


@pytest.mark.parametrize(("scale", "n_blocks"), [("1", 6), ("0.1", 2)])
def test_blocks_enough_for_an_interval_are_measured_even_if_that_takes_longer(
    monkeypatch: pytest.MonkeyPatch, scale: str, n_blocks: int
) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", scale)
    monkeypatch.setattr(measure_cost, "_options", lambda device: {measure_cost.NO_PROFILER: None})
    monkeypatch.setattr(measure_cost.gc, "collect", lambda: 0)
    assert profiler_cost(lambda: None, steps=1, budget_s=1e-9).n_blocks == n_blocks


def test_what_tracing_a_gpu_does_for_itself_is_no_event_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Profile:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def export_chrome_trace(self, path: str) -> None:
            kinds = ["cpu_op", "kernel", "cuda_runtime", "ac2g", "fwdbwd", "overhead"]
            kinds += ["user_annotation", "gpu_user_annotation", "Trace"]
            events: list[Any] = [{"ph": "M"}, *({"cat": kind} for kind in kinds)]
            Path(path).write_text(json.dumps({"traceEvents": events}))

    monkeypatch.setattr(torch.profiler, "profile", lambda **_: Profile())
    assert measure_cost._n_events(lambda: None, {}, 1) == 3


@pytest.mark.parametrize(
    ("name", "called"),
    [("… and all three", "all options together"), ("… and with_stack", "with_stack")],
)
def test_the_costliest_choice_has_a_name_outside_of_its_table(name: str, called: str) -> None:
    times = summarize([1.0] * 6)
    ratio = ratio_interval([[2.0, 2.0]] * 6, [[1.0, 1.0]] * 6)
    plain = measure_cost.OptionCost("no profiler", times, None, None, 0)
    option = measure_cost.OptionCost(name, times, ratio, times, 5)
    said = repr(measure_cost.ProfilerCost((plain, option), n_blocks=3, steps=1, source=""))
    assert f"The costliest choice, {called}, makes a step 2" in said.replace("\n", " ")


@pytest.mark.slow
def test_the_profilers_cost_is_told_in_words_and_as_a_figure(cost: Any) -> None:
    said = repr(cost)
    assert "no profiler" in said
    assert "… and with_stack" in said
    assert "measured here" in said
    assert cost._repr_html_().count("<tr>") == 1 + len(cost.options)
    figure, words = draw_cost(cost)
    assert "… and with_stack" in words
    assert picture(figure, words).png.startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="there are: no profiler"):
        cost["… and luck"]
    with pytest.raises(UsageError):
        profiler_cost(lambda: None, steps=0)


def test_a_label_is_timed_with_the_profiler_off_and_on() -> None:
    found = label_cost(rounds=6)
    assert found.off.n == found.on.n == found.empty.n == 6
    assert "label, profiler runs" in repr(found)
    page = dataclasses.replace(found, source="measured <here>")._repr_html_()
    assert page.count("<tr>") == 4
    assert "label, profiler runs</td>" in page
    assert "measured &lt;here&gt;" in page
    with pytest.raises(UsageError):
        label_cost(rounds=0)


def test_the_figures_have_words_with_their_numbers() -> None:
    times = np.full((3, 10), 2.0)
    times[:, 0] = 8.0
    figure, words = draw_first_steps(times, wait=1, warmup=4, active=3)
    assert "8.00 ms, later ones 2.00 ms" in words
    assert "records only steps 6 to 8" in words
    picture(figure, words)
    with pytest.raises(UsageError, match="needs 8 steps, 5 were timed"):
        draw_first_steps(times[:, :5], wait=1, warmup=4, active=3)
    arms = ([[1.0, 1.0]] * 6, [[2.0, 2.0]] * 6)
    figure, words = draw_drift(arms, arms)
    assert words.startswith("Simulated")
    assert "1.00 ms and 2.00 ms" in words
    picture(figure, words)


def _outcome(name: str, *measured: Any, **named: Any) -> Outcome:
    settled = claim(name, lesson="01").settle(*measured, **named)
    assert settled.outcome is not None, settled.why
    return settled.outcome


@pytest.mark.slow
def test_d1_counts_events(cost: Any) -> None:
    figures = _outcome("D1", cost).figures
    events = {name: f.value for name, f in figures.items() if name.endswith("_events")}
    assert events["cpu_events"] == events["shapes_events"]
    assert events["all_events"] == max(events.values())
    assert figures["all_events"].kind == "exact"
    assert {name.rpartition("_")[0] for name in figures} == {
        "cpu", "shapes", "memory", "stack", "all",
    }  # fmt: skip


def test_d2_holds_while_a_label_costs_hardly_more_than_an_empty_block() -> None:
    empty = summarize([100.0] * 6, unit="ns")
    step = summarize([2.0] * 6)

    def judged(off_ns: float) -> Outcome:
        cost = LabelCost(
            off=summarize([off_ns] * 6, unit="ns"),
            on=summarize([2e4] * 6, unit="ns"),
            empty=empty,
            source="",
        )
        return _outcome("D2", cost, step, labels=4)

    assert judged(200.0).holds
    found = judged(10_000.0)
    assert found.holds is False
    assert found.figures["share_of_step"].value == pytest.approx(2.0)  # 40 µs of 2 ms


@pytest.mark.parametrize(
    ("processes", "first_ms", "holds"), [(6, 9.0, True), (6, 1.0, False), (5, 9.0, None)]
)
def test_e7_needs_processes_enough_for_an_interval(
    processes: int, first_ms: float, holds: bool | None
) -> None:
    times = np.ones((processes, 30))
    times[:, 0] = first_ms
    times[:, 20:] = 100.0  # which the schedule does not see
    found = _outcome("E7", times)
    assert found.holds is holds
    assert found.figures["first_step_ratio"].value == first_ms
    assert found.figures["counted_ratio"].value == pytest.approx((first_ms + 7) / 8)
    assert found.figures["steps_recorded"].value == 3


@pytest.mark.parametrize(("classes", "holds"), [(3, True), (4, False)])
def test_a16_counts_the_operators_of_one_call(classes: int, holds: bool) -> None:
    operators = [
        SimpleNamespace(name="aten::select", count=6),
        SimpleNamespace(name="aten::mul", count=4),
    ]
    profile = SimpleNamespace(n_steps=2, operators=operators)
    found = _outcome("A16", profile, classes=classes)
    assert found.holds is holds
    assert found.figures["operator_calls"].value == 5
    assert found.figures["slices"].value == 3
