"""Memory over time and what the peak was made of."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_traces import HOST, Simulated, cpu_training

from perfkit.trace import load, memory_curve


def _memory(sim: Simulated, at: float, n_bytes: int, **args: Any) -> None:
    sim.events.append(
        {
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST,
            "tid": HOST, "ts": at,
            "args": {"Bytes": n_bytes, "Device Type": 1, "Device Id": 0, **args},
        }
    )  # fmt: skip


def _training(total: int = 1_000) -> Simulated:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::mm", 100, 100)
    sim.host("autograd::engine::evaluate_function: MmBackward0", 300, 200)
    sim.host("aten::mm", 310, 50)
    for at, n_bytes, address in [
        (110, 400, 1), (120, 100, 2), (150, -100, 2), (320, 700, 2), (450, -400, 1), (600, -700, 2),
    ]:  # fmt: skip
        total += n_bytes
        _memory(
            sim, at, n_bytes, Addr=address,
            **{"Total Allocated": total, "Total Reserved": 4_096},
        )  # fmt: skip
    return sim


def test_curve_peak_and_composition() -> None:
    (one,) = memory_curve(load(_training().json())).devices
    assert one.device == "cuda:0"
    assert one.allocated_bytes.tolist() == [1_400, 1_500, 1_400, 2_100, 1_700, 1_000]
    assert (one.peak_bytes, one.peak_at_ns, one.peak_reserved_bytes) == (2_100, 320_000, 4_096)
    assert {k: v for k, v in one.by_phase_bytes.items() if v} == {
        "before the recording": 1_000,
        "forward": 400,
        "backward": 700,
    }
    assert sum(one.by_phase_bytes.values()) == one.peak_bytes
    assert one.by_op_bytes == {"aten::mm": 1_100}
    assert one.is_absolute


def test_a_recording_from_the_beginning_has_all_of_the_peak() -> None:
    (one,) = memory_curve(load(_training(0).json())).devices
    phases = {k: v for k, v in one.by_phase_bytes.items() if v}
    assert phases == {"forward": 400, "backward": 700}


def test_blocks_whose_end_was_not_recorded_leave_the_peak_without_parts() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    _memory(sim, 110, 400, Addr=1, **{"Total Allocated": 400})
    _memory(sim, 320, 700, Addr=2, **{"Total Allocated": 700})  # the 400 are gone
    (one,) = memory_curve(load(sim.json())).devices
    assert (one.peak_bytes, one.by_phase_bytes, one.by_op_bytes) == (700, {}, {})


def test_older_traces_hold_only_changes() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    for at, n_bytes in [(10, -50), (20, 300), (30, -300)]:
        _memory(sim, at, n_bytes)
    found = memory_curve(load(sim.json()))
    (one,) = found.devices
    assert not one.is_absolute
    assert one.allocated_bytes.tolist() == [0, 300, 0]
    assert one.by_phase_bytes == {}
    assert one.peak_reserved_bytes is None
    assert any("only changes" in w for w in found.warnings)


@pytest.mark.parametrize("totals", [(0, 0), (300, None)])
def test_totals_that_are_not_in_every_event_or_are_none_are_no_totals(
    totals: tuple[int | None, ...],
) -> None:
    """The CPU's allocator keeps none and writes 0."""
    sim = Simulated()
    sim.step(0, 0, 100)
    for at, n_bytes, total in zip((10, 20), (300, 200), totals, strict=True):
        _memory(sim, at, n_bytes, **({} if total is None else {"Total Allocated": total}))
    (one,) = memory_curve(load(sim.json())).devices
    assert not one.is_absolute
    assert one.allocated_bytes.tolist() == [300, 500]


def test_host_and_devices_stand_apart() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    _memory(sim, 10, 5)
    _memory(sim, 20, 6, **{"Device Id": 1})
    _memory(sim, 30, 7, **{"Device Type": 0, "Device Id": -1})
    found = memory_curve(load(sim.json())).devices
    assert [(d.device, d.peak_bytes) for d in found] == [("cuda:0", 5), ("cuda:1", 6), ("cpu", 7)]


def test_without_memory_events_there_is_no_answer() -> None:
    found = memory_curve(load(cpu_training(2).json()))
    assert found.devices == ()
    assert "not recorded" in str(found)
