"""Every ns of idle device time has exactly one cause."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.trace import breakdown, critical_path, find_steps, idle, launch_queue, load
from perfkit.trace.ask.idle import IDLE_CAUSES, Sitting, idle_causes, sitting


def _idle(sim: Simulated, step: int = 1) -> dict[str, int]:
    """Cause → µs of one step, without the empty causes; checks that all idle time is there."""
    trace = load(sim.json())
    causes = idle_causes(trace, find_steps(trace))
    for cause, split in zip(causes, breakdown(trace).steps, strict=True):
        assert tuple(cause) == IDLE_CAUSES
        assert sum(cause.values()) == split.device_ns["idle"]
    return {k: v // 1_000 for k, v in causes[step].items() if v}


def test_a_cpu_trace_has_no_idle_device() -> None:
    trace = load(cpu_training(2).json())
    assert idle_causes(trace, find_steps(trace)) == ()
    assert sitting(trace, find_steps(trace), "sync") is None
    found = idle(trace)
    assert found.total_us == found.median_ms == found.shares() == {}
    assert found.warnings == ("no device activity was recorded",)


def test_waiting_for_data() -> None:
    assert _idle(gpu_training(3, wait=400))["data"] == 400


def test_gaps_between_queued_kernels_are_nobodys_fault() -> None:
    found = _idle(gpu_training(3, n_kernels=10, kernel=95, every=100))
    assert set(found) == {"kernels", "launch", "host"}
    assert found["kernels"] >= 40  # 9 gaps of 5 µs, the last ones before the next launch


def test_slow_launches() -> None:
    # Each kernel is launched only when the last has ended: the host's op covers the gap.
    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 1_000, 1_000)
        for k in range(10):
            at = i * 1_000 + k * 100
            external = sim.host("aten::linear", at, 95)
            sim.device("gemm", at + 60, 40, sim.call("cudaLaunchKernel", at + 50, 5, external))
    assert _idle(sim)["launch"] == pytest.approx(600, abs=60)


def test_the_time_after_a_sync_is_the_syncs() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 0, 10, 490)
    sim.item(100, 402)  # the device has done its work at 501 and the host returns at 502
    sim.kernel("aten::mm", 700, 710, 290)  # given work again 200 µs later
    assert _idle(sim, 0)["sync"] == 209


@pytest.mark.parametrize("joined", [0, 10**6])
def test_a_device_that_never_idles_has_nothing_to_blame_a_wait_for(joined: int) -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.device("persistent", 0, 1_000, sim.call("cudaLaunchKernel", 0, 5) + joined)
    sim.call("cudaDeviceSynchronize", 500, 500)
    assert _idle(sim, 0) == {}
    assert critical_path(load(sim.json())).bound_by == "compute"


def test_other_work_of_the_host() -> None:
    assert _idle(gpu_training(3, python=500))["host"] == pytest.approx(500, abs=12)


def test_blocking_transfers() -> None:
    found = _idle(gpu_training(3, copy="HtoD (Pageable -> Device)", copy_call=300))
    assert found["copy"] == pytest.approx(295, abs=5)


def test_the_answer_adds_up_and_shows_itself() -> None:
    trace = load(gpu_training(3, wait=400, python=100).json())
    found = idle(trace)
    split = breakdown(trace)
    for step, causes in zip(split.steps, found.steps, strict=True):
        assert sum(causes.values()) == step.device_ns["idle"]
    assert sum(found.shares().values()) == pytest.approx(split.device_shares()["idle"], abs=1e-9)
    assert found.median_ms["data"] == pytest.approx(0.4)
    assert "waiting for data" in str(found)
    assert idle(load(cpu_training(2).json())).total_us == {}


def test_queued_gaps_beside_a_collective_are_communication() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i, (name, start, dur) in enumerate(
        [("gemm", 100, 100), ("ncclDevKernel_AllReduce", 210, 90), ("gemm", 330, 100),
         ("gemm", 440, 100)]
    ):  # fmt: skip
        sim.kernel("aten::mm", i * 12, start, dur, name=name)
    found = _idle(sim, 0)
    assert found["communication"] == 10 + 30
    assert found["kernels"] == 10


@pytest.mark.parametrize(("pause_us", "cause"), [(49, "kernels"), (50, "queued")])
def test_a_pause_between_queued_kernels_has_a_cause_from_50_us_on(
    pause_us: int, cause: str
) -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 10, 30, 400)
    sim.kernel("aten::mm", 30, 430 + pause_us, 1_000 - 430 - pause_us)
    found = _idle(sim, 0)
    assert found.pop(cause) >= pause_us
    assert not {"kernels", "queued"} & set(found)


@pytest.mark.parametrize(("gap_us", "causes"), [(2, {"kernels": 2}), (3, {"launch": 3})])
def test_without_correlation_a_gap_is_queued_below_3_us(
    gap_us: int, causes: dict[str, int]
) -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::mm", 0, 1_000)
    sim.device("gemm", 0, 100, -1)
    sim.device("gemm", 100 + gap_us, 900 - gap_us, -1)
    assert _idle(sim, 0) == causes


def test_a_collective_of_the_host_is_communication() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 0, 10, 90)
    sim.label("gloo:all_reduce", 200, 300)
    assert _idle(sim, 0)["communication"] == 300


def test_without_correlation_only_short_gaps_count_as_queued() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::mm", 0, 1_000)
    sim.device("gemm", 0, 100, -1)
    sim.device("gemm", 102, 100, -1)
    sim.device("gemm", 210, 790, -1)
    assert _idle(sim, 0) == {"kernels": 2, "launch": 8}
    assert any("correlation" in w for w in idle(load(sim.json())).warnings)


def test_what_was_queued_before_a_sync_is_not_the_syncs() -> None:
    # As in a trace of HolisticTraceAnalysis: ten kernels launched within 100 µs, 90 µs apart on
    # the device, and a host that waits for them all the time.
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i in range(10):
        sim.kernel("aten::mm", 10 * i, 20 + 98 * i, 8)
    sim.call("cudaStreamSynchronize", 120, 800)
    found = _idle(sim, 0)
    assert "sync" not in found or found["sync"] <= 90  # nothing is queued after the last kernel
    assert found["queued"] >= 8 * 90


def test_a_blocking_copy_on_an_idle_device_is_a_sync_also_in_a_gap_that_began_before() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 0, 10, 40)
    sim.host("aten::relu", 60, 40)  # the device is idle from 50 on
    external = sim.host("aten::copy_", 100, 702)
    copied = sim.call("hipMemcpyWithStream", 101, 700, external)
    sim.device("Memcpy DtoH (Device -> Host)", 795, 5, copied, "gpu_memcpy", bytes=256)
    sim.kernel("aten::mm", 850, 860, 140)
    found = _idle(sim, 0)
    assert found["launch"] <= 60
    assert found["sync"] >= 700
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 0, 10, 40)
    sim.host("aten::relu", 60, 40)
    sim.call("cudaDeviceSynchronize", 100, 800)
    sim.kernel("aten::mm", 900, 915, 85)
    assert _idle(sim, 0)["sync"] >= 800


def test_a_copy_that_takes_far_longer_than_its_bytes_need_waits() -> None:
    long = gpu_training(3, copy="HtoD (Pageable -> Device)", copy_call=400_000)
    found = _idle(long)
    assert found["sync"] == pytest.approx(400_000, abs=20)
    # after the wait, it copies: 20 MB from pageable memory take 10 ms at 2 GB/s
    sim = Simulated()
    sim.step(0, 0, 60_000)
    sim.kernel("aten::mm", 0, 10, 39_990)
    sim.copy("HtoD (Pageable -> Device)", 100, 50_000, 47_000, 3_000, n_bytes=20_000_000)
    sim.kernel("aten::mm", 50_102, 50_112, 9_888)
    found = _idle(sim, 0)
    assert found["copy"] == pytest.approx(7_000, abs=200)
    assert "sync" not in found or found["sync"] < 200


def test_waits_are_to_blame_for_no_more_than_they_lasted() -> None:
    sim = Simulated()
    sim.step(0, 0, 100_000)
    sim.kernel("aten::mm", 0, 10, 490)
    sim.item(100, 402)
    sim.kernel("aten::mm", 90_000, 90_010, 9_990)  # 89 ms of Python in between
    found = _idle(sim, 0)
    assert found["sync"] == pytest.approx(2 + 402, abs=3)
    assert found["host"] >= 88_000
    # what one short pause leaves of it, the next one may take
    sim = Simulated()
    sim.step(0, 0, 3_000)
    sim.kernel("aten::mm", 0, 10, 590)
    sim.call("cudaDeviceSynchronize", 100, 500)
    sim.kernel("aten::mm", 630, 640, 360)
    sim.call("cudaDeviceSynchronize", 700, 300)
    sim.kernel("aten::mm", 1_690, 1_700, 1_300)
    assert _idle(sim, 0)["sync"] == 40 + 700


def test_what_a_step_cuts_off_a_gap_does_not_change_its_cause() -> None:
    sim = Simulated()
    sim.host("aten::relu", 0, 10)
    sim.step(0, 500, 500)
    sim.call("cudaDeviceSynchronize", 400, 200)  # of a device that idled before
    sim.kernel("aten::mm", 890, 900, 70)
    sim.kernel("aten::mm", 910, 2_000, 10)  # queued for a millisecond, 30 µs of it in the step
    found = _idle(sim, 0)
    assert (found["sync"], found["queued"]) == (100, 30)


def test_gaps_within_a_graph_are_queued_from_its_first_kernel_on() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    replay = sim.call("cudaGraphLaunch", 10, 500)
    for i in range(30):
        sim.device("gemm", 100 + 30 * i, 20, replay)
    found = _idle(sim, 0)
    assert found["kernels"] == 29 * 10
    assert "queued" not in found


def test_a_long_call_of_the_driver_is_not_launching() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 0, 10, 90)
    sim.host("aten::convolution_backward", 100, 880)
    sim.call("hipFree", 110, 600)
    sim.kernel("aten::mm", 800, 810, 180)
    found = _idle(sim, 0)
    assert found["driver"] == 600


def test_a_launch_that_no_operator_encloses_is_a_launch() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.device("triton_poi_fused", 610, 390, sim.call("cuLaunchKernel", 100, 500))
    assert _idle(sim, 0)["launch"] == pytest.approx(500, abs=10)


def test_only_runtime_calls_are_enough_to_know_the_hosts_threads() -> None:
    sim = Simulated()
    sim.device("gemm", 110, 50, sim.call("hipLaunchKernel", 100, 5, tid=1))
    sim.device("gemm", 210, 50, sim.call("hipLaunchKernel", 200, 5, tid=2))
    for i in range(5):
        sim.call("hipGetDevice", 220 + 2 * i, 1, tid=2)
    sim.call("hipDeviceSynchronize", 300, 400, tid=1)
    assert _idle(sim, 0)["sync"] == pytest.approx(400, abs=10)


def _sits(kernel: bool, *, call: str = "hipMemcpyWithStream", waits: str = "") -> Simulated:
    """One step of 470 ms, for 463 of which the host sits in a call while the device idles."""
    sim = Simulated()
    sim.step(0, 0, 470_000)
    sim.kernel("aten::mm", 0, 10, 40)
    if kernel:
        launch = sim.call("hipLaunchKernel", 70, 10, sim.host("aten::relu", 60, 30))
        sim.device("relu", 463_050, 40, launch)
    external = sim.host("aten::copy_", 100, 463_020)
    copied = sim.call(call, 101, 9 if waits else 463_010, external)
    sim.device("Memcpy DtoH (Device -> Pinned)", 463_095, 5, copied, "gpu_memcpy", bytes=256)
    if waits:
        sim.call(waits, 111, 463_000, external)
    sim.kernel("aten::mm", 463_200, 463_210, 6_000)
    return sim


@pytest.mark.parametrize(
    ("call", "waits"),
    [("hipMemcpyWithStream", ""), ("cudaMemcpyAsync", "cudaStreamSynchronize")],
)
def test_a_copy_that_the_host_waits_for_is_no_work_that_it_had_queued(
    call: str, waits: str
) -> None:
    # .item() asks for its copy, then waits: the copy alone is in the queue meanwhile
    sim = _sits(False, call=call, waits=waits)
    found = _idle(sim, 0)
    assert found["sync"] >= 462_000
    assert found.get("queued", 0) < 10
    trace = load(sim.json())
    sat = sitting(trace, find_steps(trace), "sync")
    assert sat is not None
    assert (sat.call, sat.count, sat.n_queued) == (waits or call, 1, 0)
    for ms in (sat.idle_ms, sat.host_ms, sat.longest_ms):
        assert ms == pytest.approx(463, abs=1)
    assert sat.is_unexplained
    sim.step(1, 470_000, 100)
    again = load(sim.json())
    assert sitting(again, find_steps(again), "sync", [0]) == sat
    assert sitting(again, find_steps(again), "sync", [1]) is None
    path = critical_path(trace)  # it once called this a gap between queued kernels
    assert path.bound_by == "sync"
    assert sum(path.bounds_us.values()) == pytest.approx(path.wall_us, abs=0.002)


@pytest.mark.parametrize(("until", "is_most"), [(5_400, False), (5_600, True)])
def test_the_host_sat_in_a_call_that_covers_most_of_the_idle_time(
    until: float, is_most: bool
) -> None:
    """A call beside a busy device is none of them."""
    sim = Simulated()
    sim.step(0, 0, 10_000)
    sim.kernel("aten::mm", 0, 10, 4_990)
    sim.call("cudaStreamSynchronize", 50, 100)
    sim.call("cudaStreamSynchronize", 200, until - 200)
    sim.kernel("aten::mm", 5_990, 6_000, 4_000)
    trace = load(sim.json())
    found = sitting(trace, find_steps(trace), "sync")
    assert (found is not None) is is_most
    if found is not None:
        assert (found.count, found.idle_ms, found.host_ms) == (1, 0.6, 5.4)


def test_a_launch_may_be_the_first_event_of_a_trace() -> None:
    sim = Simulated()
    sim.device("gemm", 200, 10, sim.call("cudaLaunchKernel", 0, 5))
    trace = load(sim.json())
    assert _idle(sim, 0)["queued"] == 195
    (step,) = launch_queue(trace).steps
    assert (step.n_launches, launch_queue(trace).warnings) == (1, ())
    path = critical_path(trace)
    assert path.warnings == ()
    parts = {kind: us for kind, us in path.by_class_us.items() if us}
    assert parts == {"launch delay": 5, "device: compute": 10, "kernel gap": 195}


def test_a_kernel_that_waits_in_the_queue_meanwhile_is_queued() -> None:
    sim = _sits(True)
    assert _idle(sim, 0)["queued"] >= 462_000
    trace = load(sim.json())
    sat = sitting(trace, find_steps(trace), "queued")
    assert sat is not None
    assert (sat.call, sat.n_queued) == ("hipMemcpyWithStream", 1)
    assert not sat.is_unexplained
    assert sitting(trace, find_steps(trace), "launch") is None
    assert critical_path(trace).bound_by == "gaps"


def test_what_is_doubtful_is_told_only_where_it_is() -> None:
    sim = gpu_training(3, n_kernels=5, wait=200)
    assert idle(load(sim.json())).warnings == ()
    for event in sim.events:
        event["args"].pop("correlation", None)
    assert any("no correlation" in doubt for doubt in idle(load(sim.json())).warnings)
    sim.events[:] = [event for event in sim.events if event["cat"] == "kernel"]
    assert any("nothing of the host" in doubt for doubt in idle(load(sim.json())).warnings)


def test_one_call_is_told_with_its_length_and_several_with_their_number() -> None:
    assert Sitting("cudaFree", 1, 463.0, 400.0, 0).words() == "cudaFree for 463 ms"
    short = Sitting("cudaFree", 2, 9.0, 8.0, 0, longest_ms=0.9)
    assert short.words() == "cudaFree (2 calls, 9.00 ms in all)"
    assert not short.is_unexplained


def test_a_wait_after_which_nothing_is_launched_has_delayed_nothing() -> None:
    """As at the end of an inference: the picture is on the host, and the host saves it."""
    sim = Simulated()
    sim.step(0, 0, 3_000)
    sim.kernel("aten::mm", 10, 30, 900)
    sim.item(40, 900)
    assert idle(load(sim.json())).total_us["sync"] < 60
    assert idle(load(sim.json())).total_us["host"] > 1_900
    sim.kernel("aten::mm", 2_900, 2_910, 50)  # which the wait has delayed
    assert idle(load(sim.json())).total_us["sync"] > 800
