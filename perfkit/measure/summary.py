"""Many measurements of one thing as n, median and interval, with reasons to doubt them.

A step time is a distribution with warm-up, drift and outliers, so its centre is the median, and the
median's interval comes from order statistics, which assume no shape. Successive values are
correlated; the interval is widened accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_chosen_share, fmt_ratio, fmt_share

#: From these shares of a step on, what could be removed bounds it, or bounds it in part: without it
#: a step is at most 1 / (1 - share) times as fast, 2× at one half, 1.25× at a fifth.
DATA_BOUND_FROM, PARTLY_FROM = 0.5, 0.2
# The middle half of the values spans more than a quarter of the median: torch.utils.benchmark
# (utils/common.py, _IQR_GROSS_WARN_THRESHOLD) calls this a gross spread.
WIDE_SPREAD = 0.25
_CONFIDENCE = 0.95
# The first value is an outlier if it is this many times the median of the others.
_WARM_UP_FACTOR = 2.0
# With fewer values not even the whole range is a 95 % interval (1 - 2 * 0.5**5).
_FEW = 6
# Exact binomial ranks up to this n; above, the normal approximation is right to one rank.
_EXACT_UP_TO = 500
# Fewer values cannot show correlation in time.
_CORRELATION_FROM = 20


@dataclass(frozen=True)
class Summary(Shown):
    """n measurements of one thing.

    Attributes:
        low, high: interval of the median at ``confidence``, in ``unit``.
        confidence: what the interval reaches: 95 %, or less if n is too small.
        unit: of all figures, e.g. ``"ms"``.
        warnings: reasons to doubt these figures, one sentence each.
    """

    n: int
    median: float
    low: float
    high: float
    confidence: float
    unit: str
    minimum: float
    maximum: float
    warnings: tuple[str, ...] = ()


def summarize(values: Sequence[float] | npt.NDArray[Any], *, unit: str = "ms") -> Summary:
    """Summarise values in the order in which they were measured.

    The interval runs between two order statistics (David and Nagaraja, Order Statistics, 7.1),
    whose ranks are moved apart by the square root of the autocorrelation time of the signs about
    the median: n correlated values are worth less than n independent ones.

    Args:
        values: measurements in time order, all finite and ≥ 0.

    Raises:
        UsageError: there are no values.
    """
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if not n:
        raise UsageError("there is nothing to summarise: no value was measured")
    ordered = np.sort(data)
    rank, reached = _lower_rank(n)
    centre = (n + 1) / 2
    together = _correlation_time(data)
    rank = max(1, math.floor(centre - (centre - rank) * math.sqrt(together)))
    return Summary(
        n=n,
        median=float(np.median(ordered)),
        low=float(ordered[rank - 1]),
        high=float(ordered[n - rank]),
        confidence=reached,
        unit=unit,
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        warnings=tuple(_doubts(data, ordered, reached, together)),
    )


def _lower_rank(n: int) -> tuple[int, float]:
    """Rank (from 1) of the interval's lower end for independent values, and its confidence."""
    tail = (1 - _CONFIDENCE) / 2
    if n > _EXACT_UP_TO:
        half = NormalDist().inv_cdf(1 - tail) * math.sqrt(n) / 2
        return max(1, math.floor((n + 1) / 2 - half)), _CONFIDENCE
    below = 0.0  # P(fewer than `rank` values are below the true median)
    rank = 0
    while below + math.comb(n, rank) * 0.5**n <= tail:
        below += math.comb(n, rank) * 0.5**n
        rank += 1
    if rank == 0:
        return 1, 1 - 2 * 0.5**n
    return rank, _CONFIDENCE


def _correlation_time(data: npt.NDArray[np.float64]) -> float:
    """How many successive values are worth one independent value (1 for independent ones).

    Summed autocorrelation of the signs about the median, with Sokal's window: up to the first
    lag that is five times the sum so far.
    """
    n = len(data)
    if n < _CORRELATION_FROM:
        return 1.0
    signs = np.sign(data - np.median(data))
    power = float(signs @ signs)
    if power == 0:
        return 1.0
    # autocorrelation at all lags, from the power spectrum (padded, so it does not wrap around)
    spectrum = np.fft.rfft(signs, 2 * n)
    shares = np.fft.irfft(np.abs(spectrum) ** 2)[1 : n // 4] / power
    sums = 1 + 2 * np.cumsum(shares)
    wide_enough = np.arange(1, len(sums) + 1) >= 5 * sums
    lag = int(np.argmax(wide_enough)) if wide_enough.any() else len(sums) - 1
    return min(max(float(sums[lag]), 1.0), n / 4)


def _doubts(
    data: npt.NDArray[np.float64], ordered: npt.NDArray[np.float64], reached: float, together: float
) -> Iterable[str]:
    n = len(data)
    median = float(np.median(ordered))
    if reached < _CONFIDENCE:
        yield (
            f"only {n} value{'s' * (n != 1)}: the interval is their whole range, "
            f"{fmt_chosen_share(reached)} instead of {fmt_chosen_share(_CONFIDENCE)}; measure at "
            f"least {_FEW}"
        )
    if together > 1 and n / together < _FEW:
        yield (
            f"the values are correlated in time: {n} of them are worth no more than about "
            f"{max(round(n / together), 1)} independent ones, the interval is too narrow"
        )
    if n < 4 or median <= 0:
        return
    first, others = float(data[0]), float(np.median(data[1:]))
    if others > 0 and first > _WARM_UP_FACTOR * others and first >= float(np.max(data[1:3])):
        yield (
            f"the first value is {fmt_ratio(first / others)} the median of the others: warm up "
            "first"
        )
    lower, upper = np.quantile(ordered, [0.25, 0.75])
    spread = float(upper - lower) / median
    if spread > WIDE_SPREAD:
        yield f"wide spread: the middle half of the values spans {fmt_share(spread)} of the median"
    from perfkit.base.trend import drift_of

    drift = drift_of(data)
    if drift is not None:
        way = "rose" if drift.change > 0 else "fell"
        yield f"drift: the values {way} by {fmt_share(abs(drift.relative))} while measured"
