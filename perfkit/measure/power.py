"""How small a difference would a comparison have detected?

"No difference seen" means something only together with the difference that would have been seen.
The smallest effect detected with 80 % probability is the *minimum detectable effect*
(Bloom 1995, Minimum Detectable Effects, Evaluation Review 19(5))::

    effect = (t[α/2] + t[80 %]) · standard error        in logarithms, n - 1 degrees of freedom

The standard error comes from the interval of the comparison, whose half width is t[α/2] times it.
So the prediction is about this interval with all its widenings, not about an ideal one. It rests on
the spread of the blocks, and is as uncertain as a standard deviation of n values (about ±1/√(2n)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfkit.measure._student import central_share, t_quantile

if TYPE_CHECKING:
    from perfkit.measure.compare import Interval

#: The probability of detecting the detectable effect.
POWER = 0.8


def detectable(interval: Interval, n_blocks: int) -> float | None:
    """The smallest effect detected with 80 % probability, as a share: 0.03 is a ratio of 1.03.

    None if the interval is unbounded on one side (a single block).
    """
    found = _error(interval, n_blocks)
    if found is None:
        return None
    half, error = found
    # 80 % on one side is the 60 % interval on both
    return math.expm1(half + t_quantile(2 * POWER - 1, n_blocks - 1) * error)


def power(interval: Interval, n_blocks: int, effect: float = 0.03) -> float | None:
    """The probability that a comparison like this one detects an effect of this share.

    None as in :func:`detectable`.
    """
    found = _error(interval, n_blocks)
    if found is None:
        return None
    half, error = found
    distance = abs(math.log1p(effect)) - half
    if error == 0:
        return float(distance > 0)
    share = central_share(abs(distance) / error, n_blocks - 1)
    return (1 + math.copysign(share, distance)) / 2


def _error(interval: Interval, n_blocks: int) -> tuple[float, float] | None:
    """Half the interval's width in logarithms, and the standard error in it."""
    if n_blocks < 2 or interval.low <= 0 or not math.isfinite(interval.high):
        return None
    half = math.log(interval.high / interval.low) / 2
    return half, half / t_quantile(interval.confidence, n_blocks - 1)
