"""Batches that are fetched several at a time, as trainers do that accumulate gradients.

Such a trainer asks for K batches in a row and then works on all of them. Between two fetches of
a group it does nothing, so most "steps" would be a data wait alone, and their median says
nothing. The group is the step then.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["group_ends", "group_size"]

# Between two fetches of a group there is a line or two of the trainer's Python. A training step
# of any size takes longer.
_NOTHING_MS = 0.15
_NOTHING_SHARE = 0.05
# So many groups, and so much of the run, must follow the pattern.
_FEWEST_GROUPS = 4
_MOST_OF_THEM = 0.8

_Array = npt.NDArray[np.float64]


def group_size(step_ms: _Array, wait_ms: _Array) -> int:
    """How many batches are fetched before there is work; 1 where each gets its own."""
    gaps = np.diff(np.flatnonzero(_works(step_ms, wait_ms)))
    if len(gaps) < _FEWEST_GROUPS:
        return 1
    size = int(np.median(gaps))
    return size if size > 1 and float(np.mean(gaps == size)) >= _MOST_OF_THEM else 1


def group_ends(step_ms: _Array, wait_ms: _Array) -> npt.NDArray[np.intp]:
    """Where each group ends: its last batch is the one that is followed by work."""
    return np.flatnonzero(_works(step_ms, wait_ms))


def _works(step_ms: _Array, wait_ms: _Array) -> npt.NDArray[np.bool_]:
    work = step_ms - wait_ms
    if not len(work):
        return np.zeros(0, bool)
    return np.asarray(work > min(_NOTHING_MS, _NOTHING_SHARE * float(work.mean())))
