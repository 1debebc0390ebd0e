"""Steps that are not like the others: which, how long, and what they were made of.

Pure functions over the columns of a run. Every sentence stands on a comparison of slow steps with
ordinary ones of the same run; where there are few, it names them and says no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfkit.base.words import fmt_ms, fmt_share
from perfkit.measure.meter import StepColumns

_Array = npt.NDArray[np.float64]

# Slow steps count where they cost this share of the run, beyond what ordinary steps take …
_LEAST_EXCESS = 0.05
# … and each is clearly beyond the spread of the ordinary ones, in interquartile ranges (Tukey).
_FAR_IQR = 3.0
# Below so many steps there is no ordinary one to compare with.
_LEAST_STEPS = 20
# A phase is the cause where it has this share of what slow steps take more.
_MOST_OF_IT = 0.5
# Of a single slow step only something that explains nearly all of it.
_NEARLY_ALL = 0.8
_FEW = 3
# An epoch is compared where it has so many steps beside the first one.
_LEAST_IN_EPOCH = 10
_SLOWER_FROM = 1.1


@dataclass(frozen=True)
class Cause:
    """What slow steps have more of than the others.

    Attributes:
        kind: a phase, or ``gc``.
        more_ms: mean of what a slow step takes more in it.
        words: the clause for a sentence that has named the steps.
    """

    kind: str
    more_ms: float
    words: str


def stands_out(step_ms: _Array, median: float, long_from: float) -> npt.NDArray[np.bool_]:
    """Which steps are slow, beyond the run's own spread; none where they cost little."""
    none = np.zeros(len(step_ms), dtype=bool)
    if len(step_ms) < _LEAST_STEPS or median <= 0:
        return none
    low, high = np.quantile(step_ms, [0.25, 0.75])
    slow = (step_ms > long_from * median) & (step_ms > high + _FAR_IQR * (high - low))
    excess = float((step_ms[slow] - median).sum())
    return slow if excess >= _LEAST_EXCESS * float(step_ms.sum()) else none


def cause(columns: StepColumns, step_ms: _Array, slow: npt.NDArray[np.bool_]) -> Cause | None:
    """What the slow steps are made of; None where nothing stands out."""
    n_slow, n_rest = int(slow.sum()), int((~slow).sum())
    if not n_slow or n_rest < _LEAST_STEPS - _FEW:
        return None
    more_ms = float(step_ms[slow].mean() - np.median(step_ms[~slow]))
    if more_ms <= 0:
        return None
    least = _NEARLY_ALL if n_slow < _FEW else _MOST_OF_IT
    each = "" if n_slow == 1 else " each"
    gc_ms = _more(columns.gc_ms, slow)
    if gc_ms >= least * more_ms:
        return Cause(
            "gc",
            gc_ms,
            f"{fmt_ms(gc_ms)} of it{each} is Python's garbage collector: gc.freeze() after the "
            "set-up spares what does not change",
        )
    found = max(columns.phase_ms, key=lambda name: _more(columns.phase_ms[name], slow))
    phase_ms = _more(columns.phase_ms[found], slow)
    if phase_ms < least * more_ms:
        return None
    return Cause(found, phase_ms, f"{fmt_ms(phase_ms)} more{each} goes to {_named(found)}")


def _more(column: _Array, slow: npt.NDArray[np.bool_]) -> float:
    return float(column[slow].mean() - np.median(column[~slow]))


def growing_phase(columns: StepColumns, step_ms: _Array) -> str:
    """Which phase grows with the steps, in words; empty where no one has most of the growth."""
    n = len(step_ms)
    if n < _LEAST_STEPS:
        return ""
    half = n // 2

    def grown(column: _Array) -> float:
        return float(np.median(column[half:]) - np.median(column[:half]))

    total = grown(step_ms)
    if total <= 0:
        return ""
    found = max(columns.phase_ms, key=lambda name: grown(columns.phase_ms[name]))
    share = grown(columns.phase_ms[found]) / total
    if share < _MOST_OF_IT:
        return ""
    return f"{fmt_share(min(share, 1.0))} of it in {_named(found)}"


def first_epoch(
    numbers: npt.NDArray[np.int64],
    step_ms: _Array,
    starts: Sequence[int],
    columns: StepColumns | None,
) -> str:
    """That the first epoch was slower than the later ones, and in what; else empty.

    Args:
        numbers: of the steps, from 0; the first one of each epoch may be missing.
        step_ms: how long they took.
        starts: the number of each epoch's first step.
        columns: what they were made of, if known.
    """
    if len(starts) < 2:
        return ""
    first = numbers < starts[1]
    rest = ~first
    if first.sum() < _LEAST_IN_EPOCH or rest.sum() < _LEAST_IN_EPOCH:
        return ""
    was, now = float(np.median(step_ms[first])), float(np.median(step_ms[rest]))
    apart = np.quantile(step_ms[first], 0.25) > np.quantile(step_ms[rest], 0.75)
    if was < _SLOWER_FROM * now or not apart:
        return ""
    later = "the second's" if len(starts) == 2 else "later ones"
    said = f"the first epoch's steps took {fmt_ms(was)} (median), {later} {fmt_ms(now)}"
    if columns is None:
        return said

    def less(column: _Array) -> float:
        return float(np.median(column[first]) - np.median(column[rest]))

    found = max(columns.phase_ms, key=lambda name: less(columns.phase_ms[name]))
    share = less(columns.phase_ms[found]) / (was - now)
    if share < _MOST_OF_IT:
        return said
    why = (
        ", as when files come from the disk once and from memory afterwards"
        if found == "data_wait"
        else ""
    )
    return f"{said}: {fmt_share(min(share, 1.0))} of the difference is {_named(found)}{why}"


def _named(phase: str) -> str:
    return _NAMES.get(phase, phase)


_NAMES = {
    "data_wait": "waiting for data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "checkpoint": "saving a checkpoint",
    "other": "code outside of model, backward pass and optimizer",
}
