"""The steps since the last update, few enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measure.meter import StepMeter

#: Points per update; more steps than that are drawn as means of neighbours.
MOST_POINTS = 500

Points = tuple[list[float], list[float], list[float]]
"""Step numbers from 1, durations and data waits in milliseconds."""

Start = tuple[int, int, int]
"""The first step of an epoch: its number from 0, its duration and its data wait in ns."""


def points_since(meter: StepMeter, since: int, starts: list[Start]) -> Points:
    """The steps from number ``since`` on, without those that start an epoch.

    Plain Python where they are few, as they are in a training loop: an update comes after much
    other work, and then the first operation of numpy alone takes as long as all of this.

    Args:
        meter: has the steps.
        since: the first one, from 0.
        starts: first steps of epochs, in order.
    """
    left_out = set()
    for first, _, _ in reversed(starts):  # takes no longer after many epochs
        if first < since:
            break
        left_out.add(first)
    rows = zip(*meter.since(since), strict=True)
    kept: list[Sequence[float]] = [
        (n + 1.0, step, wait) for n, step, wait in rows if n not in left_out
    ]
    if len(kept) > MOST_POINTS:
        edges = np.linspace(0, len(kept), MOST_POINTS + 1).astype(int)[:-1]
        sizes = np.diff(edges, append=len(kept))
        kept = (np.add.reduceat(kept, edges) / sizes[:, None]).tolist()
    if not kept:
        return [], [], []
    numbers, step_ms, wait_ms = zip(*kept, strict=True)
    return list(numbers), list(step_ms), list(wait_ms)
