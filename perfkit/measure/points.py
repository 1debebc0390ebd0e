"""The steps since the last update, few enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measure.groups import group_ends
from perfkit.measure.meter import StepMeter

#: Points per update; more steps than that are drawn as means of neighbours.
MOST_POINTS = 500

Points = tuple[list[float], list[float], list[float]]
"""Step numbers from 1, durations and data waits in milliseconds."""

Start = tuple[int, int, int]
"""The first step of an epoch: its number from 0, its duration and its data wait in ns."""


def points_since(meter: StepMeter, since: int, starts: list[Start], group: int = 1) -> Points:
    """The steps from number ``since`` on, without those that start an epoch.

    Plain Python where they are few, as they are in a training loop: an update comes after much
    other work, and then the first operation of numpy alone takes as long as all of this.

    Args:
        meter: has the steps.
        since: the first one, from 0.
        starts: first steps of epochs, in order.
        group: how many batches make a step; see :mod:`perfkit.measure.groups`.
    """
    left_out = set()
    for first, _, _ in reversed(starts):  # takes no longer after many epochs
        if first < since:
            break
        left_out.add(first)
    rows = zip(*meter.since(since), strict=True)
    kept: list[Sequence[float]] = [
        (n + 1.0, step, wait) for n, step, wait in rows if group > 1 or n not in left_out
    ]
    if group > 1 and kept:
        columns = np.array(kept).T
        ends = group_ends(columns[1], columns[2])
        begins = np.concatenate([[0], ends[:-1] + 1]).astype(int)
        if len(ends):
            whole = np.add.reduceat(columns[:, : ends[-1] + 1], begins, axis=1)
            whole[0] = np.floor((columns[0][ends] - 1) / group) + 1
            last = columns[0][ends] - 1
            kept = whole.T[~np.isin(last, list(left_out))].tolist()
    if len(kept) > MOST_POINTS:
        edges = np.linspace(0, len(kept), MOST_POINTS + 1).astype(int)[:-1]
        sizes = np.diff(edges, append=len(kept))
        kept = (np.add.reduceat(kept, edges) / sizes[:, None]).tolist()
    if not kept:
        return [], [], []
    numbers, step_ms, wait_ms = zip(*kept, strict=True)
    return list(numbers), list(step_ms), list(wait_ms)
