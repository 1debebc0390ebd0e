"""Waits of the host under labels that the caller had set around single operators."""

from __future__ import annotations

from simulated_traces import ENGINE, Simulated, cpu_training

from perfkit.trace import load
from perfkit.trace.ask.waits import Wait, waits_under


def _is_label(name: str) -> bool:
    return name.startswith("line ")


def _waits(sim: Simulated) -> tuple[Wait, ...]:
    return waits_under(load(sim.json()), _is_label)


def test_an_item_is_one_wait_of_its_label_however_many_calls_it_takes() -> None:
    sim = Simulated()
    sim.host("line 1", 90, 100)
    external = sim.host("aten::_local_scalar_dense", 95, 90)
    sim.device("Memcpy DtoH (Device -> Pageable)", 110, 1,
               sim.call("cudaMemcpyAsync", 100, 10, external), "gpu_memcpy")  # fmt: skip
    sim.call("cudaStreamSynchronize", 112, 60, external)
    sim.host("line 2", 200, 20)
    (wait,) = _waits(sim)
    assert wait.label == "line 1"
    assert wait.op == "aten::_local_scalar_dense"
    assert wait.calls == ("cudaMemcpyAsync", "cudaStreamSynchronize")
    assert wait.copy == "Memcpy DtoH (Device -> Pageable)"
    assert wait.cost_us == 70


def test_one_label_that_runs_twice_waits_twice() -> None:
    sim = Simulated()
    for at in (0, 1_000):
        sim.host("line 1", at, 200)
        sim.item(at + 50, 30)
    waits = _waits(sim)
    assert [wait.label for wait in waits] == ["line 1", "line 1"]
    assert [wait.start_ns for wait in waits] == sorted(wait.start_ns for wait in waits)


def test_a_launch_is_no_wait_and_neither_is_a_copy_that_was_only_asked_for() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 100)
    sim.kernel("aten::mm", 10, 30, 50)
    sim.host("line 2", 200, 100)
    sim.copy("HtoD (Pinned -> Device)", 210, 5, 220, 30)
    assert _waits(sim) == ()


def test_a_transfer_that_is_waited_for_counts_with_its_copy() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 300)
    external = sim.host("aten::copy_", 5, 290)
    sim.device("Memcpy HtoD (Pageable -> Device)", 20, 200,
               sim.call("cudaMemcpyAsync", 10, 20, external), "gpu_memcpy")  # fmt: skip
    sim.call("cudaStreamSynchronize", 40, 240, external)
    (wait,) = _waits(sim)
    assert wait.calls == ("cudaMemcpyAsync", "cudaStreamSynchronize")
    assert wait.copy == "Memcpy HtoD (Pageable -> Device)"
    assert wait.cost_us == 260


def test_the_backward_thread_counts_and_a_thread_of_a_library_does_not() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 100)
    sim.host("aten::mm", 10, 20)
    sim.host("autograd::engine::evaluate_function: IndexBackward0", 200, 300, tid=ENGINE)
    sim.host("line 2", 210, 200, tid=ENGINE)
    sim.call("cudaStreamSynchronize", 220, 100, tid=ENGINE)
    sim.call("cudaStreamSynchronize", 220, 100, tid=999)  # a pin-memory thread, say
    (wait,) = _waits(sim)
    assert (wait.label, wait.cost_us) == ("line 2", 100)


def test_a_wait_outside_of_all_labels_has_none() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 100)
    sim.call("cudaEventSynchronize", 150, 40)
    sim.host("extension::fused", 300, 100)
    sim.call("cudaStreamSynchronize", 310, 20)
    sim.call("cudaStreamSynchronize", 340, 20)
    lone, fused = _waits(sim)
    assert (lone.label, lone.op) == ("", "")
    assert (fused.label, fused.op) == ("", "extension::fused")
    assert fused.cost_us == 40


def test_the_innermost_label_is_the_one() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 300)
    sim.host("line 2", 50, 100)
    sim.item(60, 40)
    sim.host("extension::outer", 400, 300)
    sim.host("line 3", 410, 200)
    sim.call("cudaStreamSynchronize", 420, 20)
    external = sim.host("line 4", 500, 60)
    sim.call("cudaStreamSynchronize", 502, 5, external)
    sim.device("Memcpy DtoH (Device -> Pageable)", 512, 1,
               sim.call("cudaMemcpyAsync", 510, 10, external), "gpu_memcpy")  # fmt: skip
    first, second, third = _waits(sim)
    assert [wait.label for wait in (first, second, third)] == ["line 2", "line 3", "line 4"]
    assert second.op == third.op == "extension::outer"  # a label is no operator
    assert third.copy == "Memcpy DtoH (Device -> Pageable)"


def test_no_labels_and_no_runtime_calls_are_no_waits() -> None:
    sim = Simulated()
    sim.item(60, 40)
    assert _waits(sim) == ()
    assert waits_under(load(cpu_training(2).json()), lambda name: name == "aten::conv2d") == ()


def test_most_labels_may_be_in_the_backward_thread() -> None:
    sim = Simulated()
    sim.host("line 1", 0, 200)
    sim.item(50, 30)
    for at in range(300, 600, 50):
        sim.host("line 1", at, 40, tid=ENGINE)
    assert [wait.label for wait in _waits(sim)] == ["line 1"]
