"""Which of the steps their shares are of, and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfkit.base.words import fmt_ms
from perfkit.trace.ask.breakdown import Breakdown, StepBreakdown

# Longest over shortest step; below this the spread does not matter.
_UNEVEN_FROM = 1.5
# One fetch more than usual is the one that ends an epoch; at most so many steps are the exception.
_MORE_FETCHES = 2
_MOST_EXCEPTIONS = 1 / 3


@dataclass(frozen=True)
class Typical:
    """The steps whose shares are shown: all except those in which nothing ran.

    The mean over all steps is what the user pays. If steps differ much, the spread is shown too. A
    few long steps that read many more batches than the others contain something else, such as an
    evaluation at the end of an epoch. The few recorded steps do not show how often it comes, so it
    is reported on its own and counted in no share.

    Attributes:
        breakdown: these steps alone.
        indices: their indices among all steps.
        words: what they are: ``the mean of all 6 steps``.
        uneven: how far the steps spread and which were left out, in words; empty if they are alike.
    """

    breakdown: Breakdown
    indices: tuple[int, ...]
    words: str
    uneven: str


def typical(of: Breakdown) -> Typical:
    """All steps of a breakdown in which anything ran."""
    at = [i for i, step in enumerate(of.steps) if not step.is_empty] or list(range(len(of.steps)))
    other = _of_another_kind([of.steps[i] for i in at])
    left_out = [of.steps[at[i]] for i in other]
    at = [index for i, index in enumerate(at) if i not in other]
    n = len(at)
    steps = tuple(of.steps[i] for i in at)
    chosen = of if n == len(of.steps) else replace(of, steps=steps)
    words = "the step" if n == 1 else f"the mean of all {n} steps"
    if left_out:
        words = f"the mean of {n} of {n + len(left_out)} steps"
    elif n < len(of.steps):
        words = "the only step with work in it" if n == 1 else f"{words} in which anything ran"
    wall_ms = [s.wall_ns / 1e6 for s in steps]
    uneven = ""
    if n > 1 and max(wall_ms) > _UNEVEN_FROM * min(wall_ms):
        uneven = f"steps are uneven: {fmt_ms(min(wall_ms))} to {fmt_ms(max(wall_ms))}"
    if left_out:
        uneven = "; ".join(filter(None, (uneven, _not_counted(left_out, steps))))
    return Typical(chosen, tuple(at), words, uneven)


def _of_another_kind(steps: Sequence[StepBreakdown]) -> list[int]:
    """Positions of the few long steps that read many more batches than the others."""
    usual = statistics.median(s.n_fetches for s in steps) if steps else 0
    found = [i for i, s in enumerate(steps) if usual and s.n_fetches >= usual + _MORE_FETCHES]
    others = [s.wall_ns for i, s in enumerate(steps) if i not in found]
    if not found or len(found) > _MOST_EXCEPTIONS * len(steps):
        return []
    median = statistics.median(others)
    return [i for i in found if steps[i].wall_ns > _UNEVEN_FROM * median]


def _not_counted(left_out: Sequence[StepBreakdown], steps: Sequence[StepBreakdown]) -> str:
    usual = statistics.median(s.n_fetches for s in steps)
    most, longest = max(s.n_fetches for s in left_out), max(s.wall_ns for s in left_out)
    which = "another step" if len(left_out) == 1 else f"{len(left_out)} others"
    return (
        f"{which} (up to {fmt_ms(longest / 1e6)}) asked a DataLoader for up to {most} batches, "
        f"not for {usual:.0f}: an evaluation perhaps, and not in these shares"
    )
