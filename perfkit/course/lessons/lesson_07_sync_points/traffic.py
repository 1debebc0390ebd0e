"""What a step must compute and move, counted operator by operator; works on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from perfkit.base import torch_compat


@dataclass(frozen=True)
class Work:
    """The work of one step on a device.

    Attributes:
        flops: floating-point operations of its products and convolutions, forward and backward;
            a multiply-add counts two.
        traffic_bytes: bytes that its operators read and write if each runs on its own, as in eager
            mode: every input read once, every output written once.
        operators: number of these operators. Views move nothing and do not count.
    """

    flops: int
    traffic_bytes: int
    operators: int

    def least_ms(self, *, tflop_per_s: float, gb_per_s: float) -> tuple[float, float]:
        """Minimum milliseconds for the arithmetic and for the traffic, at these peak rates."""
        return self.flops / tflop_per_s / 1e9, self.traffic_bytes / gb_per_s / 1e6


class _Traffic(torch_compat.dispatch_mode_class()):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view:
            self.operators += 1
            moved = (*tree_leaves((args, kwargs)), *tree_leaves(out))
            self.nbytes += sum(one.nbytes for one in moved if isinstance(one, torch.Tensor))
        return out


def work_of(step: Callable[[], object]) -> Work:
    """Run ``step()`` three times (once to create gradients) and count its work."""
    step()
    with FlopCounterMode(display=False) as flops:
        step()
    with _Traffic() as traffic:
        step()
    return Work(int(flops.get_total_flops()), traffic.nbytes, traffic.operators)
