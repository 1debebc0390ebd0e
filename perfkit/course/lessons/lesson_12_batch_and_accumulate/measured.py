"""Lesson 12: peaks by batch size, and the largest batch predicted from two of them, then tried."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from perfkit.base.errors import MeasurementError
from perfkit.course.kit.rise import rise_bytes

_FEW, _MORE = 8, 16
#: How far around the prediction a GPU is searched.
_AROUND = 0.25

StepOf = Callable[[int], object]


@dataclass(frozen=True)
class Tried:
    """The largest batch below a limit, predicted and tried.

    Attributes:
        limit_bytes: what tensors may take: on a CPU counted, on a GPU the allocator refuses more.
        predicted: largest batch by the line through the peaks with 8 and 16 samples.
        fitted: the largest that was tried and stayed below the limit; 0 if none.
        too_large: the smallest that was tried and did not.
        device: ``"cpu"`` or ``"cuda"``.
    """

    limit_bytes: int
    predicted: int
    fitted: int
    too_large: int
    device: str

    @property
    def is_right(self) -> bool:
        """The prediction is the largest that fits: on a CPU exactly, on a GPU to a twentieth.

        The allocator of a GPU rounds and cuts its memory into pieces, which no line knows.
        """
        if self.device == "cpu":
            return self.fitted == self.predicted == self.too_large - 1
        return self.fitted <= self.predicted * 1.05 and self.too_large > self.predicted * 0.95

    @property
    def sentence(self) -> str:
        """Both in words."""
        how = "counted" if self.device == "cpu" else "tried here"
        limit = f"{self.limit_bytes / 1e6:,.0f} MB"
        return (
            f"Below {limit}: {self.predicted} samples predicted; {how}: {self.fitted} fit, "
            f"{self.too_large} do not."
        )


def peak_bytes(step: Callable[[], object], *, device: str = "cpu") -> int:
    """The peak of a training step above what was there before it, in bytes of tensors."""
    if device != "cuda":
        return rise_bytes(step)
    step()  # workspaces of the first products and convolutions stay
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def tried(step_of: StepOf, limit_bytes: int, *, device: str = "cpu") -> Tried:
    """Predict the largest batch below a limit from two small ones, then try it.

    On a CPU the peaks of the predicted batch and of one more sample are counted. On a GPU torch's
    allocator gets the limit, and the sizes around the prediction are searched until one runs and
    a larger one, at most 2 % larger, is out of memory; the limit is lifted afterwards.

    Args:
        step_of: runs a training step with so many samples.
        limit_bytes: of what a step adds to the tensors that are there already.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        MeasurementError: the peak does not grow with the batch.
    """
    few, more = (peak_bytes(partial(step_of, n), device=device) for n in (_FEW, _MORE))
    if more <= few:
        raise MeasurementError(
            f"the peak with {_MORE} samples ({more:,} B) is not above that with {_FEW} ({few:,} B)"
        )
    predicted = (limit_bytes - (2 * few - more)) * (_MORE - _FEW) // (more - few)
    if device != "cuda":
        below = peak_bytes(partial(step_of, predicted)) <= limit_bytes
        above = peak_bytes(partial(step_of, predicted + 1)) > limit_bytes
        return Tried(
            limit_bytes,
            predicted,
            predicted if below else 0,
            predicted + 1 if above else predicted + 2,
            "cpu",
        )
    fitted, too_large = _search(step_of, limit_bytes, predicted)
    return Tried(limit_bytes, predicted, fitted, too_large, device)


def _search(step_of: StepOf, limit_bytes: int, predicted: int) -> tuple[int, int]:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    allowed = (torch.cuda.memory_reserved() + limit_bytes) / total
    torch.cuda.set_per_process_memory_fraction(min(allowed, 1.0))
    try:
        fitted, too_large = 0, max(int(predicted * (1 + _AROUND)), predicted + 1)
        size = predicted
        while too_large - fitted > max(1, fitted // 50):
            if _fits(step_of, size):
                fitted = size
            else:
                too_large = size
            size = (fitted + too_large) // 2 if fitted else max(int(too_large * 0.9), 1)
        return fitted, too_large
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def _fits(step_of: StepOf, n: int) -> bool:
    try:
        step_of(n)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        fits = False
    else:
        fits = True
    torch.cuda.empty_cache()  # what is left over of another size is in the way
    return fits


def page_faults(step: Callable[[], object]) -> int:
    """How many pages the system gives this process in one call, after one that does not count.

    A page that was returned with the memory before it has to be given again. 0 on Windows, which
    does not count them so.
    """
    step()
    if sys.platform == "win32":
        return 0
    from resource import RUSAGE_SELF, getrusage

    before = getrusage(RUSAGE_SELF).ru_minflt
    step()
    return getrusage(RUSAGE_SELF).ru_minflt - before
