"""Every ns of a step is in one host class and, on a device, in one device class."""

from __future__ import annotations

import json
import random

import pytest
from simulated_traces import ENGINE, HOST, SINGLE, WORKERS, Simulated, cpu_training, gpu_training

from perfkit.trace import Breakdown, breakdown, idle, load
from perfkit.trace.ask.breakdown import DEVICE_CLASSES, HOST_CLASSES


def _host(sim: Simulated, step: int = 0) -> dict[str, int]:
    """Host class → µs of one step, without the empty classes."""
    split = breakdown(load(sim.json()))
    return {k: v // 1_000 for k, v in split.steps[step].host_ns.items() if v}


def _adds_up(split: Breakdown) -> None:
    for step in split.steps:
        assert tuple(step.host_ns) == HOST_CLASSES
        assert sum(step.host_ns.values()) == step.wall_ns
        if step.device_ns:
            assert tuple(step.device_ns) == DEVICE_CLASSES
            assert sum(step.device_ns.values()) == step.wall_ns
            assert sum(step.idle_ns.values()) == step.device_ns["idle"]


def test_a_cpu_step_is_split_into_its_parts() -> None:
    sim = cpu_training(3, wait=400, loader=SINGLE)
    assert _host(sim) == {
        "data wait": 400,
        "forward": 300,
        "backward": 500,
        "optimizer": 50,
        "other": 20,
    }
    split = breakdown(load(sim.json()))
    assert not split.has_device
    assert split.device_shares() == {}
    assert split.shares()["data wait"] == 400 / 1270
    assert sum(split.shares().values()) == pytest.approx(1, abs=1e-12)
    assert split.median_step_ms == 1.27
    assert [step.n_fetches for step in split.steps] == [1, 1, 1]
    _adds_up(split)


def test_figures_in_other_units_and_medians_over_uneven_steps() -> None:
    sim = Simulated()
    for i, (start, length) in enumerate([(0, 1_000), (1_000, 4_000), (5_000, 2_000)]):
        sim.step(i, start, length)
        sim.kernel("aten::mm", start, start + 100, length / 2)
    split = breakdown(load(sim.json()))
    assert [s.start_us for s in split.steps] == [0, 1_000, 5_000]
    assert [s.wall_us for s in split.steps] == [1_000, 4_000, 2_000]
    assert split.wall_ms == (1, 4, 2)
    assert split.median_step_ms == 2
    assert split.typical is split.steps[2]
    longest = split.steps[1]
    assert longest.device_us == {"compute": 2_000, "communication": 0, "copy": 0, "idle": 2_000}
    assert sum(longest.host_us.values()) == pytest.approx(4_000)
    assert longest.host_us["other"] == longest.host_ns["other"] / 1_000
    assert sum(split.median_ms().values()) == pytest.approx(2)


def test_a_step_that_only_idled_is_not_the_typical_one_unless_all_are() -> None:
    sim = Simulated()
    for i, length in enumerate([3_000, 1_000, 2_000]):
        sim.step(i, i * 3_000, length)
    assert breakdown(load(sim.json())).typical.wall_us == 2_000
    sim.host("aten::mm", 100, 50)  # in the longest, the only one with work in it
    split = breakdown(load(sim.json()))
    assert [s.is_empty for s in split.steps] == [False, True, True]
    assert split.typical is split.steps[0]


def test_a_step_whose_device_only_idled_is_empty_and_one_that_only_computed_is_not() -> None:
    sim = Simulated()
    for i in range(3):
        sim.step(i, i * 1_000, 1_000)
    sim.device("gemm", 1_100, 200, 1)  # launched before
    assert [s.is_empty for s in breakdown(load(sim.json())).steps] == [True, False, True]


def test_without_any_step_there_are_no_figures() -> None:
    none = Breakdown((), "no step")
    assert (none.median_step_ms, none.wall_ms, none.has_device) == (0.0, (), False)
    assert none.shares() == {}


@pytest.mark.parametrize(("pause_us", "backward_us"), [(1_000, 1_200), (1_001, 200)])
def test_two_parts_of_backward_are_one_up_to_a_millisecond_apart(
    pause_us: int, backward_us: int
) -> None:
    sim = Simulated()
    sim.step(0, 0, 10_000)
    sim.host("autograd::engine::evaluate_function: X", 2_000, 100)
    sim.host("autograd::engine::evaluate_function: X", 2_100 + pause_us, 100)
    assert _host(sim)["backward"] == backward_us


def test_ops_of_the_loader_are_data_wait_not_forward() -> None:
    sim = cpu_training(1, wait=400, loader=SINGLE)
    sim.host("aten::stack", 1_100, 200)
    assert _host(sim)["data wait"] == 400
    assert _host(sim)["forward"] == 300


@pytest.mark.parametrize(("device", "forward_us"), [(1, 900), (0, 100)])
def test_replicas_run_in_threads_whose_ops_are_not_recorded(device: int, forward_us: int) -> None:
    """``nn.DataParallel``: only their launches are; on one device it starts no threads."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.label("DataParallel.forward", 50, 900)
    sim.host("Broadcast", 60, 100)
    sim.device("sgemm", 600, 10, sim.call("cudaLaunchKernel", 590, 5, tid=201))
    sim.device("sgemm", 600, 5, sim.call("cudaLaunchKernel", 590, 5, tid=202), device=device)
    assert _host(sim) | {"forward": forward_us, "other": 1_000 - forward_us} == _host(sim)
    idle_us = idle(load(sim.json())).total_us
    assert idle_us["launch"] == forward_us - 10 * device - idle_us["kernels"]
    assert idle_us["host"] == 990 - idle_us["launch"] - idle_us["kernels"]


def test_loading_by_hand_is_other_work() -> None:
    assert _host(cpu_training(1, python=700))["other"] == 700


def test_a_loader_in_another_thread_is_no_wait() -> None:
    sim = cpu_training(1)
    sim.label(WORKERS, 1_000, 500, tid=HOST + 7)
    assert "data wait" not in _host(sim)


def test_backward_in_its_own_thread_counts_and_its_gaps_close() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::linear", 0, 100)
    for i in range(4):  # 80 µs of each 100
        sim.host("autograd::engine::evaluate_function: X", 200 + i * 100, 80, tid=ENGINE)
    sim.host("aten::add_", 580, 20, tid=ENGINE)  # accumulation, without the engine's label
    assert _host(sim) == {"forward": 100, "backward": 400, "other": 500}


def test_work_of_the_step_thread_between_two_backward_passes_is_not_backward() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("autograd::engine::evaluate_function: X", 100, 100)
    sim.host("aten::linear", 250, 50)
    sim.host("autograd::engine::evaluate_function: X", 400, 100)
    assert _host(sim) == {"forward": 50, "backward": 200, "other": 750}


def test_a_long_pause_between_two_backward_passes_is_not_backward() -> None:
    sim = Simulated()
    sim.step(0, 0, 10_000)
    sim.host("autograd::engine::evaluate_function: X", 100, 100)
    sim.host("autograd::engine::evaluate_function: X", 5_000, 100)
    assert _host(sim)["backward"] == 200


def test_backward_of_old_traces_has_only_its_nodes_names() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("CudnnConvolutionBackward", 100, 300, tid=ENGINE)
    sim.host("torch::autograd::AccumulateGrad", 400, 100, tid=ENGINE)
    assert _host(sim)["backward"] == 400


def test_a_closure_inside_the_optimizer_is_no_update() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.label("Optimizer.step#LBFGS.step", 0, 1_000)
    sim.host("aten::linear", 10, 300)
    sim.host("autograd::engine::evaluate_function: X", 400, 300)
    assert _host(sim) == {"forward": 300, "backward": 300, "optimizer": 300, "other": 100}


def test_what_lbfgs_does_between_its_closures_is_the_update() -> None:
    """All but its last part was forward: of many parameters that is most of a step."""
    sim = Simulated()
    sim.step(0, 0, 2_000)
    sim.label("Optimizer.step#LBFGS.step", 0, 2_000)
    for number, at in enumerate((100, 1_000)):
        recorded = {"Sequence number": number}
        sim.host("aten::linear", at, 100, **recorded)
        sim.host("aten::mean", at + 150, 50)
        sim.host("autograd::engine::evaluate_function: X", at + 200, 300, **recorded)
        sim.host("XBackward0", at + 210, 200, **recorded)
        sim.host("aten::item", at + 510, 10, **{"Sequence number": number + 1})
        sim.host("aten::mul", at + 530, 200)
    # 50 of each closure are Python
    assert _host(sim) == {"forward": 300, "backward": 600, "optimizer": 1_000, "other": 100}


def test_a_second_backward_pass_of_a_closure_is_no_update() -> None:
    sim = Simulated()
    sim.step(0, 0, 6_000)
    sim.label("Optimizer.step#LBFGS.step", 0, 6_000)
    sim.host("aten::linear", 0, 1_000, **{"Sequence number": 0})
    for at in (1_000, 4_000):
        name = "autograd::engine::evaluate_function: X"
        sim.host(name, at, 1_000, **{"Sequence number": 0})
    assert _host(sim) == {"forward": 1_000, "backward": 2_000, "optimizer": 3_000}


def test_an_optimizer_inside_backward_is_an_update() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 100, 500)
    sim.label("Optimizer.step#SGD.step", 200, 100)
    assert _host(sim) == {"backward": 400, "optimizer": 100, "other": 500}


@pytest.mark.parametrize(("tail_us", "update_us"), [(900, 1_100), (3_000, 200)])
def test_what_a_hook_does_after_the_update_is_no_update(tail_us: int, update_us: int) -> None:
    """Nor launching: it was told as slow launches, and as an update that takes too long."""
    sim = Simulated()
    sim.step(0, 0, 300 + tail_us)
    sim.kernel("aten::linear", 0, 10, 80)
    sim.label("Optimizer.step#SGD.step", 100, 300 + tail_us)  # the step ended within the hook
    sim.call("cudaDeviceSynchronize", 350 + tail_us, 5)
    sim.kernel("aten::_foreach_add_", 110, 120, 50)
    sim.host("aten::_foreach_zero_", 250, 50)
    assert _host(sim)["optimizer"] == update_us
    waited = idle(load(sim.json())).total_us
    assert (waited["launch"] > 1_000) is (update_us > 1_000)


def test_gradient_accumulation_is_one_step_with_many_passes() -> None:
    sim = Simulated()
    sim.step(0, 0, 4_000)
    for i in range(3):
        sim.label(SINGLE, i * 1_000, 100)
        sim.host("aten::linear", i * 1_000 + 100, 300)
        sim.host("autograd::engine::evaluate_function: X", i * 1_000 + 400, 500)
    sim.label("Optimizer.step#SGD.step", 3_000, 200)
    assert _host(sim) == {
        "data wait": 300,
        "forward": 900,
        "backward": 1_500,
        "optimizer": 200,
        "other": 1_100,
    }


def test_a_pageable_copy_and_its_wait_are_a_copy_and_item_is_a_sync() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.copy("HtoD (Pageable -> Device)", 100, 200, 200, 90)
    sim.call("cudaStreamSynchronize", 300, 1, external=sim.events[1]["args"]["External id"])
    sim.item(500, 250)
    host = _host(sim)
    assert host["copy"] == 201
    assert host["sync"] == 250


def test_item_on_a_cpu_tensor_waits_for_nobody() -> None:
    sim = cpu_training(1)
    sim.host("aten::item", 1_030, 200)
    assert "sync" not in _host(sim)


def test_item_through_a_pinned_buffer_is_a_sync() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    external = sim.host("aten::_local_scalar_dense", 99, 300)
    correlation = sim.call("cudaMemcpyAsync", 100, 10, external)
    sim.device("Memcpy DtoH (Device -> Pinned)", 350, 2, correlation, "gpu_memcpy")
    sim.call("cudaStreamSynchronize", 110, 250, external)
    assert _host(sim)["sync"] == 260
    assert "copy" not in _host(sim)


def test_copies_within_the_device_only_launch() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.copy("DtoD (Device -> Device)", 100, 50, 200, 90)
    assert _host(sim) == {"forward": 52, "other": 948}


def test_a_sync_of_rocm_is_a_sync() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.call("hipDeviceSynchronize", 100, 300)
    assert _host(sim)["sync"] == 300


def test_a_wait_in_a_watchdog_thread_is_not_the_steps() -> None:
    sim = cpu_training(1)
    sim.call("cudaEventSynchronize", 1_000, 400, tid=HOST + 50)
    assert "sync" not in _host(sim)


def test_the_device_computes_talks_copies_or_idles() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("aten::linear", 0, 10)
    sim.device("gemm", 100, 200, 1)
    sim.device("ncclDevKernel_AllReduce", 250, 150, 2)  # 50 µs under the gemm
    sim.device("Memcpy HtoD (Pinned -> Device)", 350, 100, 3, "gpu_memcpy")  # 50 under nccl
    sim.device("Context Sync", 500, 400, 4, "cuda_sync")  # no work
    sim.device("ProfilerStep#0", 100, 900, 5, "gpu_user_annotation")
    step = breakdown(load(sim.json())).steps[0]
    assert {k: v // 1_000 for k, v in step.device_ns.items()} == {
        "compute": 200,
        "communication": 100,
        "copy": 50,
        "idle": 650,
    }
    assert step.idle_ns["forward"] == 10_000


def test_of_several_devices_the_busiest_is_told() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.device("gemm", 100, 100, 1, device=0)
    sim.device("gemm", 700, 60, 1, device=0)  # more, and later, but shorter
    sim.device("gemm", 100, 300, 2, device=1)
    split = breakdown(load(sim.json()))
    assert split.steps[0].device_ns["compute"] == 300_000
    assert any("2 devices" in w and "device 1" in w for w in split.warnings)


def test_of_a_single_device_nothing_is_told() -> None:
    assert breakdown(load(gpu_training(2).json())).warnings == ()


def test_an_outsider_does_not_change_the_steps() -> None:
    sim = gpu_training(3)
    before = breakdown(load(sim.json())).steps
    sim.host("aten::after", 1e6, 10)
    sim.device("late", 1e6, 10, 77)
    assert breakdown(load(sim.json())).steps == before


def test_any_events_add_up() -> None:
    rng = random.Random(1)
    names = [
        "aten::mm",
        "autograd::engine::evaluate_function: X",
        "MulBackward0",
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        SINGLE,
        "ProfilerStep#1",
        "ProfilerStep#2",
    ]
    calls = ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaLaunchKernel", "hipMemcpyWithStream"]
    n_steps = 0
    for _ in range(150):
        sim = Simulated()
        for _ in range(rng.randint(1, 25)):
            start, dur = rng.uniform(0, 300), rng.choice([0, -3, rng.uniform(0, 200)])
            kind = rng.randrange(4)
            if kind < 2:
                cat = rng.choice(["cpu_op", "user_annotation", "Operator", "python_function"])
                sim.host(rng.choice(names), start, dur, cat, tid=rng.choice([1, 1, "2", "x"]))
            elif kind == 2:
                sim.call(rng.choice(calls), start, dur, rng.randint(1, 20), tid=rng.choice([1, 2]))
            else:
                name = rng.choice(["gemm", "ncclKernel", "Memcpy HtoD (Pageable -> Device)"])
                sim.device(name, start, dur, rng.randint(10_000, 10_020), "gpu_memcpy")
        split = breakdown(load(sim.json()))
        _adds_up(split)
        n_steps += len(split.steps)
    assert n_steps > 150


def test_older_and_newer_times_give_the_same_ns() -> None:
    # 2021: whole µs since the epoch; today: fractions after a base.
    sim = gpu_training(3, wait=100)
    shifted = json.loads(sim.json("list"))
    for event in shifted:
        event["ts"] += 1_623_143_093_000_000
    a = breakdown(load(sim.json()))
    b = breakdown(load(json.dumps(shifted).encode()))
    assert [s.host_ns for s in a.steps] == [s.host_ns for s in b.steps]


def test_a_collective_in_a_thread_of_its_own_is_communication() -> None:
    # gloo works in threads of its own, while the step's thread waits without a word
    sim = Simulated()
    for i in range(4):
        at = 1_000.0 * i
        sim.step(i, at, 1_000)
        sim.host("aten::mm", at, 200)
        sim.label("gloo:all_reduce", at + 100, 850, tid=ENGINE)
    found = breakdown(load(sim.json()))
    assert found.shares()["communication"] == pytest.approx(0.75)
    assert found.shares()["other"] == pytest.approx(0.05)
    assert "communication" in str(found)
    assert "communication" not in str(breakdown(load(cpu_training(3).json())))


def test_a_wait_beats_a_copy_that_runs_meanwhile() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.host("autograd::engine::evaluate_function: X", 50, 600, tid=ENGINE)
    sim.call("cudaDeviceSynchronize", 100, 300, tid=ENGINE)
    sim.copy("HtoD (Pageable -> Device)", 200, 150, 300, 90)
    sim.copy("HtoD (Pageable -> Device)", 500, 100, 560, 30)
    host = _host(sim)
    assert host["sync"] == 300
    assert host["copy"] == 100  # and the one beneath the wait is none
