"""Quantiles of Student's t, for intervals over few blocks (scipy is not a dependency)."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

# Above this many degrees of freedom, t and normal quantiles differ by less than 0.6 %.
_NORMAL_FROM = 200


def central_share(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom, in closed form.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    if odd:
        return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return sine * total


@functools.cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t for which P(|T| < t) is ``confidence``, by bisection."""
    if freedom > _NORMAL_FROM:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, 1.0
    while central_share(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if central_share(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2
