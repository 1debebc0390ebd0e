"""Evaluation inside recorded steps: torch's hooks tell it from forward, a trace cannot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from perfkit.advice.typical import typical
from perfkit.base.words import fmt_share
from perfkit.trace.ask.breakdown import Breakdown

# From this share of the recorded steps on, evaluation within them is told.
_LEAST_SHARE = 0.05


def evaluation_note(
    evaluated: Sequence[float] | npt.NDArray[np.float64],
    whole: Sequence[float] | npt.NDArray[np.float64],
    shown: Breakdown,
) -> str:
    """That so much of the recorded steps' time is evaluation; empty where it is little.

    Args:
        evaluated, whole: the time of each recorded step that was evaluation, and all of it.
        shown: the recorded steps. Those of another kind are told on their own, and not here.
    """
    chosen: Sequence[int] = range(len(whole))
    of = "the recorded steps"
    if len(shown.steps) == len(whole) and len(at := typical(shown).indices) < len(whole):
        chosen, of = at, "the steps in these shares"
    some, all_of_it = (sum(times[i] for i in chosen) for times in (evaluated, whole))
    if some < _LEAST_SHARE * all_of_it or not some:
        return ""
    share = fmt_share(some / all_of_it)
    return (
        f"evaluation (or a policy that plays) is {share} of {of}; their picture counts it as "
        "forward, data wait or other, because a trace cannot tell it apart"
    )
