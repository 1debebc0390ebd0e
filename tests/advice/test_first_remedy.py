"""The remedy that acts on a named part goes first, its ceiling holds, and launches have a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_traces import FOLDER
from simulated_traces import ENGINE, HOST, Simulated

import perfkit
from perfkit.advice.open_trace import OpenTrace

OURS = Path(__file__).parents[1] / "golden" / "traces"
BESIDE = None if FOLDER is None else FOLDER.parent / "h200" / "traces"


def _open(program: str) -> OpenTrace:
    """A program that was recorded on an H200; only the small traces are part of the project."""
    places = [OURS / f"h200_{program}.json.gz"]
    places += [BESIDE / f"{program}.json.gz"] if BESIDE else []
    found = next((path for path in places if path.exists()), None)
    return perfkit.open_trace(found) if found else pytest.skip(f"no trace of {program}")


def _found(opened: OpenTrace) -> list[dict[str, Any]]:
    return list(opened.to_dict()["findings"])


def _launches(opened: OpenTrace) -> dict[str, Any]:
    return next(one for one in _found(opened) if one["rule"] == "launch-bound")


@pytest.mark.parametrize(
    ("program", "remedy", "measured"),
    [
        ("adam_forloop", "fused=True", 2.4),
        ("ema_loop", "torch._foreach_lerp_", 1.7),
        ("gpt_launch", "CUDA graphs", 5.2),
        ("pageable_h2d", "pin_memory=True", 1.42),
        ("workers_pageable", "pin_memory=True", 1.15),
        ("tf32_off", 'torch.set_float32_matmul_precision("high")', 5.6),
        ("cudnn_benchmark_shapes", "cudnn.benchmark = False", 66),
    ],
)
def test_what_made_it_faster_on_an_h200_comes_first(
    program: str, remedy: str, measured: float
) -> None:
    first = _found(_open(program))[0]
    assert remedy in first["what_to_do"]
    assert first["gain_at_most"] >= min(measured, 10) * 0.995  # "over 10×" is the most it says


def _step(n: int, *, op: str = "aten::add_", sequence: int = -1) -> Simulated:
    """Steps of 2 ms: a loop over n weights after the update, 80 forward operators, 60 backward."""
    sim = Simulated()

    def launches(name: str, at: float, tid: int = HOST, sequence: int = -1) -> None:
        made = sim.host(name, at, 4, tid=tid, **{"Sequence number": sequence})
        sim.device("a_kernel", at + 3, 1, sim.call("cudaLaunchKernel", at + 1, 2, made, tid))

    for i in range(4):
        at = 2_000.0 * i
        sim.step(i, at, 2_000)
        for k in range(n):
            launches("aten::mul_", at + 10 * k, sequence=sequence)
            launches(op, at + 10 * k + 5, sequence=sequence)
        for k in range(80):
            launches("aten::mm", at + 1_000 + 6 * k, sequence=k)
        for k in range(60):
            launches("autograd::engine::evaluate_function: MmBackward0", at + 1_500 + 6 * k, ENGINE)
        sim.label("Optimizer.step#SGD.step", at + 1_900, 100)
        sim.host("aten::_foreach_add_", at + 1_905, 90)
    return sim


def test_a_loop_over_weights_has_a_remedy_of_its_own() -> None:
    found = {one["rule"]: one for one in _found(perfkit.open_trace(_step(90).json()))}
    assert "torch._foreach_lerp_" in found["tensor-loop"]["what_to_do"]
    assert "180 operations in place per step" in found["tensor-loop"]["evidence"][0]
    # what the loop launches is not the model's, nor is what it takes
    assert "loops over tensors left out" in found["launch-bound"]["evidence"][0]
    assert "80 of 320 come from the forward pass" in found["launch-bound"]["sentence"]
    assert next(iter(found)) == "tensor-loop"


def _of_ranks() -> Simulated:
    sim = _step(90)
    for i in range(4):
        sim.label("DistributedDataParallel.forward", 2_000.0 * i, 1_490)
    return sim


@pytest.mark.parametrize(
    "of", [_step(15), _step(90, sequence=7), _step(90, op="aten::mean"), _of_ranks()]
)
def test_what_is_the_models_own_is_no_loop_over_weights(of: Simulated) -> None:
    """A few in a row; what autograd records; each with a computation of its own; torch's copies of
    buffers for other ranks.
    """
    assert "tensor-loop" not in {one["rule"] for one in _found(perfkit.open_trace(of.json()))}


def test_launches_have_the_place_that_a_trace_knows() -> None:
    """The phase, a label of the user's, the line of a recorded stack."""
    assert "308 of 592 come from the backward pass" in _launches(_open("gpt_launch"))["sentence"]
    sim = _step(0)
    for i in range(4):
        sim.label("student", 2_000.0 * i + 995, 500)
        sim.host("train.py(12): features", 2_000.0 * i + 996, 490, "python_function")
    told = _launches(perfkit.open_trace(sim.json()))
    assert told["sentence"].endswith('80 of 140 come from the forward pass, in "student"')
    assert told["line"] == "train.py:12 in features (its def)"


@pytest.mark.parametrize("rank", [0, 1])
def test_of_two_remedies_that_gain_alike_the_verdicts_own_comes_first(rank: int) -> None:
    """Two ranks of one job: a host that is faster does not end a wait for what is queued."""
    path = None if FOLDER is None else FOLDER / f"rank{rank}of128_sampled__hta.json.gz"
    if path is None or not path.exists():
        pytest.skip("no trace of it")
    opened = perfkit.open_trace(path)
    assert opened.profile.diagnosis.bound_by == "communication"
    assert "all-to-all" in _found(opened)[0]["sentence"]


def test_a_remedy_for_another_part_does_not_go_before_the_verdicts_own() -> None:
    """As of several ranks: launch-bound for 40 %, and what was told first were collectives."""
    sim = Simulated()
    for i in range(4):
        sim.step(i, 2_000.0 * i, 2_000)
        for k in range(190):
            op = sim.host("aten::mm", 2_000.0 * i + 10 * k, 9)
            launch = sim.call("cudaLaunchKernel", 2_000.0 * i + 10 * k + 1, 2, op)
            sim.device("gemm", 2_000.0 * i + 10 * k + 3, 1, launch)
        launch = sim.call("cudaLaunchKernel", 2_000.0 * i + 1_905, 2)
        sim.device("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2_000.0 * i + 1_400, 500, launch)
    opened = perfkit.open_trace(sim.json())
    assert opened.profile.diagnosis.bound_by == "launch"
    assert [one["rule"] for one in _found(opened)][:2] == ["launch-bound", "communication"]
