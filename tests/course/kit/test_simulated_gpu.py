"""The simulated GPU obeys the rules that it states, and its traces say what it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfkit.advice.profile import explain
from perfkit.base.errors import UsageError
from perfkit.course.kit.simulated_gpu import (
    SimulatedGpu,
    SimulatedTraining,
    simulate,
    what_bounds,
    what_if,
)
from perfkit.course.kit.simulated_traces import ENGINE
from perfkit.trace import Category, breakdown, find_steps, flops, idle, launch_queue

SMALL = SimulatedTraining(batch=64, width=128, layers=4)
GPU = SimulatedGpu()


def test_a_trace_has_its_steps_in_their_steady_state_and_says_that_it_is_simulated() -> None:
    trace = simulate(SMALL, steps=3)
    steps = find_steps(trace)
    assert len(steps) == 3
    assert all(name.endswith("(simulated)") for name in steps.names)
    assert trace.source == "simulated"
    walls = steps.end_ns - steps.start_ns
    assert walls.max() - walls.min() <= 2  # ns of rounding


@pytest.mark.parametrize(
    "training",
    [
        SMALL,
        replace(SMALL, loader_us=3_000),
        replace(SMALL, items=3, python_us=100, item_at_end=True),
        replace(SMALL, pinned=False, input_bytes=10_000_000),
        SimulatedTraining(batch=4096, loader_us=5_000),
    ],
)
def test_every_ns_is_accounted_for_and_every_flop_counted(training: SimulatedTraining) -> None:
    trace = simulate(training)
    split, causes = breakdown(trace), idle(trace)
    for step, cause in zip(split.steps, causes.steps, strict=True):
        assert sum(step.host_ns.values()) == step.wall_ns
        assert sum(step.device_ns.values()) == step.wall_ns
        assert sum(cause.values()) == step.device_ns["idle"]
    assert flops(trace).per_step == training.flops
    assert split.warnings == causes.warnings == launch_queue(trace).warnings == ()


def test_the_device_does_one_thing_at_a_time_and_none_before_its_launch() -> None:
    trace = simulate(replace(SMALL, items=2, python_us=50))
    on_device = trace.is_a(Category.KERNEL, Category.MEMCPY)
    start, end = trace.start_ns[on_device], trace.end_ns[on_device]
    assert (start[1:] >= end[:-1]).all()
    assert (launch_queue(trace).delay_ns > 0).all()


def test_kernels_take_what_the_rule_says() -> None:
    training = SimulatedTraining(batch=8192, width=1024, layers=2)
    trace = simulate(training)
    kernels = trace.is_a(Category.KERNEL) & trace.named(lambda name: name == "sgemm")
    flop_us = 2 * 8192 * 1024 * 1024 / GPU.tflop_per_s / 1e6
    assert np.allclose(trace.dur_us[kernels], flop_us, atol=0.002)
    tiny = simulate(replace(SMALL, batch=1))
    kernels = tiny.is_a(Category.KERNEL) & tiny.named(lambda name: name == "sgemm")
    assert np.allclose(tiny.dur_us[kernels], GPU.shortest_us, atol=0.002)


def test_the_backward_pass_has_a_thread_of_its_own() -> None:
    trace = simulate(SMALL)
    nodes = trace.named(lambda name: name.startswith("autograd::engine"))
    assert {trace.threads[i].tid for i in trace.thread[nodes]} == {ENGINE}


def test_the_queue_never_holds_more_than_it_can() -> None:
    small_queue = replace(GPU, queue=50)
    queue = launch_queue(simulate(SimulatedTraining(batch=4096), gpu=small_queue))
    # a copy of the batch takes no place in the queue of kernels, and one launch is in the making
    assert 45 <= queue.length.max() <= 55


def test_without_its_cause_a_step_is_as_fast_as_if_it_never_had_it() -> None:
    slow = replace(SMALL, loader_us=5_000)
    assert what_bounds(slow) == "data"
    assert what_if(slow)["data"] > 10
    assert what_if(replace(SMALL, pinned=True))["sync"] == 1.0


@pytest.mark.parametrize("name", ["data", "launch", "sync", "copy", "compute"])
def test_perfkits_own_verdict_agrees_with_the_simulations(name: str) -> None:
    training = {
        "data": SimulatedTraining(batch=1024, loader_us=8_000),
        "launch": SimulatedTraining(batch=16),
        "sync": SimulatedTraining(batch=4096, items=10, python_us=700),
        "copy": SimulatedTraining(batch=1024, pinned=False, input_bytes=77_000_000),
        "compute": SimulatedTraining(batch=4096, item_at_end=True),
    }[name]
    assert what_bounds(training) == name
    assert explain(simulate(training)).diagnosis.bound_by == name


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"op_us": -1.0}, {"items": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SimulatedTraining(**wrong)  # type: ignore[arg-type]
