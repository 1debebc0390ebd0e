"""A few steps of a region are recorded, and nothing is left running whatever happens."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.base import device as devices
from perfkit.base import torch_compat
from perfkit.base.errors import MeasurementError, ProfilerBusyError, UsageError
from perfkit.base.machine.dataloader_stats import DataLoaderSampler
from perfkit.trace import Category, Recorder, Recording, breakdown, find_steps, load
from perfkit.trace.record import record as record_module
from perfkit.trace.record.deadline import Deadline
from perfkit.trace.record.profiler import TorchProfiler, lets_go, start_alone, stays_attached
from tests.left_running import assert_events_are_recorded_once, assert_nothing_runs


def _trainer(optimizer: str = "SGD") -> Callable[[], None]:
    model = nn.Linear(8, 2)
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    x = torch.randn(4, 8)

    def step() -> None:
        update.zero_grad()
        model(x).sum().backward()
        update.step()

    return step


def _record(n: int, step: Callable[[], None] | None = None, **options: Any) -> Recording:
    step = step or _trainer()
    with Recorder(**options) as recorder:
        for _ in range(n):
            step()
        assert_nothing_runs_if(recorder.is_done)
    assert_nothing_runs()
    return recorder.recording


def assert_nothing_runs_if(done: bool) -> None:
    """For the rest of the region, only the hook that times later steps remains."""
    if done:
        assert not torch._C._autograd._profiler_enabled()


@pytest.fixture(scope="module")
def ten() -> Recording:
    return _record(10, steps=3, warmup=2)


def test_the_active_steps_are_recorded_and_the_region_runs_on(ten: Recording) -> None:
    assert (ten.n_steps_seen, ten.n_steps_profiled) == (10, 3)
    steps = find_steps(ten.trace)
    assert steps.names == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert ten.cost.n_profiled == 3
    assert ten.cost.n_unprofiled == 5  # 10 - 2 warm-up - 3 recorded
    # on a busy machine the recorded steps may take unlike the later ones
    assert [w for w in ten.warnings if "are not typical" not in w] == []


def test_each_recorded_step_holds_one_of_everything(ten: Recording) -> None:
    trace, steps = ten.trace, find_steps(ten.trace)
    inside = steps.containing(trace.start_ns)
    for name in ("Optimizer.step#SGD.step", "aten::addmm"):
        rows = trace.named(lambda n, name=name: n == name)
        assert sorted(inside[rows & (inside >= 0)]) == [0, 1, 2]
    for step in breakdown(trace).steps:
        assert min(step.host_ns[c] for c in ("forward", "backward", "optimizer", "other")) > 0


def test_the_raw_trace_reads_the_same_elsewhere(ten: Recording) -> None:
    again = load(ten.raw)
    assert breakdown(again).steps == breakdown(ten.trace).steps


def test_facts_that_no_trace_holds(ten: Recording) -> None:
    (optimizer,) = ten.facts.optimizers
    assert (optimizer.name, optimizer.n_tensors) == ("SGD", 2)
    assert optimizer.dtypes == ("float32",)
    assert ten.facts.n_threads == torch.get_num_threads()


@pytest.mark.serial
def test_cost_is_told_in_words(ten: Recording) -> None:
    sentence = ten.cost.sentence()
    assert "(n=3)" in sentence
    assert "(n=5)" in sentence
    assert f"{len(ten.trace):,} events" in sentence


def test_what_was_queued_before_is_waited_for() -> None:
    class Toy(devices.Device):
        type = "toy"

        def devices(self) -> list[int]:
            return [0, 1]

        def synchronize(self, index: int) -> None:
            waited_for.append(index)

    waited_for: list[int] = []
    undo = devices.register(Toy())
    try:
        _record(5)
        assert waited_for[:2] == [0, 1]
    finally:
        undo()


@pytest.mark.serial
def test_what_part_of_the_region_is_covered(ten: Recording) -> None:
    covered = ten.coverage
    assert (covered.n_steps_seen, covered.first_step, covered.last_step) == (10, 3, 5)
    assert 0 < covered.share < 1
    assert "Profiled: 3 of 10 steps (steps 3–5), " in covered.sentence()
    with Recorder() as recorder:
        torch.randn(4).sum()
    whole = recorder.recording.coverage
    assert (whole.first_step, whole.n_steps_seen) == (0, 0)
    assert whole.share > 0.5


@pytest.mark.serial
@pytest.mark.parametrize("slow", ["later", "profiled", "none"])
def test_a_window_that_is_not_typical_is_told(slow: str) -> None:
    step, n = _trainer(), 0

    def uneven() -> None:
        nonlocal n
        n += 1
        profiled = 2 < n <= 8
        time.sleep(0.06 if slow == ("profiled" if profiled else "later") else 0.005)
        step()

    recording = _record(16, uneven)
    told = [w for w in recording.warnings if "not typical" in w]
    assert bool(told) == (slow != "none")
    if told:
        assert told[0].startswith("steps 3–8 took ")
        assert "-w 8 " in told[0]
    if slow == "later":
        assert "cost is unknown" in recording.cost.sentence()


@pytest.mark.parametrize("n", [1, 2])
def test_a_region_that_ends_in_the_warm_up_is_still_the_result(n: int) -> None:
    recording = _record(n, warmup=2)
    assert recording.n_steps_profiled == 0
    assert any("warm-up" in w for w in recording.warnings)
    assert breakdown(recording.trace).median_ms()["optimizer"] > 0


def test_an_unfinished_step_is_no_step() -> None:
    recording = _record(4, warmup=2, steps=6)
    assert find_steps(recording.trace).names == ("ProfilerStep#0", "ProfilerStep#1")
    assert any("2 of 6" in w for w in recording.warnings)


def test_without_warm_up_the_first_step_counts() -> None:
    recording = _record(2, warmup=0, steps=2)
    assert len(find_steps(recording.trace)) == 2


def test_a_region_without_optimizer_or_torch_is_one_step() -> None:
    with Recorder() as recorder:
        torch.randn(4).sum()
    split = breakdown(recorder.recording.trace)
    assert [s.name for s in split.steps] == ["whole region"]
    with Recorder() as recorder:
        pass
    split = breakdown(recorder.recording.trace)
    assert split.shares()["other"] == 1


def test_steps_may_be_said_by_hand() -> None:
    with Recorder(steps=3, warmup=1) as recorder:
        for _ in range(6):
            torch.randn(4).sum()
            recorder.step()
    assert recorder.recording.n_steps_profiled == 3
    assert len(find_steps(recorder.recording.trace)) == 3


def test_what_the_profiler_takes_to_start_is_no_time_of_the_loaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, skipped_s = TorchProfiler.start, []

    def slow_start(self: TorchProfiler) -> None:
        time.sleep(0.2)
        start(self)

    monkeypatch.setattr(TorchProfiler, "start", slow_start)
    monkeypatch.setattr(DataLoaderSampler, "skip", lambda _, seconds: skipped_s.append(seconds))
    with Recorder(steps=1, warmup=2, late=True) as recorder:
        for _ in torch.utils.data.DataLoader([0, 1]):
            recorder.step()
    assert skipped_s[-1] >= 0.2


def test_where_another_optimizer_takes_the_place_of_the_first_its_steps_count() -> None:
    """As in forward-forward, where each layer is trained by itself, one after the other."""
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    with Recorder(steps=3, warmup=2) as recorder:
        for layer, optimizer in zip(layers, optimizers, strict=True):
            for _ in range(30):
                layer(torch.randn(2, 4)).sum().backward()
                optimizer.step()
    # the 20 after which one takes over are one step
    assert recorder.n_steps_seen == 30 + 2 * 11
    assert [o.n_tensors for o in recorder.recording.facts.optimizers] == [2, 2, 2]


def test_a_critic_that_steps_more_often_does_not_take_the_place_of_the_first() -> None:
    first, critic = (torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1) for _ in range(2))
    with Recorder(steps=2, warmup=1) as recorder:
        for _ in range(8):
            first.step()
            for _ in range(10):
                critic.step()
    assert recorder.n_steps_seen == 8


_OF_THE_CRITIC = "a step here is one of Adam (4 tensors), which made 300; SGD (2 tensors) made 12"


@pytest.mark.parametrize(
    ("n_critic", "generator_first", "says"),
    [
        (1, True, ""),
        (5, True, "a step here is one of SGD (2 tensors), which made 12; Adam (4 tensors) made 60"),
        (
            25,
            False,
            "a step here is one of Adam (4 tensors), which made 300; SGD (2 tensors) made 12",
        ),
        # 25 steps of the critic without one of the first: it takes its place
        (
            25,
            True,
            "a step here is one of Adam (4 tensors), which made 300; SGD (2 tensors) made 12",
        ),
    ],
)
def test_whose_step_it_is_is_said_where_optimizers_step_unequally_often(
    n_critic: int, generator_first: bool, says: str
) -> None:
    """As a WGAN does: its figures were of the critic's steps, and nothing said so."""
    generator = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    critic = torch.optim.Adam(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).parameters())
    with Recorder(steps=2, warmup=1) as recorder:
        for _ in range(12):
            if generator_first:
                generator.step()
            for _ in range(n_critic):
                critic.step()
            if not generator_first:
                generator.step()
    said = [w for w in recorder.recording.warnings if w.startswith("a step here is")]
    assert said == [says] * bool(says)


def test_with_two_optimizers_a_step_is_a_cycle_of_the_first() -> None:
    first, second = _trainer("SGD"), _trainer("AdamW")

    def both() -> None:
        first()
        second()

    recording = _record(8, both, steps=2)
    assert recording.n_steps_seen == 8
    assert [o.name for o in recording.facts.optimizers] == ["SGD", "AdamW"]
    steps = find_steps(recording.trace)
    inside = steps.containing(recording.trace.start_ns)
    other = recording.trace.named(lambda n: n == "Optimizer.step#AdamW.step") & (inside >= 0)
    assert sorted(inside[other]) == [0, 1]


def test_gradient_accumulation_is_one_step() -> None:
    model = nn.Linear(8, 2)
    update = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        for _ in range(4):
            model(torch.randn(4, 8)).sum().backward()
        update.step()
        update.zero_grad()

    recording = _record(6, step, steps=2)
    steps = find_steps(recording.trace)
    inside = steps.containing(recording.trace.start_ns)
    linear = recording.trace.named(lambda n: n == "aten::addmm") & (inside >= 0)
    assert sorted(inside[linear]) == [0] * 4 + [1] * 4


def test_labels_of_the_user_around_steps_do_no_harm() -> None:
    step = _trainer()
    with Recorder(steps=2, warmup=1) as recorder, record_function("epoch"):
        for _ in range(6):
            with record_function("train step"):
                step()
    trace = recorder.recording.trace
    assert len(find_steps(trace)) == 2
    assert trace.named(lambda n: n == "train step").sum() >= 3


# where there is a GPU, reset() imports what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_a_compiled_model_has_steps_too() -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(8, 2), backend="eager")
    update = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.randn(4, 8)).sum().backward()
        update.step()
        update.zero_grad()

    assert _record(6, step, steps=3).n_steps_profiled == 3
    torch._dynamo.reset()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_what_the_region_raises_passes_and_what_was_seen_stays(
    error: BaseException, after: int
) -> None:
    step = _trainer()
    recorder = Recorder(steps=3, warmup=2)

    def region() -> None:
        with recorder:
            for _ in range(after):
                step()
            raise error

    with pytest.raises(type(error)) as caught:
        region()
    assert caught.value is error
    assert_nothing_runs()
    assert recorder.recording.n_steps_profiled == min(max(after - 2, 0), 3)
    assert breakdown(recorder.recording.trace).steps


def test_ctrl_c_in_the_middle_of_an_optimizer_leaves_nothing() -> None:
    step = _trainer()
    recorder = Recorder()
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    def region() -> None:
        handle = register_optimizer_step_pre_hook(interrupt)
        try:
            with recorder:
                while True:
                    step()
        finally:
            handle.remove()

    with pytest.raises(KeyboardInterrupt):
        region()
    assert_nothing_runs()
    assert recorder.recording.n_steps_seen == 3


@pytest.mark.parametrize("kind", ["torch.profiler", "autograd", "Recorder"])
def test_a_busy_profiler_is_an_error_before_anything_changes(kind: str) -> None:
    step = _trainer()
    mine: Any = {
        "torch.profiler": lambda: profile(activities=[ProfilerActivity.CPU]),
        "autograd": lambda: torch.autograd.profiler.profile(use_kineto=True),
        "Recorder": lambda: Recorder(steps=2, warmup=0),
    }[kind]()
    with mine:
        recorder = Recorder()
        with pytest.raises(ProfilerBusyError, match="is already active"):
            recorder.start()
        for _ in range(3):
            step()
    if kind == "Recorder":
        assert mine.recording.n_steps_profiled == 2
    else:
        assert any("addmm" in event.key for event in mine.key_averages())
    assert_nothing_runs()
    assert _record(4).n_steps_seen == 4  # and the next one works


_INNER = """
import sys, torch
from perfkit.base.errors import MeasurementError
from perfkit.trace import Recorder
m = torch.nn.Linear(4, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
def step():
    m(torch.randn(3, 4)).sum().backward(); o.step(); o.zero_grad()
def events(q):
    return q.events() if hasattr(q, "events") else q.function_events
kind = {
    "torch.profiler": torch.profiler.profile,
    "autograd": torch.autograd.profiler.profile,
}[sys.argv[1]]
for inside in (0, 1, 5, 20):
    for before in (0, 1, 4, 12):
        with Recorder() as recorder:
            for _ in range(before):
                step()
            with kind() as q:
                for _ in range(inside):
                    step()
            for _ in range(2):
                step()
        found = sum(e.name == "Optimizer.step#SGD.step" for e in events(q))
        assert found == inside, (found, inside, before)
        assert recorder.n_steps_seen == before + inside + 2
        assert recorder.gave_way == (before < 8)
        try:
            recording = recorder.recording
        except MeasurementError as error:
            assert "a torch profiler of its own" in str(error)
        else:
            assert recording.n_steps_profiled == 6
        assert len(events(q)) >= found  # ours has been read, theirs is still there
print("alive")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("programs_are_forked")
@pytest.mark.parametrize("kind", ["torch.profiler", "autograd"])
def test_a_profiler_of_the_regions_own_works_and_nothing_crashes(kind: str) -> None:
    # in a process of its own: two profilers at once end it
    done = subprocess.run(
        [sys.executable, "-c", _INNER, kind], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


def test_a_scheduled_profiler_in_its_warm_up_is_busy_too() -> None:
    step = _trainer()
    theirs = profile(
        activities=[ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    )
    _record(4)  # made, not started: nobody is in the way
    with theirs:
        with pytest.raises(ProfilerBusyError, match="in its warm-up"):
            Recorder().start()
        for _ in range(3):
            step()
            theirs.step()
    assert _record(4).n_steps_seen == 4  # ended: nor now


def test_a_profiler_in_another_thread_is_refused_while_recording() -> None:
    caught: list[BaseException] = []

    def train() -> None:
        try:
            with profile(activities=[ProfilerActivity.CPU]):
                torch.ones(3).sum()
        except ProfilerBusyError as error:
            caught.append(error)

    with Recorder() as recorder:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        torch.ones(3).sum()
    assert "from another thread" in str(caught[0])
    assert recorder.recording.trace.named(lambda n: n == "aten::sum").any()
    assert_nothing_runs()


def test_assert_nothing_runs_can_fail() -> None:
    left = r"profiler.*1 global.*(perfkit-lines|a reader of frames)"
    with Recorder(), pytest.raises(AssertionError, match=left):
        assert_nothing_runs()
    assert_nothing_runs()


@pytest.mark.serial
def test_a_region_without_optimizer_is_recorded_for_a_bounded_time() -> None:
    recorder = Recorder(max_seconds=0.2)
    with recorder:
        end = time.monotonic() + 20.0
        with record_function("early"):
            pass
        while torch._C._autograd._profiler_enabled() and not recorder._profiler.is_paused:
            torch.ones(200, 200).sum()
            assert time.monotonic() < end
        with record_function("late"):
            torch.ones(200, 200).sum()
    names = recorder.recording.trace.names
    assert "early" in names
    assert "aten::sum" in names
    assert "late" not in names
    assert "no optimizer stepped" in recorder.recording.no_step()


@pytest.mark.serial
@pytest.mark.parametrize(("warmup", "n_times"), [(0, 1), (1, 2), (20, 1)])
def test_events_that_take_too_much_memory_end_the_recording(
    warmup: int, n_times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of millions of operators ends it at once; no later step is recorded either."""
    step = _trainer()
    monkeypatch.setattr(Deadline, "_memory_is_full", lambda self: True)
    recorder = Recorder(warmup=warmup, max_seconds=600)
    with recorder:
        end = time.monotonic() + 20.0
        for n in range(n_times):
            while not (recorder.is_done or recorder._profiler.is_paused):
                torch.ones(200, 200).sum()
                assert time.monotonic() < end
            if n < n_times - 1:
                step()  # what was before may have been its first tensors
        for _ in range(8 - n_times + 1):
            step()
        assert recorder.is_done == (warmup != 20)
    recording = recorder.recording
    assert recording.n_steps_profiled == 0
    assert recording.n_steps_seen == 8
    (told,) = [w for w in recording.warnings if "events" in w]
    assert "after 0 whole steps" in told
    assert "500,000 of them" in told
    assert "-n 1" not in told  # fewer steps than none
    assert not any("warm-up" in w for w in recording.warnings)


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_the_tensors_of_a_step_are_no_events(warmup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with 1 GiB of them: "0 whole steps: the events took more than 977 MiB"."""
    monkeypatch.setattr("perfkit.trace.record.deadline._MEMORY_BYTES", 2**24)
    monkeypatch.setattr("perfkit.trace.record.deadline._LOOK_EVERY_S", 0.001)
    train = _trainer()

    def step() -> None:
        kept = torch.ones(2**23)  # 32 MiB
        time.sleep(0.02)
        del kept
        train()

    step()
    recorder = Recorder(steps=2, warmup=warmup)
    with recorder:
        for _ in range(5):
            step()
    assert recorder.recording.n_steps_profiled == 2
    assert not any("events" in w for w in recorder.recording.warnings)


@pytest.mark.parametrize(
    ("warmup", "at_ends", "n_steps"),
    [
        # the first look is where recording begins, so that the first step's events count
        (1, [1_000, 1_001 + 2**20], 1),
        # without warm-up the first step makes what stays: its optimizer's tensors
        (0, [1_000 + 2**20, 1_001 + 2**21], 2),
        # a process that was larger once would take as many events as fit below its peak
        (1, [1_000, 1_000, 1_000, 1_000 + 2**20, 1_001 + 2**20], 4),
    ],
)
def test_events_are_what_is_more_at_the_end_of_each_step(
    warmup: int, at_ends: list[int], n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter(at_ends)
    monkeypatch.setattr("perfkit.trace.record.deadline._KEPT_BYTES", 2**20)
    monkeypatch.setattr("perfkit.trace.record.deadline.heap_bytes", lambda: next(sizes))
    recording = _record(9, steps=6, warmup=warmup)
    assert recording.n_steps_profiled == n_steps
    assert any(f"after {n_steps} whole step" in w for w in recording.warnings)


@pytest.mark.parametrize(("steps", "n_in_all", "n_notes"), [(1, 4, 0), (2, 2, 1)])
def test_memory_that_is_full_once_all_steps_are_recorded_ends_nothing_early(
    steps: int, n_in_all: int, n_notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of LBFGS was all that was asked for, and the advice was to record fewer (-n 1)."""
    sizes = itertools.count(1, 2**21)
    monkeypatch.setattr("perfkit.trace.record.deadline._KEPT_BYTES", 2**20)
    monkeypatch.setattr("perfkit.trace.record.deadline.heap_bytes", lambda: next(sizes))
    recording = _record(n_in_all, steps=steps, warmup=1)
    early = [w for w in recording.warnings if "ended early" in w]
    assert len(early) == n_notes


def test_a_piece_of_a_late_step_is_not_said_to_be_all_of_the_code() -> None:
    """LBFGS: one step had more events than fit, and 40 s of 141 s were "100 % of the code"."""
    step = _trainer()
    recorder = Recorder(warmup=1, late=True)
    with recorder:
        time.sleep(0.5)
        step()
        torch.ones(2).sum()
    recording = recorder.recording
    assert recording.n_steps_profiled == 0
    assert recording.coverage.profiled_s < recording.coverage.region_s - 0.4


@pytest.mark.serial
def test_steps_after_the_time_limit_are_still_recorded() -> None:
    step = _trainer()
    recorder = Recorder(max_seconds=0.2, steps=3)
    with recorder:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            torch.ones(200, 200).sum()
        for _ in range(8):
            step()
    assert len(find_steps(recorder.recording.trace)) == 3
    # eight steps of some 0.3 ms may differ by chance
    assert all("are not typical" in said for said in recorder.recording.warnings)


@pytest.mark.serial
def test_slow_steps_are_recorded_as_far_as_the_time_goes() -> None:
    step = _trainer()

    def slow() -> None:
        step()
        time.sleep(0.15)

    recording = _record(7, slow, max_seconds=0.2, warmup=1, steps=6)
    assert 1 <= recording.n_steps_profiled < 6
    assert len(find_steps(recording.trace)) == recording.n_steps_profiled


_OVER = "2 of 6 steps were recorded; the 600 s to record in were over"
_NONE = "no whole step was recorded after the warm-up: the figures"


@pytest.mark.parametrize(
    ("n", "limits_after", "late", "said"),
    [
        (3, (), False, "2 of 6 steps were recorded; the code ended"),
        (2, (), False, "1 of 6 steps was recorded; the code ended"),
        (3, (3,), False, _OVER),
        (8, (3,), False, _OVER),
        (1, (), False, f"{_NONE} include warm-up; the code ended"),
        (1, (), True, f"{_NONE} are of a part of one; the code ended"),
        (3, (1, 1), False, f"{_NONE} include warm-up; the 600 s"),
        (3, (1, 1), True, f"{_NONE} are of a part of one; the 600 s"),
    ],
)
def test_what_ended_the_recording_is_said(
    n: int, limits_after: tuple[int, ...], late: bool, said: str
) -> None:
    """It said "the code ended, or the 10 s to record in were over" where it was known which."""
    step = _trainer()
    with Recorder(warmup=1, max_seconds=600, late=late) as recorder:
        for number in range(1, n + 1):
            step()
            for _ in range(limits_after.count(number)):
                recorder._enough()
        torch.ones(2).sum()
    (told,) = [w for w in recorder.recording.warnings if "recorded" in w or "figures" in w]
    assert told.startswith(said)


def test_a_limit_that_waits_for_the_end_of_a_step_is_told_as_one() -> None:
    """In a thread other than the main one the profiler ends with the step."""
    step = _trainer()
    with Recorder(warmup=1, max_seconds=600) as recorder:
        step()
        step()
        recorder._time_is_up = True  # as the sampler's thread says it
        step()
        step()
    assert _OVER in recorder.recording.warnings


def test_a_recorder_that_failed_says_not_that_the_code_ended() -> None:
    step = _trainer()
    with Recorder(warmup=1) as recorder:
        step()
        step()
        recorder._instrument.fail(ValueError("ours"), "a test")
        step()
    failed, told, *_ = recorder.recording.warnings
    assert "was switched off" in failed
    assert told == "1 of 6 steps was recorded"


def test_the_time_limit_leaves_the_users_signals_alone() -> None:
    import signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with Recorder(max_seconds=0.05):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            torch.ones(10).sum()
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before


def test_training_in_another_thread_is_told() -> None:
    step = _trainer()

    def train() -> None:
        for _ in range(5):
            step()

    recorder = Recorder()
    with recorder:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert any("another thread" in w for w in recorder.recording.warnings)


def test_recording_in_another_thread_works() -> None:
    found: list[Recording] = []
    thread = threading.Thread(target=lambda: found.append(_record(6, steps=2)))
    thread.start()
    thread.join()
    assert found[0].n_steps_profiled == 2


def test_stop_twice_and_start_twice() -> None:
    recorder = Recorder()
    with pytest.raises(MeasurementError, match="no recording yet"):
        _ = recorder.recording
    recorder.start()
    recorder.stop()
    recorder.stop()
    with pytest.raises(UsageError, match="records once"):
        recorder.start()


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"warmup": -1},
        {"max_seconds": 0},
        {"max_seconds": float("nan")},
        {"max_seconds": float("inf")},
    ],
)
def test_absurd_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Recorder(**options)


def test_options_reach_the_profiler() -> None:
    recording = _record(4, steps=1, stacks=True, shapes=True)
    assert recording.trace.input_types
    assert recording.trace.is_a(Category.PYTHON).any()


def test_cuda_is_recorded_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    asked: list[Any] = []

    class Fake:
        def __init__(self, *, activities: list[Any], **options: bool) -> None:
            asked.append((activities, options))

        def start(self) -> None:
            pass

        def stop(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "profile", Fake)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: set(both))
    with Recorder():
        pass
    (activities, options) = asked[0]
    assert set(activities) == both
    assert not any(options.values())  # the cheap ones by default


def _with_kernel(raw: bytes, lag_ms: float) -> bytes:
    """The trace as of a GPU that is at work until so long after the last step's end."""
    found = json.loads(raw)
    last = max(
        e["ts"] + e["dur"] for e in found["traceEvents"] if "ProfilerStep#" in e.get("name", "")
    )
    kernel = {"ph": "X", "cat": "kernel", "name": "played", "pid": 0, "tid": 7, "dur": 10.0}
    args = {"device": 0, "stream": 7, "correlation": 1}
    found["traceEvents"].append({**kernel, "ts": last + lag_ms * 1e3 - 10.0, "args": args})
    return json.dumps(found).encode()


@pytest.mark.serial
@pytest.mark.parametrize(("lag_ms", "behind"), [(1.0, False), (5000.0, True)])
def test_a_gpu_that_is_steps_behind_leaves_the_cost_untold(
    lag_ms: float, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a synchronisation the host's clock tells how fast it hands out work, no more."""
    original = record_module.raw_trace
    monkeypatch.setattr(record_module, "raw_trace", lambda p: _with_kernel(original(p), lag_ms))
    train = _trainer()
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        # unprofiled steps take much longer: the queue of the GPU is full
        time.sleep(0.005 if seen <= 5 else 0.05)
        train()

    recording = _record(20, step, steps=3)
    said = " ".join(recording.warnings)
    assert ("more than a step behind the host" in said) is behind
    assert ("not typical" in said) is not behind
    assert (recording.cost.unprofiled_step_ms is None) is behind


def test_an_optimizer_in_a_backward_thread_is_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA runs hooks of a backward pass, and optimizers in them, in threads of its own."""
    in_backward = threading.local()
    monkeypatch.setattr(
        torch_compat,
        "graph_task_id_reader",
        lambda: lambda: 3 if getattr(in_backward, "yes", False) else -1,
    )
    step = _trainer()

    def as_the_engine_does() -> None:
        in_backward.yes = True
        step()

    with Recorder() as recorder:
        thread = threading.Thread(target=as_the_engine_does)
        thread.start()
        thread.join()
    assert recorder.n_foreign_steps == 0


def _trains_in_backward(device: str = "cpu") -> Callable[[], None]:
    """As torch's tutorial does it: each parameter has an optimizer, which steps in a hook."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).to(device)
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
    x = torch.randn(4, 8, device=device)
    return lambda: model(x).sum().backward()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_such_a_step_ends_with_its_pass_too() -> None:
    """There the hooks run in threads of torch's engine."""
    recording = _record(8, _trains_in_backward("cuda"), steps=3, warmup=2)
    assert_events_are_recorded_once()
    assert (recording.n_steps_seen, recording.n_steps_profiled) == (8, 3)


@pytest.mark.parametrize("late", [False, True])
def test_optimizers_that_step_in_the_backward_pass_end_the_step_with_it(late: bool) -> None:
    """torch refused every later profiler when one had ended within a pass."""
    recording = _record(8, _trains_in_backward(), steps=3, warmup=2, late=late)
    assert_events_are_recorded_once()
    assert (recording.n_steps_seen, recording.n_steps_profiled) == (8, 3)
    trace = recording.trace
    inside = find_steps(trace).containing(trace.start_ns)
    for name, n in (("Optimizer.step#SGD.step", 4), ("aten::addmm", 2)):
        rows = trace.named(lambda found, name=name: found == name)
        assert sorted(inside[rows & (inside >= 0)]) == sorted([0, 1, 2] * n)


@pytest.mark.parametrize("warmup", [0, 9])
def test_a_time_limit_that_ends_within_a_backward_pass_waits_for_its_end(warmup: int) -> None:
    """At 9 the profiler pauses; then each event was recorded twice in later profiles."""
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    still_on: list[bool] = []

    def limit(_: object) -> None:
        for _ in range(2):  # the first time, the end of the step is awaited
            recorder._enough()
        still_on.append(torch._C._autograd._profiler_enabled())

    with Recorder(steps=3, warmup=warmup) as recorder:
        handle = model.weight.register_post_accumulate_grad_hook(limit)
        model(x).sum().backward()
        handle.remove()
        assert still_on == [True]
        assert recorder.is_done == (warmup == 0)
        assert recorder._profiler.is_paused == (warmup > 0)
    assert_nothing_runs()
    assert_events_are_recorded_once()


def test_a_step_marked_in_a_hook_ends_with_the_pass() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    with Recorder(steps=2) as recorder:
        model.weight.register_post_accumulate_grad_hook(lambda _: recorder.step())
        for _ in range(4):
            model(x).sum().backward()
    assert_events_are_recorded_once()
    assert (recorder.n_steps_seen, recorder.recording.n_steps_profiled) == (4, 2)


def test_a_recorder_that_fails_within_a_backward_pass_stops_after_it() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    with Recorder() as recorder:
        model.weight.register_post_accumulate_grad_hook(
            lambda _: recorder._instrument.fail(ArithmeticError(), "a test")
        )
        model(x).sum().backward()
        assert not torch._C._autograd._profiler_enabled()
    assert_events_are_recorded_once()


def test_a_recorder_that_is_stopped_within_a_backward_pass_ends_with_it() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    recorder = Recorder(warmup=0)
    recorder.start()
    model.weight.register_hook(lambda _: recorder.stop())
    model(x).sum().backward()
    assert_nothing_runs()
    assert_events_are_recorded_once()
    assert recorder.recording.trace.named(lambda name: name == "aten::addmm").any()


def test_a_profiler_that_could_not_be_stopped_in_a_deep_step_is_stopped_at_the_end() -> None:
    """Near the limit of recursion it ran for ever, and torch refused every later one."""
    recorder = Recorder(steps=1, warmup=0)
    recorder.start()
    stop, n = recorder._profiler.profile.stop, []

    def too_deep() -> None:
        n.append(1)
        if len(n) == 1:
            raise RecursionError
        stop()

    recorder._profiler.profile.stop = too_deep
    recorder.step()
    recorder.stop()
    assert len(n) == 2
    assert_nothing_runs()
    assert recorder.failure is not None


def test_a_recorder_that_begins_within_a_backward_pass_says_what_became_of_it() -> None:
    model, x = nn.Linear(8, 2), torch.randn(4, 8)
    recorder = Recorder(warmup=0)
    model.weight.register_hook(lambda _: recorder.start())
    model(x).sum().backward()
    recorder.stop()
    assert_nothing_runs()
    with pytest.raises(MeasurementError, match="began within a backward pass"):
        _ = recorder.recording


def test_a_recorder_that_another_thread_stops_ends_where_it_began() -> None:
    """The garbage collector may close a generator in any thread; torch refused later profilers."""
    recorder = Recorder(warmup=0)
    recorder.start()
    torch.ones(3).sum()
    thread = threading.Thread(target=recorder.stop)
    thread.start()
    thread.join()
    assert next((True for _ in range(10**6) if recorder.is_done), False)
    assert_nothing_runs()
    assert recorder.recording.trace.is_a(Category.OP).any()


def test_the_region_s_own_modes_do_not_see_the_marks() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with Seen(), Recorder(steps=1, warmup=1) as recorder:
        for _ in range(3):
            recorder.step()
    assert seen == []
    assert recorder.recording.n_steps_profiled == 1


@pytest.mark.parametrize("capturing", [True, False])
def test_a_step_that_a_cuda_graph_captures_is_none(
    capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    with Recorder() as recorder:
        _trainer()()
    assert recorder.n_steps_seen == (0 if capturing else 1)


@pytest.mark.slow
def test_the_profiler_writes_nothing_to_the_screen() -> None:
    code = """
import os, torch
from perfkit.trace import Recorder
m = torch.nn.Linear(4, 2); o = torch.optim.SGD(m.parameters(), lr=.1)
with Recorder(steps=2):
    for _ in range(6):
        m(torch.randn(3, 4)).sum().backward(); o.step(); os.write(2, b"mine\\n")
"""
    env = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stderr == "mine\n" * 6
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("cuda", "safe"),
    [(None, False), ("11.8", False), ("12.4", False), ("12.6", True), ("13.0", True)],
)
def test_cupti_lets_go_where_that_is_safe(cuda: str | None, safe: bool) -> None:
    assert lets_go(cuda) is safe


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("0", "0")])
def test_a_profiler_on_cuda_is_asked_to_let_go_unless_you_said_otherwise(
    given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        def start(self) -> None: ...

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("TEARDOWN_CUPTI", given or "")
    if given is None:
        monkeypatch.delenv("TEARDOWN_CUPTI")
    start_alone(Started())
    assert os.environ["TEARDOWN_CUPTI"] == kept
    assert stays_attached() is (kept != "1")


@pytest.mark.parametrize("why", ["the time is up", "after the last"])
def test_stopping_within_a_step_is_no_time_of_that_step(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an LSTM with LBFGS it took 17 s, and a cell of 13 s had "18 s in step 8"."""
    ends = TorchProfiler.end

    def slowly(self: TorchProfiler) -> None:
        time.sleep(0.5)
        ends(self)

    monkeypatch.setattr(TorchProfiler, "end", slowly)
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters())
    with Recorder(warmup=1) as recorder:
        for i in range(6):
            net(torch.ones(1, 2)).sum().backward()
            if i == 3 and why == "the time is up":
                recorder._enough()
            optimizer.step()
        if why == "after the last":
            recorder._enough()
    recording = recorder.recording
    assert recording.cost.stop_s >= 0.5
    assert recording.n_steps_seen == 6
    spans = [end - begin for begin, end in recorder.log.times_s]
    assert min(spans) >= 0
    assert sum(spans) <= recording.coverage.region_s
    assert recording.elsewhere is not None
    assert recording.elsewhere.seconds <= recording.coverage.region_s
