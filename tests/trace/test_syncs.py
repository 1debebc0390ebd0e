"""A sync is a runtime call in which the host waited, reported with its op."""

from __future__ import annotations

from simulated_traces import Simulated, cpu_training, gpu_training

from perfkit.trace import Sync, find_steps, load, syncs
from perfkit.trace.ask.syncs import all_syncs, times_waited


def _syncs(sim: Simulated) -> tuple[Sync, ...]:
    trace = load(sim.json())
    return syncs(trace, find_steps(trace))


def test_item_is_told_with_its_op_copy_and_cost() -> None:
    sim = Simulated()
    for i in range(3):
        sim.step(i, i * 1_000, 1_000)
        sim.item(i * 1_000 + 100, 50)
    (found,) = _syncs(sim)
    assert found.call == "cudaMemcpyAsync"
    assert found.op == "aten::_local_scalar_dense"
    assert found.ops == ("aten::item", "aten::_local_scalar_dense")
    assert found.copy == "Memcpy DtoH (Device -> Pageable)"
    assert not found.is_transfer
    assert (found.stack, found.at_def) == ("", False)
    assert (found.count, found.per_step, found.cost_us) == (3, 1, 150)


def test_a_blocking_transfer_is_told_apart() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.copy("HtoD (Pageable -> Device)", 100, 200, 150, 100)
    (found,) = _syncs(sim)
    assert found.is_transfer
    assert found.op == "aten::copy_"


def test_a_copy_and_the_wait_for_it_are_one_wait_and_those_of_two_lines_are_two() -> None:
    sim = Simulated()
    for i in range(3):
        at = i * 1_000
        sim.step(i, at, 1_000)
        for line, begin in (("train.py(1): step", at + 100), ("train.py(2): step", at + 300)):
            sim.item(begin, 50)
            op = sim.events[-3]["args"]
            op["Call stack"] = line
            sim.call("cudaStreamSynchronize", begin + 50, 1, op["External id"])
        sim.call("cudaDeviceSynchronize", at + 500, 100)
        sim.copy("HtoD (Pageable -> Device)", at + 700, 200, at + 750, 100)
    found = _syncs(sim)
    assert sum(one.count for one in found) == 3 * 6
    assert times_waited(found) == 3 * 4
    said = " ".join(str(all_syncs(load(sim.json()), find_steps(load(sim.json())))).split())
    assert said.startswith("The host waits 4 times a step. 402 µs a step For the device or")


def test_the_op_is_the_enclosing_one_not_the_one_before() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::mm", 50, 20)
    sim.call("cudaDeviceSynchronize", 100, 100)
    (found,) = _syncs(sim)
    assert found.op == ""
    assert found.ops == ()


def test_the_costliest_stands_first_and_the_stack_is_the_ops() -> None:
    sim = Simulated()
    sim.step(0, 0, 2_000)
    sim.item(100, 50)
    stack = "train.py(12): step;train.py(40): main"
    sim.host("aten::nonzero", 490, 300, **{"Call stack": stack})
    sim.call("cudaStreamSynchronize", 500, 200)
    first, second = _syncs(sim)
    assert (first.op, first.stack) == ("aten::nonzero", stack)
    assert second.stack == ""


def test_without_a_stack_the_functions_around_it_are_told_with_their_def() -> None:
    sim = Simulated()
    sim.step(0, 0, 2_000)
    sim.host("train.py(12): main", 10, 1_900, "python_function")
    sim.host("train.py(40): step", 20, 900, "python_function")
    sim.host("aten::item", 90, 70)
    sim.label("my label", 95, 60)
    sim.call("cudaStreamSynchronize", 100, 50)
    (found,) = _syncs(sim)
    assert (found.stack, found.at_def) == ("train.py(40): step;train.py(12): main", True)
    assert (found.op, found.ops) == ("aten::item", ("aten::item", "my label"))
    stack = "train.py(44): step;train.py(60): main"  # of the call: that says more
    sim.host("aten::nonzero", 490, 300, **{"Call stack": stack})
    sim.call("cudaStreamSynchronize", 500, 200)
    assert (_syncs(sim)[0].stack, _syncs(sim)[0].at_def) == (stack, False)


def test_a_cpu_trace_has_no_syncs_whatever_its_ops() -> None:
    sim = cpu_training(2)
    sim.host("aten::item", 1_030, 20)
    assert _syncs(sim) == ()


def test_syncs_outside_of_the_steps_do_not_count() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.host("aten::mm", 10, 10)
    sim.call("cudaDeviceSynchronize", 500, 100)
    assert _syncs(sim) == ()


def test_a_copy_that_is_only_asked_for_is_no_wait() -> None:
    for kind, waits in (("HtoD (Pinned -> Device)", 0), ("HtoD (Pageable -> Device)", 3)):
        trace = load(gpu_training(3, copy=kind, copy_call=50).json())
        assert sum(s.count for s in syncs(trace, find_steps(trace))) == waits
