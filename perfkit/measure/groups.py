"""Batches fetched several at a time, as trainers do for gradient accumulation.

Such a trainer asks for K batches in a row and then works on all of them. Most "steps" would then be
nothing but a data wait, and their median would mean nothing, so the group is the step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Between two fetches of a group the trainer runs a line or two of Python. A step with more work
#: than that is the end of a group, or a step by itself.
NOTHING_NS = 150_000
_NOTHING_SHARE = 0.05
# At least this many groups, and this share of the run, must follow the pattern.
_FEWEST_GROUPS = 4
_MOST_OF_THEM = 0.8

_Array = npt.NDArray[np.float64]


def group_size(step_ms: _Array, wait_ms: _Array) -> int:
    """How many batches are fetched before any work is done; 1 if each is worked on at once."""
    gaps = np.diff(np.flatnonzero(_works(step_ms, wait_ms)))
    if len(gaps) < _FEWEST_GROUPS:
        return 1
    size = int(np.median(gaps))
    return size if size > 1 and float(np.mean(gaps == size)) >= _MOST_OF_THEM else 1


def group_ends(step_ms: _Array, wait_ms: _Array) -> npt.NDArray[np.intp]:
    """Where each group ends: its last batch is the one followed by work."""
    return np.flatnonzero(_works(step_ms, wait_ms))


def _works(step_ms: _Array, wait_ms: _Array) -> npt.NDArray[np.bool_]:
    work = step_ms - wait_ms
    if not len(work):
        return np.zeros(0, bool)
    return np.asarray(work > min(NOTHING_NS / 1e6, _NOTHING_SHARE * float(work.mean())))
