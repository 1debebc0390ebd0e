"""The steps since the last update, few enough to be drawn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
    left_out = _starts_from(starts, since)
    if group > 1 or meter.n_kept_since(since) > MOST_POINTS:
        return _many(meter, since, left_out, group)
    numbers, step_ms, wait_ms = meter.few_since(since)
    if left_out:
        kept = [i for i, number in enumerate(numbers) if number not in left_out]
        numbers, step_ms, wait_ms = (
            [numbers[i] for i in kept],
            [step_ms[i] for i in kept],
            [wait_ms[i] for i in kept],
        )
    return [number + 1 for number in numbers], step_ms, wait_ms


def _many(meter: StepMeter, since: int, left_out: list[int], group: int) -> Points:
    numbers, step_ms, wait_ms = meter.since(since)
    columns: list[npt.NDArray[np.float64]] = [numbers.astype(np.float64) + 1, step_ms, wait_ms]
    if group > 1 and len(step_ms):
        ends = group_ends(step_ms, wait_ms)
        if len(ends):
            begins = np.concatenate([[0], ends[:-1] + 1])
            upto = ends[-1] + 1
            columns = [
                np.floor(numbers[ends] / group) + 1,
                *(np.asarray(np.add.reduceat(c[:upto], begins)) for c in columns[1:]),
            ]
            numbers = numbers[ends]
    if left_out:
        keep = ~np.isin(numbers, left_out)
        columns = [column[keep] for column in columns]
    if len(columns[0]) > MOST_POINTS:
        edges = np.linspace(0, len(columns[0]), MOST_POINTS + 1).astype(int)[:-1]
        sizes = np.diff(edges, append=len(columns[0]))
        columns = [np.asarray(np.add.reduceat(c, edges) / sizes) for c in columns]
    return columns[0].tolist(), columns[1].tolist(), columns[2].tolist()


def _starts_from(starts: list[Start], number: int) -> list[int]:
    """Numbers of the starts from ``number`` on; takes no longer after many epochs."""
    found: list[int] = []
    for first, _, _ in reversed(starts):
        if first < number:
            break
        found.append(first)
    return found
