"""Lists of tensors, of which the profiler's export has no dtypes, and of long ones no shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_traces import Simulated
from torch import nn

import perfkit
from perfkit.base import torch_compat
from perfkit.trace import Trace, limit, load
from perfkit.trace.read.save import save
from perfkit.trace.record.lists import with_lists
from perfkit.trace.record.profiler import raw_trace

N_LAYERS = 20  # two parameters each: more than the 30 that the profiler writes


def steps(n: int = 2, n_layers: int = N_LAYERS, dtype: torch.dtype = torch.float32) -> Any:
    """A profile of optimizer steps, and the model."""
    model = nn.Sequential(*(nn.Linear(8, 8, dtype=dtype) for _ in range(n_layers)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(4, 8, dtype=dtype)
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(n):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return profile, model


def inputs_of(trace: Trace, name: str) -> list[tuple[Any, str]]:
    rows = trace.named(name.__eq__).nonzero()[0]
    return [
        (json.loads(trace.input_dims[trace.dims_id[r]]), trace.input_types[trace.types_id[r]])
        for r in rows
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_lists_get_their_shapes_and_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    profile, model = steps(dtype=dtype)
    exported = load(raw_trace(profile))
    assert inputs_of(exported, "aten::_foreach_sqrt") == [([[]], "TensorList")] * 2
    found = with_lists(exported, profile)
    shapes = [list(p.shape) for p in model.parameters()]
    name = str(dtype).removeprefix("torch.")
    assert inputs_of(found, "aten::_foreach_sqrt") == [([shapes], f"TensorList[{name}]")] * 2
    assert inputs_of(found, "aten::addmm") == inputs_of(exported, "aten::addmm")
    # a file keeps them
    path = save(found, tmp_path / "trace.json")
    assert inputs_of(load(path), "aten::_foreach_sqrt") == inputs_of(found, "aten::_foreach_sqrt")


def test_nothing_is_done_without_long_lists() -> None:
    profile, _ = steps(1, n_layers=3)
    exported = load(raw_trace(profile))
    assert with_lists(exported, object()) is exported  # the profile is not asked


def test_an_optimizer_of_many_parameters_is_counted() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(N_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(4, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    found = perfkit.profile(step, shapes=True, steps=2).limit
    assert found is not None
    size = sum(p.nbytes for p in model.parameters())
    moved = {o.op: o.n_bytes / o.count for o in found.ops if o.n_bytes > o.count * size}
    assert moved["aten::_foreach_sqrt"] == 2 * size
    assert moved["aten::_foreach_lerp_"] == 3 * size
    assert moved["aten::_foreach_addcmul_"] == moved["aten::_foreach_addcdiv_"] == 4 * size
    assert not [u for u in found.unknown if "foreach" in u.op]


def test_operators_of_lists_that_call_others_are_counted_with_them() -> None:
    """``clip_grad_norm_`` stacks the norms, and ``aten::stack`` calls ``aten::cat``."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(N_LAYERS)))
    model(torch.randn(4, 8)).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=True)
    exported = load(raw_trace(profile))
    assert inputs_of(exported, "aten::cat")[0][0][0] == []
    found = with_lists(exported, profile)
    for name in ("aten::_foreach_norm", "aten::_foreach_mul_", "aten::stack", "aten::cat"):
        ((dims, types),) = inputs_of(found, name)
        assert len(dims[0]) == 2 * N_LAYERS, name
        assert types.startswith("TensorList[float32]"), name


def test_one_operator_that_does_not_fit_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, _ = steps()
    exported = load(raw_trace(profile))
    asked = torch_compat.recorded_lists

    def but_one(*given: Any) -> Any:
        calls = asked(*given)
        calls.remove(next(call for call in calls if call[0] == "aten::_foreach_sqrt"))
        return calls

    monkeypatch.setattr(torch_compat, "recorded_lists", but_one)
    found = with_lists(exported, profile)
    assert inputs_of(found, "aten::_foreach_sqrt") == [([[]], "TensorList")] * 2
    assert inputs_of(found, "aten::_foreach_addcdiv_")[0][1].startswith("TensorList[float32]")


def test_a_trace_file_says_why_work_is_unknown() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)

    def host(name: str, at: int, dims: Any, types: list[str]) -> None:
        sim.host(f"aten::{name}", at, 100, **{"Input Dims": dims, "Input type": types})

    host("_foreach_add_", 0, [[], []], ["TensorList", "Scalar"])
    host("cat", 200, [[[4, 4], [4, 4]], []], ["TensorList", "Scalar"])
    host("sort", 400, [[4]], ["float"])
    host("mm", 600, [[4]], ["float"])
    sim.host("aten::exp", 800, 100)
    why = {u.op.removeprefix("aten::"): u.why for u in limit(load(sim.json())).unknown}
    assert why == {
        "_foreach_add_": "lists of more than 30 tensors: the profiler writes no shapes of these",
        "cat": "the profiler writes no dtypes of lists",
        "sort": "no rule for it",
        "mm": "its shapes do not say",
        "exp": "no shapes recorded",
    }


def test_copies_and_zeros_of_lists() -> None:
    from perfkit.limit.arguments import arguments
    from perfkit.limit.work import work

    dims, types = "[[[4], [2, 2]], [[4], [2, 2]]]", "TensorList[float32],TensorList[bfloat16]"
    copied = work("aten::_foreach_copy_", arguments(dims, types))
    assert copied is not None
    assert (copied.read_bytes, copied.written_bytes) == (16, 32)
    zeroed = work("aten::_foreach_zero_", arguments("[[[4], [2, 2]]]", "TensorList[float32]"))
    assert zeroed is not None
    assert (zeroed.read_bytes, zeroed.written_bytes) == (0, 32)
