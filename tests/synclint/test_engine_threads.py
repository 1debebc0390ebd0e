"""The sync lint of a backward pass in a thread of autograd's own, as CUDA's are.

In such a thread there is no Python frame below the handler of operators. On a CPU the engine uses
one for backward passes nested to a certain depth.
"""

from __future__ import annotations

from typing import Any

import torch

from perfkit.course.kit.real_waits import check_syncs
from perfkit.synclint.find import AS_PREDICTED, find_syncs

# the engine's limit is 60: the innermost pass is the first of the other thread
_DEEP = 60


class _Deep(torch.autograd.Function):
    """Its backward runs that of another, and so on; the innermost that of an index by a mask."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = torch.randn(8, 4, requires_grad=True)
            value: Any = _Deep.apply(x * 1, ctx.depth - 1) if ctx.depth else x[x > 0]  # type: ignore[no-untyped-call]
            loss = value.sum()
        loss.backward()
        return grad, None


def test_a_wait_in_a_thread_of_autograd_s_own_is_found() -> None:
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        _Deep.apply(layer(torch.randn(8, 4)), _DEEP).sum().backward()  # type: ignore[no-untyped-call]

    (found,) = find_syncs(step)
    assert found.count == 2  # forward and backward
    assert "its backward" in found.op


def test_the_trace_knows_the_line_of_such_a_wait(gpu: Any) -> None:
    gpu.traces = {"aten::_index_put_impl_": "", "aten::index": ""}
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        _Deep.apply(layer(torch.randn(8, 4)), _DEEP).sum().backward()  # type: ignore[no-untyped-call]

    check = check_syncs(step)
    (found,) = check.of(AS_PREDICTED)
    assert "x[x > 0]" in found.code
    assert found.count == 2  # in the engine's thread, where both passes run
    assert [one.outcome for one in check] == [AS_PREDICTED]
    assert check.warnings == ()
