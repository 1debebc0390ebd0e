"""The steps whose shares are shown: all of them, but for those in which nothing ran.

A mean over all steps is what the user pays. Where steps differ much, the spread is shown
beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfkit.trace.breakdown import Breakdown
from perfkit.words import fmt_ms

# The longest step against the shortest one; below, a reader need not care.
_UNEVEN_FROM = 1.5


@dataclass(frozen=True)
class Typical:
    """The steps whose shares are shown.

    Attributes:
        breakdown: these steps alone.
        indices: which of all steps they are.
        words: what they are: ``the mean of all 6 steps``.
        uneven: how far the steps spread, in words; empty where they are alike.
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
