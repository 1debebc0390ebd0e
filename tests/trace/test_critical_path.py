"""The critical path of a step: its parts add up to it, and the most of them bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from real_traces import FOLDER, needs_traces
from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.base.errors import UsageError
from perfkit.trace import CriticalPath, critical_path, load
from perfkit.trace.ask.critical_path import PATH_CLASSES


def _path(sim: Simulated, step: int | None = None) -> CriticalPath:
    found = critical_path(load(sim.json()), step=step)
    assert tuple(found.by_class_us) == PATH_CLASSES
    assert sum(found.by_class_us.values()) == pytest.approx(found.wall_us, abs=0.002)
    assert sum(found.bounds_us.values()) == pytest.approx(found.wall_us, abs=0.002)
    assert sum(p.dur_us for p in found.parts) == pytest.approx(found.wall_us, abs=0.002)
    starts = [p.start_us for p in found.parts]
    assert starts == sorted(starts)
    assert all(p.dur_us > 0 for p in found.parts)
    return found


def test_a_busy_device_bounds_the_step() -> None:
    found = _path(gpu_training(4, item=True, restart=10), 1)
    assert found.bound_by == "compute"
    assert found.by_class_us["device: compute"] == 10 * 95
    assert found.by_class_us["kernel gap"] >= 9 * 5
    assert found.top["sgemm"] == 950


def test_waiting_for_data_bounds_the_step() -> None:
    found = _path(gpu_training(4, item=True, restart=10, wait=5_000), 1)
    assert found.bound_by == "data"
    assert found.by_class_us["host: data wait"] == 5_000
    assert found.by_class_us["device: compute"] == 950


def test_slow_launching_bounds_the_step() -> None:
    sim = Simulated()
    for i in range(3):
        at = i * 1_000
        sim.step(i, at, 1_000)
        for k in range(9):
            external = sim.host("aten::linear", at + k * 100, 99)
            sim.device(
                "gemm",
                at + k * 100 + 60,
                5,
                sim.call("cudaLaunchKernel", at + k * 100 + 50, 5, external),
            )
        sim.item(at + 950, 20)
    found = _path(sim, 1)
    assert found.bound_by == "launch"


def test_work_that_ends_after_the_hosts_step_belongs_to_it() -> None:
    sim = Simulated()
    for i in range(3):  # the host needs 100 µs a step, the device 500
        sim.step(i, i * 100, 100)
        sim.kernel("aten::mm", i * 100 + 10, 100 + i * 500, 500)
    found = _path(sim, 1)
    assert found.wall_us == 500
    assert found.by_class_us["device: compute"] == 500


@pytest.mark.parametrize(("gap_us", "wall_us"), [(0.9, 100), (1.1, 250 - 1.1)])
def test_the_work_of_the_step_before_is_no_part_of_one_right_after_it(
    gap_us: float, wall_us: float
) -> None:
    """Marks that follow each other have less than a microsecond between them."""
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.step(1, 100 + gap_us, 100)
    sim.kernel("aten::mm", 10, 50, 200)
    sim.kernel("aten::mm", 110, 250, 100)
    assert _path(sim, 1).wall_us == pytest.approx(wall_us)


def test_a_kernel_that_waited_for_another_stream() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i, (name, start, dur, tid) in enumerate(
        [("gemm", 100, 100, 7), ("ncclDevKernel_AllReduce", 200, 300, 20), ("adam", 502, 98, 7)]
    ):
        external = sim.host("aten::mm", 10 * i, 8)
        correlation = sim.call("cudaLaunchKernel", 10 * i + 1, 5, external)
        sim.device(name, start, dur, correlation)
        sim.events[-1]["tid"] = tid
    sim.item(50, 560)
    sim.events[-1]["ts"] = 601  # the copy of the item, at the end of the queue
    found = _path(sim)
    assert found.by_class_us["device: communication"] == 300
    assert found.by_class_us["device: compute"] == 198


@pytest.mark.parametrize(("idle_us", "waited_us"), [(8, 0), (12, 298)])
def test_a_kernel_that_follows_its_own_stream_closely_waited_for_no_other(
    idle_us: float, waited_us: float
) -> None:
    """Kernels of one stream start within some µs of each other; after 10 µs another held it."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i, (name, start, dur, tid) in enumerate(
        [
            ("gemm", 100, 400 - idle_us, 7),
            ("ncclDevKernel_AllReduce", 200, 298, 20),
            ("adam", 500, 100, 7),
        ]
    ):
        correlation = sim.call("cudaLaunchKernel", 10 * i + 1, 5, sim.host("aten::mm", 10 * i, 8))
        sim.device(name, start, dur, correlation)
        sim.events[-1]["tid"] = tid
    sim.item(50, 560)
    sim.events[-1]["ts"] = 601
    assert _path(sim).by_class_us["device: communication"] == waited_us


def _wait(sim: Simulated, at: float, number: int, on: int, stream: int, record: int) -> None:
    """``cudaStreamWaitEvent`` as the category ``cuda_sync`` records it."""
    args = {
        "cuda_sync_kind": "Stream Wait Event",
        "wait_on_stream": stream,
        "wait_on_cuda_event_record_corr_id": record,
        "stream": on,
        "correlation": number,
        "device": 0,
    }
    event = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": on}
    sim.events.append({**event, "ts": at, "dur": 1, "args": args})


def _three_kernels(
    kernels: Sequence[tuple[str, float, float, int]], *, wait_for: int | None
) -> Simulated:
    """Kernels (name, start, duration, stream), launched 20 µs apart.

    After the second launch stream 7 waits for ``wait_for``.
    """
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for number, (name, start, dur, stream) in enumerate(kernels):
        at = 20.0 * number
        external = sim.host("aten::mm", at, 8)
        correlation = 100 * (number + 1)
        sim.device(name, start, dur, correlation)
        sim.events[-1]["tid"] = sim.events[-1]["args"]["stream"] = stream
        sim.call("cudaLaunchKernel", at + 1, 5, external)
        sim.events[-1]["args"]["correlation"] = correlation
        if number == 1 and wait_for is not None:
            _wait(sim, at + 10, 290, 7, wait_for, 280)
    sim.item(70, 430)
    return sim


def _two_streams(*, wait_for: int | None) -> Simulated:
    """Two kernels on streams 20 and 21 end at 400 and 398; then one on stream 7."""
    kernels = [("first", 100, 300, 20), ("second", 100, 298, 21), ("last", 402, 94, 7)]
    return _three_kernels(kernels, wait_for=wait_for)


def test_a_recorded_event_wait_says_what_was_waited_for() -> None:
    guessed = _path(_two_streams(wait_for=None))
    assert "first" in guessed.top  # what ended last before it
    assert guessed.event_waits == {}
    known = _path(_two_streams(wait_for=21))
    assert set(known.top) >= {"last", "second"}
    assert "first" not in known.top
    # it was launched at 46 µs and could have run from then on
    assert known.event_waits == {"stream 7 for stream 21": 402 - 46}
    # "second" itself was launched at 26 µs and started at 100: it is not recorded what held it
    assert known.by_class_us["kernel gap"] == (402 - 398) + (498 - 496) + (100 - 26)
    assert "stream 7 for stream 21" in str(known)


def test_a_stream_waits_for_what_was_launched_before_the_event_was_recorded() -> None:
    sim = _two_streams(wait_for=21)
    sim.call("cudaLaunchKernel", 35, 3, sim.host("aten::mm", 34, 5))
    sim.events[-1]["args"]["correlation"] = 285  # after the event's 280, before the wait's 290
    sim.device("more", 398, 3, 285)
    sim.events[-1]["tid"] = sim.events[-1]["args"]["stream"] = 21
    found = _path(sim)
    assert "second" in found.top
    assert "more" not in found.top


def test_a_stream_waits_from_when_its_own_work_is_done() -> None:
    """Also where what it waits for ends in the nanosecond in which it goes on."""
    kernels = [("own", 100, 50, 7), ("other", 100, 300, 21), ("last", 400, 90, 7)]
    sim = _three_kernels(kernels, wait_for=21)
    assert _path(sim).event_waits == {"stream 7 for stream 21": 400 - 150}


@pytest.mark.parametrize(("number", "record"), [(390, 380), (290, 150)])
def test_a_wait_asked_for_later_or_for_what_was_sent_later_is_none_of_a_kernels(
    number: int, record: int
) -> None:
    sim = _two_streams(wait_for=None)
    _wait(sim, 60, number, 7, 21, record)
    assert _path(sim).event_waits == {}


def test_of_several_waits_the_one_that_is_over_last_holds_a_kernel() -> None:
    for order in ((20, 21), (21, 20)):
        sim = _two_streams(wait_for=None)
        for k, stream in enumerate(order):
            _wait(sim, 30 + k, 290 + k, 7, stream, 280 + k)
        assert set(_path(sim).event_waits) == {"stream 7 for stream 20"}
    # where the event was recorded is not known: what had been sent when the wait was asked for
    sim = _two_streams(wait_for=21)
    (wait,) = (event for event in sim.events if event["cat"] == "cuda_sync")
    del wait["args"]["wait_on_cuda_event_record_corr_id"]
    assert set(_path(sim).event_waits) == {"stream 7 for stream 21"}


def test_nothing_waits_for_what_ends_after_it_began() -> None:
    kernels = [("own", 100, 50, 7), ("other", 100, 330, 21), ("last", 400, 90, 7)]
    found = _path(_three_kernels(kernels, wait_for=21))
    assert "other" not in found.top
    assert found.event_waits == {}


@pytest.mark.parametrize(
    "waits_for", ["stream", "event", "event, record unknown", "event, stream unknown"]
)
def test_a_host_that_waits_for_one_stream_does_not_wait_for_another(waits_for: str) -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for number, (name, start, dur, stream) in enumerate(
        [("other", 50, 350, 20), ("mine", 60, 338, 7)]
    ):
        external = sim.host("aten::mm", 10.0 * number, 8)
        correlation = sim.call("cudaLaunchKernel", 10.0 * number + 1, 5, external)
        sim.device(name, start, dur, correlation)
        sim.events[-1]["tid"] = sim.events[-1]["args"]["stream"] = stream
    if waits_for == "stream":
        number, kind = sim.call("cudaStreamSynchronize", 100, 302), "Stream Sync"
        args = {"stream": 7}
    else:
        record = sim.call("cudaEventRecord", 40, 2)
        if waits_for == "event":  # sent when the event had been recorded
            later = sim.call("cudaLaunchKernel", 60, 5, sim.host("aten::mm", 58, 9))
            sim.device("later", 399, 2, later)
            sim.events[-1]["tid"] = sim.events[-1]["args"]["stream"] = 7
        number, kind = sim.call("cudaEventSynchronize", 100, 302), "Event Sync"
        args = {"stream": -1, "wait_on_stream": 7}
        if waits_for == "event":
            args["wait_on_cuda_event_record_corr_id"] = record
        if waits_for == "event, stream unknown":
            args = {"stream": 7}
    args |= {"correlation": number, "device": 0}
    event = {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": 7}
    sim.events.append({**event, "ts": 101, "dur": 300, "args": args | {"cuda_sync_kind": kind}})
    # of an event of nobody knows which stream, what ended last is the guess
    assert set(_path(sim).top) == {"other" if "stream unknown" in waits_for else "mine"}


def test_event_waits_of_a_trace_survive_export(tmp_path: Path) -> None:
    from perfkit.trace.read.save import save

    trace = load(_two_streams(wait_for=21).json())
    assert trace.waits == {290: (21, 280)}
    assert load(save(trace, tmp_path / "again.json")).waits == trace.waits


@needs_traces
def test_recorded_waits_of_real_traces() -> None:
    assert FOLDER is not None
    trace = load(FOLDER / "a100_alexnet_cuda_sync__hta.json.gz")
    assert len(trace.waits) == 20
    found = critical_path(trace)
    assert sum(found.by_class_us.values()) == pytest.approx(found.wall_us, abs=0.002)
    assert {name.split(" for ")[0] for name in found.event_waits} <= {"stream 7", "stream 20"}
    assert found.event_waits
    assert sum(found.event_waits.values()) < found.wall_us
    tiny = load(FOLDER / "a100_tiny_event_sync_cuda_sync_cat__hta.json.gz")
    assert tiny.waits == {1536: (7, 1533), 1542: (7, 1539)} or len(tiny.waits) == 2


def test_a_wait_for_a_device_that_is_done_is_the_hosts_own_time() -> None:
    sim = Simulated()
    sim.step(0, 0, 600)
    sim.kernel("aten::mm", 0, 10, 90)
    sim.host("aten::relu", 100, 400)
    sim.call("cudaDeviceSynchronize", 500, 10)
    found = _path(sim)
    assert found.top == {}
    assert {kind: us for kind, us in found.by_class_us.items() if us} == {
        "host: forward": 410,
        "host: sync": 10,
        "host: other": 180,
    }


def test_on_a_cpu_the_path_is_the_hosts_and_ops_are_computing() -> None:
    found = _path(cpu_training(3, wait=100), 1)
    assert found.bound_by == "compute"
    assert found.by_class_us["host: data wait"] == found.bounds_us["data"] == 100
    assert found.by_class_us["host: backward"] == 500
    assert found.warnings == ()


def test_without_correlation_the_path_still_adds_up() -> None:
    sim = gpu_training(3, item=True, restart=10)
    for event in sim.events:
        event["args"].pop("correlation", None)
    assert _path(sim).wall_us > 0


def test_without_correlation_a_wait_leads_to_the_device_and_along_its_kernels() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.call("cudaDeviceSynchronize", 20, 740)
    for k in range(3):
        sim.device("gemm", 100 + 250 * k, 150, 0)
    for event in sim.events:
        event["args"].pop("correlation", None)
    found = _path(sim)
    assert _path(gpu_training(2)).warnings == ()
    assert "no correlation was recorded" in found.warnings[0]
    assert {kind: us for kind, us in found.by_class_us.items() if us} == {
        "device: compute": 450,
        "kernel gap": 200,  # what was queued meanwhile is not known
        "host: sync": 80,
        "sync return": 10,
        "host: other": 20 + 240,
    }


def test_by_default_it_is_of_a_step_of_median_length() -> None:
    sim = Simulated()
    for number, (start, dur) in enumerate(((0, 900), (900, 300), (1_200, 500))):
        sim.step(number, start, dur)
        sim.host("aten::mm", start, dur - 100)
    assert _path(sim).step == "ProfilerStep#2"


def test_there_is_no_such_step() -> None:
    with pytest.raises(UsageError, match="step is"):
        critical_path(load(cpu_training(2).json()), step=2)
    assert critical_path(load(cpu_training(2).json()), step=-2).step == "ProfilerStep#0"


def test_kernels_of_a_graph_belong_to_the_path_though_the_host_has_long_gone_on() -> None:
    sim = Simulated()
    sim.host("aten::copy_", 0, 20)
    replay = sim.call("hipGraphLaunch", 30, 117)  # it returns between two kernels
    for i in range(40):
        sim.device("gemm", 60 + 30 * i, 25, replay)
    found = _path(sim)
    assert found.bound_by == "compute"
    assert found.by_class_us["device: compute"] == 40 * 25
    assert found.by_class_us["kernel gap"] == 39 * 5


def test_gaps_between_queued_kernels_are_not_computing() -> None:
    sim = Simulated()
    sim.step(0, 0, 10_000)
    for i in range(10):
        sim.kernel("aten::mm", 10 * i, 200 + 900 * i, 100)
    sim.item(150, 9_800)
    found = _path(sim)
    assert found.bound_by == "gaps"
    assert found.bounds_us["compute"] == 1_000
    assert "gaps between kernels that were queued" in " ".join(str(found).split())
