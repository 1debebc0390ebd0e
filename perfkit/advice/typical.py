"""The steps whose shares are shown: all except those in which nothing ran.

The mean over all steps is what the user pays. If steps differ much, the spread is shown too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfkit.trace.breakdown import Breakdown
from perfkit.words import fmt_ms

# Longest over shortest step; below this the spread does not matter.
_UNEVEN_FROM = 1.5


@dataclass(frozen=True)
class Typical:
    """The steps whose shares are shown.

    Attributes:
        breakdown: these steps alone.
        indices: their indices among all steps.
        words: what they are: ``the mean of all 6 steps``.
        uneven: how far the steps spread, in words; empty if they are alike.
    """

    breakdown: Breakdown
    indices: tuple[int, ...]
    words: str
    uneven: str


def typical(of: Breakdown) -> Typical:
    """All steps of a breakdown in which anything ran."""
    at = [i for i, step in enumerate(of.steps) if not step.is_empty] or list(range(len(of.steps)))
    n = len(at)
    steps = tuple(of.steps[i] for i in at)
    chosen = of if n == len(of.steps) else replace(of, steps=steps)
    words = "the step" if n == 1 else f"the mean of all {n} steps"
    if n < len(of.steps):
        words = "the only step with work in it" if n == 1 else f"{words} in which anything ran"
    wall_ms = [s.wall_ns / 1e6 for s in steps]
    uneven = ""
    if n > 1 and max(wall_ms) > _UNEVEN_FROM * min(wall_ms):
        uneven = f"steps are uneven: {fmt_ms(min(wall_ms))} to {fmt_ms(max(wall_ms))}"
    return Typical(chosen, tuple(at), words, uneven)
