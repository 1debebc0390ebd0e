"""Lesson 09: what only a GPU shows: a step in four formats, and a product in fp8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfkit.base.errors import MissingError
from perfkit.course.kit.sizes import has_gpu_speed
from perfkit.measure.clock import clock_in_use
from perfkit.measure.compare import Comparison, compare

__all__ = ["OnGpu", "fp8_product", "on_gpu", "share_of_peak"]

# fp8 products since compute capability 8.9 (Ada)
_FP8_SINCE = (8, 9)


@dataclass(frozen=True)
class OnGpu:
    """A training step in one format, on a GPU.

    Attributes:
        way: ``"tf32"``, ``"bf16"`` or ``"fp16"``.
        timed: the step in fp32 against this one.
        peak_bytes: the allocator's peak in a step.
        fp32_peak_bytes: the same in fp32.
    """

    way: str
    timed: Comparison
    peak_bytes: int
    fp32_peak_bytes: int


def on_gpu(
    make_step: Callable[[str], Callable[[], object]], *, budget_s: float = 4.0
) -> dict[str, OnGpu]:
    """Time a step in TF32, bf16 and fp16 against fp32, and read the allocator's peaks.

    Args:
        make_step: takes ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"`` and returns a step.
        budget_s: seconds for each comparison.

    Raises:
        MissingError: torch sees no GPU.
    """
    if not torch.cuda.is_available():
        raise MissingError("TF32 and the speed of 16 bits need a GPU")
    before = torch.get_float32_matmul_precision()
    wide = make_step("fp32")
    peak = _peak_bytes(wide)
    found = {}
    try:
        for way in ("tf32", "bf16", "fp16"):
            step = make_step(way)
            timed = compare(wide, step, names=("fp32", way), budget_s=budget_s)
            found[way] = OnGpu(way, timed, _peak_bytes(step), peak)
    finally:
        torch.set_float32_matmul_precision(before)
    return found


def fp8_product(size: int, *, budget_s: float = 3.0) -> Comparison | None:
    """A product of two square matrices in bf16 against e4m3; None where the GPU has no fp8."""
    if not has_gpu_speed("cuda") or torch.cuda.get_device_capability() < _FP8_SINCE:
        return None
    narrow = torch.randn(size, size, device="cuda").bfloat16()
    one = narrow.to(torch.float8_e4m3fn)
    other = one.t().contiguous().t()  # the second matrix in columns, as the hardware wants it
    scale = torch.ones((), device="cuda")

    def in_fp8() -> None:
        torch._scaled_mm(one, other, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    return compare(lambda: narrow @ narrow, in_fp8, names=("bf16", "e4m3"), budget_s=budget_s)


def share_of_peak(flops: float, seconds: float, device: str = "cpu", *, size: int = 0) -> float:
    """Achieved FLOP/s of a step over those of one large product in fp32 on the same device.

    Args:
        flops: of a step.
        seconds: of a step.
        device: ``"cpu"`` or ``"cuda"``.
        size: of the large product; by default 8192 on a GPU, and 768 on a CPU or a played GPU.
    """
    n = size or (8192 if has_gpu_speed(device) else 768)
    wide = torch.ones(n, n, device=device)
    clock = clock_in_use()
    best_ns = float("inf")
    for _ in range(8):
        clock.settle()
        begin = clock.now()
        wide @ wide
        clock.settle()
        best_ns = min(best_ns, clock.now() - begin)
    return flops / seconds / (2.0 * n**3 / max(best_ns, 1.0) * 1e9)


def _peak_bytes(step: Callable[[], object]) -> int:
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
