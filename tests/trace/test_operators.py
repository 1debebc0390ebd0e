"""Self time by operator, device time joined to the op that launched it."""

from __future__ import annotations

import pytest
from simulated_traces import ENGINE, Simulated

from perfkit.trace import Operator, find_steps, load, operators


def _operators(sim: Simulated) -> dict[str, Operator]:
    trace = load(sim.json())
    return {o.name: o for o in operators(trace, find_steps(trace))}


def test_self_time_leaves_out_what_an_op_calls() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::linear", 100, 100)
    sim.host("aten::t", 105, 10)
    sim.label("my label", 115, 80)  # labels are not operators: their ops belong to linear
    sim.host("aten::addmm", 120, 70)
    found = _operators(sim)
    assert found["aten::linear"].self_us == 20
    assert found["aten::linear"].total_us == 100
    assert found["aten::addmm"].self_us == 70
    assert "my label" not in found
    assert sum(o.share for o in found.values()) == pytest.approx(1)


def test_an_op_that_calls_itself_counts_its_total_once() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::to", 100, 100)
    sim.host("aten::to", 110, 50)
    found = _operators(sim)["aten::to"]
    assert (found.count, found.self_us, found.total_us) == (2, 100, 100)


def test_only_what_begins_inside_a_step_counts() -> None:
    sim = Simulated()
    sim.host("aten::setup", 0, 50)
    sim.step(0, 100, 100)
    sim.host("aten::mm", 120, 10)
    sim.host("aten::mm", 250, 10)
    found = _operators(sim)
    assert set(found) == {"aten::mm"}
    assert found["aten::mm"].count == 1


def test_kernels_belong_to_the_op_that_launched_them() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.kernel("aten::mm", 100, 200, 77)
    sim.kernel("aten::add_", 300, 400, 33, tid=ENGINE)
    sim.host("autograd::engine::evaluate_function: X", 290, 100, tid=ENGINE)
    sim.device("orphan", 600, 50, 99_999)
    found = _operators(sim)
    assert (found["aten::mm"].device_us, found["aten::mm"].n_launches) == (77, 1)
    assert found["aten::add_"].device_us == 33
    assert sum(o.device_us for o in found.values()) == 110


def test_a_trace_without_ops_has_no_operators() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    assert _operators(sim) == {}


def test_all_that_a_graph_launch_starts_counts_once_to_whoever_launched_it() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for at, op in ((100, "CompiledFunction"), (300, "")):
        external = sim.host(op, at - 5, 30) if op else -1
        correlation = sim.call("cudaGraphLaunch", at, 20, external)
        for i in range(3):
            sim.device("gemm", at + 10 + 40 * i, 30, correlation)
    found = _operators(sim)
    inside, alone = found["CompiledFunction"], found["cudaGraphLaunch (no operator)"]
    assert (inside.device_us, inside.n_launches) == (90, 3)
    assert (alone.count, alone.device_us, alone.n_launches, alone.self_us) == (1, 90, 3, 20)
    assert sum(o.share for o in found.values()) == pytest.approx(1)
