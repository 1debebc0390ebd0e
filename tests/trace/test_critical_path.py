"""The critical path of a step: its parts add up to it, and the most of them bounds it."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.trace import CriticalPath, critical_path, load
from perfkit.trace.critical_path import PATH_CLASSES


def _path(sim: Simulated, step: int | None = None) -> CriticalPath:
    found = critical_path(load(sim.json()), step=step)
    assert tuple(found.by_class_us) == PATH_CLASSES
    assert sum(found.by_class_us.values()) == pytest.approx(found.wall_us, abs=0.002)
    assert sum(found.bounds_us.values()) == pytest.approx(found.wall_us, abs=0.002)
    assert sum(p.dur_us for p in found.parts) == pytest.approx(found.wall_us, abs=0.002)
    starts = [p.start_us for p in found.parts]
    assert starts == sorted(starts)
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


def test_on_a_cpu_the_path_is_the_hosts_and_ops_are_computing() -> None:
    found = _path(cpu_training(3, wait=100), 1)
    assert found.bound_by == "compute"
    assert found.by_class_us["host: data wait"] == 100
    assert found.by_class_us["host: backward"] == 500


def test_without_correlation_the_path_still_adds_up() -> None:
    sim = gpu_training(3, item=True, restart=10)
    for event in sim.events:
        event["args"].pop("correlation", None)
    assert _path(sim).wall_us > 0


def test_there_is_no_such_step() -> None:
    with pytest.raises(IndexError):
        critical_path(load(cpu_training(2).json()), step=7)
