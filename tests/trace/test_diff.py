"""What is new, gone, longer or shorter between two traces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.trace import diff, load


def _trace(n_steps: int, ops: dict[str, float], kernel: float) -> Simulated:
    sim = Simulated()
    for i in range(n_steps):
        at = i * 1_000.0
        sim.step(i, at, 1_000)
        for name, dur in ops.items():
            sim.host(name, at, dur)
            at += dur
        sim.device("gemm", i * 1_000 + 500, kernel, len(sim.events) + 1)
    return sim


def test_changes_are_per_step_and_ranked() -> None:
    before = load(_trace(2, {"aten::mm": 100, "aten::relu": 50, "aten::add": 20}, 100).json())
    after = load(_trace(5, {"aten::mm": 300, "aten::gelu": 30, "aten::add": 21}, 60).json())
    found = diff(before, after)
    changes = {(c.kind, c.name): c for c in found.changes}
    assert {name: c.status for (_, name), c in changes.items()} == {
        "aten::mm": "grew",
        "aten::relu": "went",
        "aten::gelu": "came",
        "aten::add": "same",
        "gemm": "shrank",
    }
    assert [c.name for c in found.changes] == [
        "aten::mm", "aten::relu", "gemm", "aten::gelu", "aten::add",
    ]  # fmt: skip
    assert changes["op", "aten::mm"].delta_ms == pytest.approx(0.2)
    assert changes["kernel", "gemm"].delta_ms == pytest.approx(-0.04)
    assert changes["op", "aten::gelu"].before_ms == 0
    assert found.host_ms["forward"] == (pytest.approx(0.17), pytest.approx(0.351))
    assert found.ratio == 1
    assert found.device_ms["compute"] == (pytest.approx(0.1), pytest.approx(0.06))
    assert found.warnings == ()


def test_a_change_is_a_microsecond_and_a_tenth() -> None:
    """The larger of the two: of 4 µs one is the microsecond, of 100 µs one is the tenth."""

    def status(before: float, after: float) -> str:
        traces = [load(_trace(2, {"aten::mm": us}, 100).json()) for us in (before, after)]
        return next(c.status for c in diff(*traces).changes if c.kind == "op")

    assert [status(4, 4.9), status(4, 5.1)] == ["same", "grew"]
    assert [status(4, 3.1), status(4, 2.9)] == ["same", "shrank"]
    assert [status(100, 109), status(100, 111)] == ["same", "grew"]


def test_a_trace_against_itself_has_no_changes() -> None:
    trace = load(gpu_training(3, wait=50).json())
    found = diff(trace, trace)
    assert all(c.status == "same" and c.delta_ms == 0 for c in found.changes)
    assert {c.before_count for c in found.changes if c.name in ("aten::linear", "sgemm")} == {10}
    longer = diff(load(gpu_training(3, wait=1_060).json()), trace)
    assert longer.ratio == pytest.approx(2_070 / 1_060)
    one, none = replace(trace, source="a.json"), replace(trace, source="")
    assert diff(one, none).names == ("a.json", "second")
    assert diff(none, one).names == ("first", "a.json")


def test_traces_that_hardly_compare_say_so() -> None:
    found = diff(load(cpu_training(3).json()), load(gpu_training(3).json()))
    assert found.device_ms == {}
    assert diff(load(gpu_training(3).json()), load(cpu_training(3).json())).device_ms == {}
    assert any("only one" in w for w in found.warnings)
    assert not any("two ways" in w for w in found.warnings)
    unmarked = cpu_training(3)
    unmarked.events[:] = [e for e in unmarked.events if "ProfilerStep" not in e["name"]]
    (said,) = (
        w
        for w in diff(load(cpu_training(3).json()), load(unmarked.json())).warnings
        if "two ways" in w
    )
    assert "(ProfilerStep marks; ends of Optimizer.step)" in said
