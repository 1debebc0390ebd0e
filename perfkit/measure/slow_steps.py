"""Steps that are not like the others: which, how long, and what they were made of.

Pure functions over the columns of a run. Every sentence stands on a comparison of some steps with
others of the same run; where there are few, it names them and says no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from perfkit.base.words import fmt_ms, fmt_share
from perfkit.measure.meter import Array, Steps
from perfkit.measure.phases import PHASE_WORDS

_Mask = npt.NDArray[np.bool_]

# A mean far above the median: long steps at intervals, such as from workers that deliver in bursts.
# Steps of more than twice the median are the long ones.
_UNEVEN_FROM, _LONG_FROM = 1.5, 2.0
# In a run that is less uneven, steps beyond this many medians are slow where they cost this share
# of the run, beyond what ordinary steps take …
_SLOW_FROM, _LEAST_EXCESS = 1.5, 0.05
# … and each is clearly beyond the spread of the ordinary ones, in interquartile ranges (Tukey).
_FAR_IQR = 3.0
# Below so many steps there is no ordinary one to compare with.
_LEAST_STEPS = 20
# A phase is the cause where it has this share of what slow steps take more.
_MOST_OF_IT = 0.5
# Of one or two slow steps only something that explains nearly all of it.
_NEARLY_ALL = 0.8
_FEW = 3
# An epoch is compared where it has so many steps beside the first one.
_LEAST_IN_EPOCH = 10
_SLOWER_FROM = 1.1


def stands_out(step_ms: Array, median: float) -> _Mask:
    """Which steps are slow, beyond the run's own spread; none where they cost little."""
    if float(step_ms.mean()) > _UNEVEN_FROM * median > 0:
        return np.asarray(step_ms > _LONG_FROM * median)
    none = np.zeros(len(step_ms), dtype=bool)
    if len(step_ms) < _LEAST_STEPS or median <= 0:
        return none
    low, high = np.quantile(step_ms, [0.25, 0.75])
    slow = (step_ms > _SLOW_FROM * median) & (step_ms > high + _FAR_IQR * (high - low))
    excess = float((step_ms[slow] - median).sum())
    return slow if excess >= _LEAST_EXCESS * float(step_ms.sum()) else none


def cause(steps: Steps, slow: _Mask) -> str:
    """What the slow steps are made of, in words; empty where nothing stands out."""
    n_slow = int(slow.sum())
    if not n_slow or len(slow) - n_slow < _LEAST_STEPS - _FEW:
        return ""
    least_ms = (_NEARLY_ALL if n_slow < _FEW else _MOST_OF_IT) * _more(steps.step_ms, slow)
    if least_ms <= 0:
        return ""
    each = "" if n_slow == 1 else " each"
    gc_ms = _more(steps.gc_ms, slow)
    if gc_ms >= least_ms:
        return (
            f"{fmt_ms(gc_ms)} of it{each} is Python's garbage collector: gc.freeze() after the "
            "set-up spares what does not change"
        )
    phase, phase_ms = _most_of(steps, slow)
    return f"{fmt_ms(phase_ms)} more{each} goes to {phase}" if phase_ms >= least_ms else ""


def growing_phase(steps: Steps) -> str:
    """Which phase grows with the steps, in words; empty where no one has most of the growth."""
    n = len(steps)
    late = np.arange(n) >= n // 2
    if n < _LEAST_STEPS or (said := _share_of(steps, late)) is None:
        return ""
    return "{} of it in {}".format(*said)


def first_epoch(steps: Steps, starts: Sequence[int]) -> str:
    """That the first epoch was slower than the later ones, and in what; else empty.

    ``starts`` are the numbers of the epochs' first steps, which ``steps`` may lack.
    """
    if len(starts) < 2:
        return ""
    first, step_ms = steps.numbers < starts[1], steps.step_ms
    if min(first.sum(), (~first).sum()) < _LEAST_IN_EPOCH:
        return ""
    was, now = float(np.median(step_ms[first])), float(np.median(step_ms[~first]))
    apart = np.quantile(step_ms[first], 0.25) > np.quantile(step_ms[~first], 0.75)
    if was < _SLOWER_FROM * now or not apart:
        return ""
    later = "the second's" if len(starts) == 2 else "later ones"
    said = f"the first epoch's steps took {fmt_ms(was)} (median), {later} {fmt_ms(now)}"
    most = _share_of(steps, first)
    if most is None:
        return said
    share, phase = most
    cold = phase == PHASE_WORDS["data_wait"]
    why = ", as when files come from the disk once and from memory afterwards" if cold else ""
    return f"{said}: {share} of the difference is {phase}{why}"


def _share_of(steps: Steps, some: _Mask) -> tuple[str, str] | None:
    """The phase that has most of what these steps take more than the others, with its share."""
    total_ms = _more(steps.step_ms, some)
    if total_ms <= 0:
        return None
    phase, more_ms = _most_of(steps, some)
    share = more_ms / total_ms
    return (fmt_share(min(share, 1.0)), phase) if share >= _MOST_OF_IT else None


def _most_of(steps: Steps, some: _Mask) -> tuple[str, float]:
    more = [(_more(ms, some), PHASE_WORDS[name]) for name, ms in steps.phase_ms.items()]
    more_ms, phase = max(more, default=(0.0, ""))
    return phase, more_ms


def _more(column: Array, some: _Mask) -> float:
    """What these steps usually have more than the others."""
    return float(np.median(column[some]) - np.median(column[~some]))
