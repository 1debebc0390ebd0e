"""Lesson 09: what only a GPU shows: a step in four formats, and a product in fp8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfkit.base.errors import MissingError
from perfkit.base.torch_compat import float8_product
from perfkit.course.kit.sizes import has_gpu_speed
from perfkit.measure.compare import Comparison, compare

# fp8 products since compute capability 8.9 (Ada)
_FP8_SINCE = (8, 9)


@dataclass(frozen=True)
class OnGpu:
    """A training step in one format, on a GPU.

    Attributes:
        way: ``"tf32"``, ``"bf16"`` or ``"fp16"``.
        timed: the step in fp32 against this one.
        peak_bytes: the allocator's peak in a step, with the model and all that belongs to it.
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
    ways = ("tf32", "bf16", "fp16")
    try:
        make_step("fp32")()  # the workspace of the first product stays for good
        peak_bytes = {way: _peak_bytes(make_step, way) for way in ("fp32", *ways)}
        wide = make_step("fp32")
        timed = {
            way: compare(wide, make_step(way), names=("fp32", way), budget_s=budget_s)
            for way in ways
        }
    finally:
        torch.set_float32_matmul_precision(before)
    return {way: OnGpu(way, timed[way], peak_bytes[way], peak_bytes["fp32"]) for way in ways}


def fp8_product(size: int, *, budget_s: float = 3.0) -> Comparison | None:
    """A product of two square matrices in bf16 against e4m3; None where the GPU has no fp8."""
    if not has_gpu_speed("cuda") or torch.cuda.get_device_capability() < _FP8_SINCE:
        return None
    narrow = torch.randn(size, size, device="cuda").bfloat16()
    in_fp8 = float8_product(size, "cuda")
    return compare(lambda: narrow @ narrow, in_fp8, names=("bf16", "e4m3"), budget_s=budget_s)


def _peak_bytes(make_step: Callable[[str], Callable[[], object]], way: str) -> int:
    """The peak of a second step, above what was allocated before the step was made."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step = make_step(way)
    step()  # makes the optimizer's state
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
