"""Does a series clearly rise or fall over the run?

Step times are heavy-tailed and correlated, so least squares cannot be trusted. The slope is Theil
and Sen's (the median of all pairwise slopes of bin medians), its interval Kendall's, widened by the
remaining correlation between neighbouring bins.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.plain import fields

# Medians of at most this many bins: outliers drop out, and all pairs stay cheap (780).
_BINS = 40
# Fewer points cannot show a trend.
_FEWEST = 10
# Two-sided p < 0.001: the user did not ask for a trend, so false alarms must be very rare.
_CLEAR_P = 0.001
_CONFIDENCE = 0.95
# A change of less than 5 % over the series is lost in the usual noise of a step.
_DRIFT_FROM = 0.05
# A line that rises by this many standard deviations of its residual. None of 9600 simulated AR(1)
# series of 20 to 2000 points with correlations up to 0.98 exceeded 18.
_FAR_ABOVE = 20.0


@dataclass(frozen=True)
class Trend:
    """A robust straight line through a series.

    Attributes:
        slope: change from one value to the next.
        low, high: 95 % interval of the slope (Sen 1968, widened for correlation).
        change: over the whole series, in the unit of the value.
        level: the median of the values, for relative thresholds.
        clear: Kendall's test gives p < 0.001, and both halves of the series go the same way.
    """

    slope: float
    low: float
    high: float
    change: float
    level: float
    clear: bool

    @property
    def start(self) -> float:
        """Where the line begins."""
        return self.level - self.change / 2

    @property
    def relative(self) -> float:
        """Change over the whole series as a share of its level at the start of the line."""
        return self.change / self.start if self.start > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return fields(self, "relative", without=("level",))


def trend(values: npt.ArrayLike) -> Trend | None:
    """The robust trend of a series; None for fewer than 10 points."""
    series = np.asarray(values, dtype=np.float64)
    if len(series) < _FEWEST:
        return None
    at, level = _bins(series)
    slopes = _pairwise_slopes(at, level)
    slope = float(np.median(slopes))
    widening = _correlation_widening(level - slope * at, abs(slope) * float(np.ptp(at)))
    n = len(level)
    # Kendall's S and its variance without ties (Kendall 1938)
    score = float(np.sign(slopes).sum())
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * widening)
    z_clear = NormalDist().inv_cdf(1 - _CLEAR_P / 2)
    clear = abs(score) - 1 > z_clear * deviation and _halves_agree(at, level, slope)
    ranked = np.sort(slopes)
    spread = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2) * deviation
    first = max(int((len(ranked) - spread) / 2), 0)
    last = min(math.ceil((len(ranked) + spread) / 2), len(ranked) - 1)
    return Trend(
        slope=slope,
        low=float(ranked[first]),
        high=float(ranked[last]),
        change=slope * (len(series) - 1),
        level=float(np.median(series)),
        clear=bool(clear),
    )


_Array = npt.NDArray[np.float64]


def drift_of(values: npt.ArrayLike) -> Trend | None:
    """The trend of a series of times, if it is clear and at least 5 %, else None."""
    found = trend(values)
    if found is None or not found.clear or abs(found.relative) < _DRIFT_FROM:
        return None
    return found


def _bins(series: _Array) -> tuple[_Array, _Array]:
    edges = np.linspace(0, len(series), min(_BINS, len(series)) + 1).astype(int)
    middles = (edges[:-1] + edges[1:] - 1) / 2
    return middles, np.array([np.median(series[a:b]) for a, b in itertools.pairwise(edges)])


def _pairwise_slopes(x: _Array, y: _Array) -> _Array:
    early, late = np.triu_indices(len(x), k=1)
    return np.asarray((y[late] - y[early]) / (x[late] - x[early]))


def _correlation_widening(residual: _Array, change: float) -> float:
    """Variance inflation (1 + r) / (1 - r) from the lag-1 correlation of the residual ranks.

    For AR(1) noise that is the inflation of a mean's variance, and it applies to Kendall's S too
    (Yue and Wang 2004). A line far larger than its residual was not made by noise, however
    correlated the residual is (from a slight curve, say).
    """
    if change > _FAR_ABOVE * float(np.std(residual)):
        return 1.0
    ranks = np.argsort(np.argsort(residual)).astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    r = float(ranks[1:] @ ranks[:-1]) / power if power > 0 else 0.0
    # +2/n: the sample correlation of a short series is biased down by about that much
    r = min(max(r + 2 / len(ranks), 0.0), 0.9)
    return (1 + r) / (1 - r)


def _halves_agree(x: _Array, y: _Array, slope: float) -> bool:
    """Each half goes the same way, at least a quarter as fast: one jump is not a trend."""
    middle = len(x) // 2
    halves = (slice(None, middle), slice(middle, None))
    return all(
        float(np.median(_pairwise_slopes(x[half], y[half]))) * np.sign(slope) >= abs(slope) / 4
        for half in halves
    )
