"""At which value does more of a setting stop helping?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from perfkit.base.words import fmt_chosen_share, fmt_interval, fmt_ratio
from perfkit.measure.paired import Interval

_WIDEST = 2


@dataclass(frozen=True)
class Knee:
    """The smallest value that is not distinguishably slower than the best one.

    The rule: going up from the smallest value, the first whose time per step (or sample) is not
    shown to be more than ``margin`` above that of the fastest value ("shown" means that the whole
    interval of the ratio is beyond the margin), and whose measured time is at most twice the margin
    above it; otherwise a wide interval would pass for equality.

    Attributes:
        setting: its name.
        value: the knee.
        best: the fastest value.
        ratio: time at the knee ÷ time at the best, with its interval; 1 if they are the same value.
        margin: the difference that does not count, as a share: 0.05 for 5 %.
        sure: whether the intervals are narrow enough to say that the knee loses no more than the
            margin, and that every smaller value does.
        undecided: smaller values that are not shown to lose more than the margin.
        sentence: the answer in words.
    """

    setting: str
    value: Any
    best: Any
    ratio: Interval
    margin: float
    sure: bool
    undecided: tuple[Any, ...]
    sentence: str


def knee_of(setting: str, values: Sequence[tuple[Any, Interval]], best: Any, margin: float) -> Knee:
    """Find the knee.

    Args:
        values: in ascending order, each with the interval of its time ÷ the best's time.
        best: the fastest value.
    """
    value, ratio = next(
        (v, r)
        for v, r in values
        if v == best or (r.low <= 1 + margin and r.ratio <= 1 + _WIDEST * margin)
    )
    shown = value == best or ratio.high <= 1 + margin
    before = values[: [v for v, _ in values].index(value)]
    undecided = tuple(v for v, r in before if r.low <= 1 + margin)
    percent = fmt_chosen_share(margin)
    if value == best and value == values[-1][0] and len(values) > 1:
        said = f"No knee up to {setting}={value!r}, the fastest"
        if not undecided:
            said += f": every smaller value is more than {percent} slower"
    elif value == best:
        said = f"The knee of {setting} is {value!r}, which is also the fastest"
    else:
        said = (
            f"The knee of {setting} is {value!r}: it takes {fmt_ratio(ratio.ratio)} the time of "
            "the "
            f"fastest, {best!r} {fmt_interval(ratio.low, ratio.high)}"
        )
    if undecided:
        whose = "their intervals are" if len(undecided) > 1 else "its interval is"
        endless = any(not isfinite(r.high) for _, r in before)
        why = "too few rounds were run for an interval" if endless else f"{whose} wide"
        said += (
            f". It is not shown that {' or '.join(map(repr, undecided))} would be worse: {why}; "
            "raise budget_s"
        )
    if not shown:
        said += (
            f". It is not shown that it loses at most {percent}: the interval is wide; raise "
            "budget_s"
        )
    sure = shown and not undecided
    return Knee(setting, value, best, ratio, margin, sure, undecided, f"{said}.")
