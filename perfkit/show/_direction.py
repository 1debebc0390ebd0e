"""A comparison's ratio the way round in which its sentence tells it.

"'old' is 1.61× as fast" above a table that says "first ÷ second 0.621×" is the same figure twice,
and reads as two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from perfkit.base.printable import printable
from perfkit.base.words import fmt_interval, fmt_ratio, fmt_share, no_difference, plural
from perfkit.show._plot import Line, Plot, Point, thinned

_NAME = 40  # characters of an arm's name


class Compared(Protocol):
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


def headline(names: tuple[str, str], found: Compared) -> str:
    """The answer in a few words: of the second arm, against the first."""
    if not (found.low > 0 and math.isfinite(found.high)):
        return "Too little was measured to tell."
    if found.low <= 1 <= found.high:
        most = max(found.high, 1 / found.low) - 1
        steady = no_difference(found.low, found.high) == "no difference seen"
        return (
            f"No difference larger than {fmt_share(most)}."
            if steady
            else (f"Too unsteady to tell: {fmt_ratio(found.low)} to {fmt_ratio(found.high)}.")
        )
    way = "as fast" if found.ratio > 1 else "slower"
    return f"{printable(names[1], _NAME)}: {fmt_ratio(told(found).ratio)} {way}."


def told(found: Compared) -> Told:
    """Above 1 where a difference was seen, whichever arm is faster."""
    if found.high < 1 and found.ratio > 0:
        low = 1 / found.high if found.high > 0 else 0.0
        high = 1 / found.low if found.low > 0 else math.inf
        return Told(True, 1 / found.ratio, low, high)
    return Told(False, found.ratio, found.low, found.high)


def blocks(
    found: Compared, names: tuple[str, str], ratios: Sequence[float], per: str = "call"
) -> tuple[Plot, ...]:
    """The ratio of each block, with the interval of them all."""
    if not ratios:
        return ()
    turned, ratio, low, high = told(found)
    points = tuple(Point(i, 1 / r if turned else r) for i, r in enumerate(ratios, 1))
    first, second = names[:: -1 if turned else 1]
    known = low > 0 and math.isfinite(high)
    least, most = (fmt_ratio(end(p.y for p in points)) for end in (min, max))
    within = f", interval {fmt_interval(low, high)}" if known else ", no interval"
    return (
        Plot(
            title=f"{first} ÷ {second}, block by block",
            words=f"{plural(len(points), 'block')} from {least} to {most}: "
            f"{fmt_ratio(ratio)}{within}",
            lines=(Line("", thinned(points), joined=False),),
            x_label="blocks",
            y_label=f"ratio of the times per {per}; the band is its interval",
            levels=((1.0, "equal"),),
            band=(low, high) if known else None,
            show=fmt_ratio,
            from_zero=False,
        ),
    )
