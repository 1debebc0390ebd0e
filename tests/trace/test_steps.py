"""Steps are found from the trace alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_traces import ENGINE, SINGLE, WORKERS, Simulated, cpu_training
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.trace import breakdown, find_steps, load
from perfkit.trace.read.steps import REGION_MARK
from perfkit.trace.record.record import Recorder


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


def test_a_mark_that_begins_as_the_loop_ends_is_no_step() -> None:
    """As in a trace of one batch: a step of 14 µs was told, and not a word of the 10 ms before."""
    sim = _without_marks(cpu_training(4))
    sim.step(1, 4_000, 14)
    assert find_steps(load(sim.json())).how_found == "ends of Optimizer.step"
    sim.host("aten::mm", 4_005, 5)
    assert find_steps(load(sim.json())).how_found == "ProfilerStep marks"


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


def _evaluation(n: int, *, loader: str = SINGLE) -> Simulated:
    """Batches of 1000 µs: 200 of fetch, 700 of forward; then the fetch that ends the epoch."""
    sim = Simulated()
    sim.label("perfkit region", 0, 1_000 * n + 100)
    for i in range(n):
        sim.label(loader, i * 1_000, 200)
        sim.host("aten::stack", 50 + i * 1_000, 100)
        sim.host("aten::linear", 210 + i * 1_000, 700)
    sim.label(loader, n * 1_000, 50)
    return sim


@pytest.mark.parametrize("loader", [SINGLE, WORKERS])
def test_without_an_optimizer_a_step_is_a_batch(loader: str) -> None:
    trace = load(_evaluation(4, loader=loader).json())
    steps = find_steps(trace)
    assert steps.how_found == "fetches of the DataLoader"
    assert steps.names == ("batch 1", "batch 2", "batch 3", "batch 4")
    assert steps.start_ns.tolist() == [i * 1_000_000 for i in range(4)]
    assert (steps.end_ns - steps.start_ns == 1_000_000).all()
    assert steps.warnings == ()
    assert find_steps(load(_evaluation(1, loader=loader).json())).names == ("batch 1",)
    shares = breakdown(trace, steps).shares()
    assert shares["data wait"] == pytest.approx(0.2)
    assert shares["forward"] == pytest.approx(0.7)


def test_the_end_of_an_epoch_is_no_batch_and_its_time_in_none() -> None:
    sim = _evaluation(3)
    for name, at in (("aten::empty", 3_100), ("aten::random_", 3_110), ("aten::item", 3_120)):
        sim.host(name, at, 5)  # the seed of the next epoch
    for i in range(2):
        sim.label(SINGLE, 3_300 + i * 1_000, 200)
        sim.host("aten::linear", 3_510 + i * 1_000, 700)
    sim.label(SINGLE, 5_300, 50)
    steps = find_steps(load(sim.json()))
    assert (steps.end_ns - steps.start_ns).tolist() == [1_000_000] * 5
    assert steps.start_ns[3] - steps.end_ns[2] == 300_000


def test_two_loaders_that_are_read_together_are_one_batch() -> None:
    sim = Simulated()
    for i in range(4):
        sim.label(SINGLE, i * 1_000, 100)
        sim.label(WORKERS, i * 1_000 + 110, 100)
        sim.host("aten::linear", i * 1_000 + 300, 600)
    steps = find_steps(load(sim.json()))
    assert len(steps) == 3
    assert (steps.end_ns - steps.start_ns == 1_000_000).all()
    assert steps.warnings == ("what follows the last fetch is in no step: its end is unknown",)


def test_a_loader_inside_of_a_data_set_makes_no_steps() -> None:
    sim = _evaluation(3)
    for i in range(3):
        sim.label(SINGLE, 10 + i * 1_000, 30)
        sim.host("aten::mul", 45 + i * 1_000, 3)
    steps = find_steps(load(sim.json()))
    assert (steps.end_ns - steps.start_ns).tolist() == [1_000_000] * 3


def test_a_few_fetches_in_a_long_region_are_not_what_it_is_about() -> None:
    sim = _evaluation(2)
    for i in range(20):
        sim.host("aten::linear", 3_000 + i * 500, 400)
    assert find_steps(load(sim.json())).names == ("whole region",)


@pytest.mark.parametrize(
    ("until", "names"), [(4_000, ("batch 1", "batch 2")), (4_100, ("whole region",))]
)
def test_batches_are_steps_where_they_are_half_of_the_region(
    until: float, names: tuple[str, ...]
) -> None:
    sim = _evaluation(2)
    sim.host("aten::linear", 3_000, until - 3_000)
    assert find_steps(load(sim.json())).names == names


def _passes(ends: list[float], *, until: float) -> Simulated:
    """Passes that end at these times, in a region that perfkit recorded from its beginning."""
    sim = Simulated()
    sim.label(REGION_MARK, 0, until)
    for i, end in enumerate(ends):
        sim.host("aten::mm", end - 50, 20, **{"Sequence number": i})
        sim.host("autograd::engine::evaluate_function: MmBackward0", end - 20, 20)
    return sim


@pytest.mark.parametrize(
    ("ends", "until", "n_steps", "said"),
    [
        ([100, 900], 1_000, 1, "2 backward passes are in it"),  # of one step nothing can be said
        ([100, 400, 600], 1_000, 2, "50 % of the recorded time is before the first"),
        ([100, 400, 590], 1_000, 1, "3 backward passes are in it"),
        ([100, 500, 990], 1_000, 2, "11 % of the recorded time is before the first"),
        ([100, 500, 1_000], 1_000, 2, ""),
    ],
)
def test_several_backward_passes_are_steps_where_they_are_most_of_the_region(
    ends: list[float], until: float, n_steps: int, said: str
) -> None:
    steps = find_steps(load(_passes(ends, until=until).json()))
    assert len(steps) == n_steps
    assert any(said in warning for warning in steps.warnings)
    assert any("recorded time is before" in w for w in steps.warnings) is ("time is" in said)


def test_one_backward_pass_is_no_doubt() -> None:
    assert find_steps(load(_passes([100], until=200).json())).warnings == ()


def test_a_single_batch_or_a_loader_without_work_is_no_loop() -> None:
    sim = Simulated()
    sim.label(SINGLE, 0, 100)
    sim.host("aten::linear", 200, 600)
    assert find_steps(load(sim.json())).names == ("whole region",)
    sim = Simulated()
    for i in range(5):
        sim.label(SINGLE, i * 1_000, 900)
    assert find_steps(load(sim.json())).names == ("whole region",)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_real_evaluation_has_one_step_a_batch(workers: int) -> None:
    data = TensorDataset(torch.randn(96, 64), torch.zeros(96))
    # Most of the region has to be steps, or the loop is not what it is about: the worker is started
    # once, however large this process has become, and each batch has some work.
    loader = DataLoader(
        data, batch_size=16, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048)).eval()
    with Recorder(max_seconds=120) as recorder, torch.no_grad():
        for _ in range(2):
            for x, _ in loader:
                for _ in range(20):
                    model(x)
    trace = recorder.recording.trace
    steps = find_steps(trace)
    assert steps.how_found == "fetches of the DataLoader"
    assert len(steps) == 2 * 96 // 16
    linear = trace.named(lambda n: n == "aten::linear")
    per_step = np.bincount(steps.containing(trace.start_ns[linear]), minlength=12)
    assert per_step.tolist() == [40] * 12


def test_without_an_optimizer_the_whole_region_is_the_step() -> None:
    sim = Simulated()
    sim.host("aten::mm", 100, 10)
    sim.host("aten::mm", 400, 20)
    steps = find_steps(load(sim.json()))
    assert steps.names == ("whole region",)
    assert (steps.start_ns[0], steps.end_ns[0]) == (0, 320_000)


def test_points_belong_to_the_step_that_contains_them() -> None:
    steps = find_steps(load(cpu_training(2).json()))
    points = np.array([-1, 0, 869_999, 870_000, 1_739_999, 1_740_000])
    assert steps.containing(points).tolist() == [-1, 0, 0, 1, 1, -1]


def test_the_profilers_own_last_wait_is_no_part_of_the_code() -> None:
    # it makes the context of a device that the code never used: 892 ms after 1 ms of code
    sim = Simulated()
    sim.label("perfkit region", 0, 1_000)
    sim.host("aten::add", 100, 800)
    sim.call("cudaDeviceSynchronize", 1_010, 892_000)
    trace = load(sim.json())
    steps = find_steps(trace)
    assert (steps.end_ns - steps.start_ns).tolist() == [1_000_000]
    assert breakdown(trace, steps).shares()["sync"] == 0


def test_the_codes_own_wait_for_the_device_counts() -> None:
    sim = Simulated()
    sim.label("perfkit region", 0, 10_000)
    sim.kernel("aten::mm", 100, 150, 8_000)
    sim.call("cudaDeviceSynchronize", 300, 7_900)
    steps = find_steps(load(sim.json()))
    assert (steps.end_ns - steps.start_ns).tolist() == [10_000_000]


@pytest.mark.parametrize(
    "stop",
    [
        "torch/profiler/profiler.py(710): __exit__",
        "<built-in method _disable_profiler of PyCapsule object>",
    ],
)
@pytest.mark.parametrize("misplaced", [False, True])
def test_the_profiler_starting_and_stopping_is_no_part_of_the_region(
    stop: str, misplaced: bool
) -> None:
    """Of a stranger's trace with stacks; some frames of such a one were 657 ms after its end."""
    sim = Simulated()
    sim.host("PyTorch Profiler (0)", 0, 7_500, "Trace", "PyTorch Profiler")
    sim.host("bench.py(1): <module>", 50, 900_000 if misplaced else 7_400, "python_function")
    sim.host("torch/profiler/profiler.py(695): __enter__", 60, 5_940, "python_function")
    sim.host("bench.py(9): load", 6_010, 90, "python_function")
    sim.kernel("aten::mm", 6_100, 6_200, 800)
    at = 658_000 if misplaced else 7_100
    sim.host(stop, at, 300, "python_function")
    steps = find_steps(load(sim.json()))
    begun_us = 6_000
    assert (steps.end_ns - steps.start_ns).tolist() == [
        ((7_000 if misplaced else 7_100) - begun_us) * 1_000
    ]


@pytest.mark.parametrize("with_stack", [False, True])
def test_a_recording_that_stops_within_optimizer_step_has_no_hook(
    with_stack: bool, tmp_path: Path
) -> None:
    """Torch ends the label of LBFGS's step, whose closures go on, after it has gone through all
    events: that was told as a hook of the optimizer.
    """
    sim = Simulated()
    sim.host("Optimizer.step#LBFGS.step", 100, 90_000, "user_annotation")
    for begin in range(200, 40_000, 400):
        sim.host("aten::mm", begin, 390, "cpu_op")
    sim.host("PyTorch Profiler (0)", 0, 40_100, "Trace", "PyTorch Profiler")
    if with_stack:
        sim.host("train.py(1): main", 50, 40_000, "python_function")
    steps = find_steps(load(sim.json()))
    assert (steps.end_ns - steps.start_ns).tolist() == [40_000_000 + 50_000 * with_stack]
    file = tmp_path / "trace.json"
    file.write_bytes(sim.json())
    assert "hook" not in perfkit.open_trace(str(file)).to_text()


def test_functions_that_were_open_when_the_recording_stopped_do_not_make_the_region_longer() -> (
    None
):
    """As in traces whose program ran on: the functions around it have no end of their own."""
    sim = Simulated()
    sim.kernel("aten::mm", 1_000, 1_010, 400)
    sim.host("train.py(1): main", 900, 90_000, "python_function")
    sim.host("<built-in method synchronize>", 1_020, 80_000, "python_function")
    sim.host("PyTorch Profiler (0)", 890, 50_000, "Trace", "PyTorch Profiler")
    trace = load(sim.json())
    steps = find_steps(trace)
    assert steps.end_ns[0] - trace.start_ns[trace.named(lambda n: n == "sgemm")][0] == 400_000
    sim.host("train.py(9): save", 1_500, 20_000, "python_function")  # this one has
    trace = load(sim.json())
    last = trace.named(lambda n: n == "train.py(9): save")
    assert find_steps(trace).end_ns[0] == trace.end_ns[last][0]
