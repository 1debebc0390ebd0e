"""Steps are found from the trace alone."""

from __future__ import annotations

from simulated_traces import ENGINE, Simulated, cpu_training

from perfkit.trace import find_steps, load


def _without_marks(sim: Simulated) -> Simulated:
    sim.events = [e for e in sim.events if not e["name"].startswith("ProfilerStep")]
    return sim


def test_profiler_marks_come_first() -> None:
    steps = find_steps(load(cpu_training(4).json()))
    assert steps.names == tuple(f"ProfilerStep#{i}" for i in range(4))
    assert steps.how_found == "ProfilerStep marks"
    assert (steps.end_ns - steps.start_ns == 870_000).all()


def test_the_same_marks_on_the_device_are_no_steps() -> None:
    sim = cpu_training(2)
    sim.device("ProfilerStep#0", 1_000, 900, 1, cat="gpu_user_annotation")
    assert len(find_steps(load(sim.json()))) == 2


def test_nested_and_overlapping_marks_do_not_overlap_afterwards() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.step(7, 10, 50)  # another profiler's, inside
    sim.step(1, 90, 100)  # begins before the first has ended
    sim.step(2, 300, 0)
    sim.host("aten::mm", 5, 10)
    steps = find_steps(load(sim.json()))
    assert steps.start_ns.tolist() == [0, 100_000]
    assert steps.end_ns.tolist() == [100_000, 190_000]
    assert any("left out" in w for w in steps.warnings)


def test_without_marks_a_step_ends_with_its_optimizer() -> None:
    trace = load(_without_marks(cpu_training(4)).json())
    steps = find_steps(trace)
    assert steps.how_found == "ends of Optimizer.step"
    assert len(steps) == 3  # where the first one began is unknown
    assert (steps.end_ns - steps.start_ns == 870_000).all()
    assert any("unknown" in w for w in steps.warnings)


def test_with_two_optimizers_a_step_is_a_cycle_of_the_first() -> None:
    sim = Simulated()
    for i in range(3):
        at = i * 1_000
        for name, offset in (("Adam", 0), ("SGD", 400)):
            sim.host("autograd::engine::evaluate_function: MmBackward0", at + offset + 10, 50)
            sim.label(f"Optimizer.step#{name}.step", at + offset + 100, 50)
    steps = find_steps(load(sim.json()))
    assert "Optimizer.step#Adam.step, the first of 2" in steps.how_found
    assert (steps.end_ns - steps.start_ns == 1_000_000).all()
    assert len(steps) == 2


def test_two_optimizers_of_one_class_after_one_backward_are_one_step() -> None:
    sim = Simulated()
    for i in range(3):
        sim.host("autograd::engine::evaluate_function: MmBackward0", i * 1_000, 50, tid=ENGINE)
        sim.label("Optimizer.step#Adam.step", i * 1_000 + 100, 50)
        sim.label("Optimizer.step#Adam.step", i * 1_000 + 200, 50)
    steps = find_steps(load(sim.json()))
    assert (steps.end_ns - steps.start_ns).tolist() == [1_000_000, 1_000_000]


def test_without_an_optimizer_the_whole_region_is_the_step() -> None:
    sim = Simulated()
    sim.host("aten::mm", 100, 10)
    sim.host("aten::mm", 400, 20)
    steps = find_steps(load(sim.json()))
    assert steps.names == ("whole region",)
    assert (steps.start_ns[0], steps.end_ns[0]) == (0, 320_000)


def test_points_belong_to_the_step_that_contains_them() -> None:
    import numpy as np

    steps = find_steps(load(cpu_training(2).json()))
    points = np.array([-1, 0, 869_999, 870_000, 1_739_999, 1_740_000])
    assert steps.containing(points).tolist() == [-1, 0, 0, 1, 1, -1]
