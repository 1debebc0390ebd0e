"""From where on does more of a setting bring nothing?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.timing.compare import Interval

__all__ = ["Knee", "knee_of"]

_WIDEST = 2


@dataclass(frozen=True)
class Knee:
    """The smallest value that is not distinguishably slower than the best one.

    The rule: of all values from the smallest on, the first whose time per step (or sample) is
    not shown to be more than ``margin`` above that of the fastest value ("shown" means that the
    interval of the ratio lies beyond the margin as a whole), and is measured no more than twice
    the margin above it: else a wide interval would pass for equality.

    Attributes:
        setting: its name.
        value: the knee.
        best: the fastest value.
        ratio: time at the knee ÷ time at the best, with its interval; 1 where they are one.
        margin: the share that does not count, 0.05 for 5 %.
        sure: whether the interval is narrow enough to say that the knee loses no more than the
            margin. Where it is not, a smaller value may only seem to do.
        sentence: all this in words.
    """

    setting: str
    value: Any
    best: Any
    ratio: Interval
    margin: float
    sure: bool
    sentence: str


def knee_of(setting: str, values: Sequence[tuple[Any, Interval]], best: Any, margin: float) -> Knee:
    """Find the knee.

    Args:
        values: in ascending order, each with the interval of its time ÷ the best's time.
        best: the value of the fastest.
    """
    value, ratio = next(
        (v, r)
        for v, r in values
        if v == best or (r.low <= 1 + margin and r.ratio <= 1 + _WIDEST * margin)
    )
    sure = value == best or ratio.high <= 1 + margin
    percent = f"{100 * margin:.3g} %"
    if value == best and value == values[-1][0] and len(values) > 1:
        said = (
            f"No knee up to {setting}={value!r}: every smaller value is more than {percent} slower"
        )
    elif value == best:
        said = f"The knee of {setting} is {value!r}, which is also the fastest"
    else:
        said = (
            f"The knee of {setting} is {value!r}: it takes {ratio.ratio:.3f}× the time of the "
            f"fastest, {best!r} [{ratio.low:.3f}, {ratio.high:.3f}]"
        )
    if not sure:
        said += (
            f". That it loses no more than {percent} is not shown: the interval is wide; raise "
            "budget_s"
        )
    return Knee(setting, value, best, ratio, margin, sure, f"{said}.")
