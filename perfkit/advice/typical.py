"""The steps that stand for a typical one: shares told beside a median step must be of its like.

One slow step (a saved checkpoint, another process) moves a mean over all steps, but not the
median that stands beside it. So advice and report tell shares of the middle half of the steps by
length; like all shares they add up to 1. ``Breakdown.shares()`` and the JSON keep to all steps.

Workers of a DataLoader deliver in bursts: three steps get their batch at once, the fourth waits
for all of them. There the long steps are no accident, and the middle would hide the wait: then
all steps count. A step in which nothing ran (the profiler's last mark is often one) is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from perfkit.advice.findings import duration
from perfkit.trace.breakdown import Breakdown

# With fewer steps there is no middle.
_LEAST_STEPS = 3
# As much more of the time over all steps than in the middle ones: waits in bursts.
_BURSTS_FROM = 0.1
# The longest step against the shortest one; below, a reader need not care which steps count.
_UNEVEN_FROM = 1.5


@dataclass(frozen=True)
class Typical:
    """The steps whose shares are told.

    Attributes:
        breakdown: these steps alone.
        indices: which of all steps they are.
        words: what they are: ``the mean of the middle 4 of 8 steps by length``.
        uneven: how far the steps spread, in words; empty where they are alike.
    """

    breakdown: Breakdown
    indices: tuple[int, ...]
    words: str
    uneven: str


def typical(of: Breakdown) -> Typical:
    """Choose the steps that stand for a typical one."""
    at = [i for i, step in enumerate(of.steps) if not step.is_empty] or list(range(len(of.steps)))
    n = len(at)
    if n < len(of.steps):
        full = typical(replace(of, steps=tuple(of.steps[i] for i in at)))
        words = f"{full.words} in which anything ran" if n > 1 else "the only one with work in it"
        return replace(full, indices=tuple(at[i] for i in full.indices), words=words)
    uneven = ""
    if n > 1 and max(of.wall_ms) > _UNEVEN_FROM * min(of.wall_ms):
        longest = max(of.wall_ms)
        uneven = f"steps are uneven: {duration(min(of.wall_ms))} to {duration(longest)}"
    if n < _LEAST_STEPS:
        words = "the step" if n == 1 else f"the mean of {n} steps"
        return Typical(of, tuple(range(n)), words, uneven)
    by_length = sorted(range(n), key=lambda i: of.steps[i].wall_ns)
    left_out = math.ceil(n / 4)
    chosen = tuple(sorted(by_length[left_out : n - left_out]))
    middle = replace(of, steps=tuple(of.steps[i] for i in chosen))
    if of.shares()["data wait"] > middle.shares()["data wait"] + _BURSTS_FROM:
        words = f"the mean of all {n} steps, as the DataLoader delivers in bursts"
        return Typical(of, tuple(range(n)), words, uneven)
    words = (
        f"the mean of the middle {len(chosen)} of {n} steps by length"
        if len(chosen) > 1
        else f"the median step of {n}"
    )
    return Typical(middle, chosen, words, uneven)
