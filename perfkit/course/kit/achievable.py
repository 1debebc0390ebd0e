"""What a device achieves at best, by a large product: the measure of what a step uses of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.course.kit.sizes import has_gpu_speed
from perfkit.measure.clock import clock_in_use

if TYPE_CHECKING:
    import torch


def achievable_tflop_per_s(
    device: torch.device | str = "cpu", *, size: int = 0, calls: int = 8
) -> float:
    """Rate of a large float32 matrix product on this machine in 10¹² FLOP/s, best of a few calls.

    Args:
        device: the device to use.
        size: of the square matrices; by default 4096 on a GPU, and 768 on a CPU or a played GPU.
        calls: products to time.
    """
    import torch

    n = size or (4096 if has_gpu_speed(device) else 768)
    a, b = torch.ones(n, n, device=device), torch.ones(n, n, device=device)
    clock = clock_in_use()
    best_ns = float("inf")
    for _ in range(calls + 2):
        clock.settle()
        begin = clock.now()
        torch.mm(a, b)
        clock.settle()
        best_ns = min(best_ns, clock.now() - begin)
    return 2.0 * n**3 / max(best_ns, 1.0) / 1e3
