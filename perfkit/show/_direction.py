"""A comparison's ratio the way round in which its sentence tells it.

"'old' is 1.61× as fast" above a table that says "first ÷ second 0.621×" is the same figure twice,
and reads as two.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol


class _Compared(Protocol):
    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Told(NamedTuple):
    """A ratio of two times with its interval.

    Attributes:
        turned: whether it is the second arm's time ÷ the first's.
        ratio, low, high: with ``high`` infinite where there is no interval.
    """

    turned: bool
    ratio: float
    low: float
    high: float


def told(found: _Compared) -> Told:
    """Above 1 where a difference was seen, whichever arm is faster."""
    if found.high < 1 and found.ratio > 0:
        low = 1 / found.high if found.high > 0 else 0.0
        high = 1 / found.low if found.low > 0 else math.inf
        return Told(True, 1 / found.ratio, low, high)
    return Told(False, found.ratio, found.low, found.high)
