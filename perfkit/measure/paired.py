"""The ratio of two arms measured in blocks, with its interval.

Each block contains both arms, so it has a ratio of its own, in which changes between blocks cancel.
The estimate is the centre of the blocks' log ratios (Hodges and Lehmann 1963); the interval inverts
Wilcoxon's signed-rank test.

The order within a block is random. If there is no difference, a block's ratio is therefore as
likely to be above 1 as below it, whatever the machine does to successive letters: drift, load,
correlation in time and heavy tails change its size, not its sign. So by construction the interval
misses the truth in at most 5 % of comparisons, and it uses the pairing within blocks: of 30 true
differences of 5 % it found 20, a ratio of medians 9.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from perfkit.base.errors import MeasurementError

#: Ranks of five blocks cannot reach 95 %: all five agree by chance in 6 % of cases.
FEWEST = 6
_FEWEST_OF_ALL = 3
_CONFIDENCE = 0.95
# Measuring may stop when the interval is this narrow: 2 % of the ratio, or a tenth of the gain (in
# logarithms) if the gain is large.
_TIGHT = 0.02
_TIGHT_OF_GAIN = 0.1
# The exact distribution takes n³ steps; from this n on the normal one gives the same rank at 95 %,
# or the next lower one of hundreds, and lower ones at higher confidence: never too narrow.
_EXACT_UP_TO = 50
# n² / 2 averages are sorted; beyond this many, neighbouring blocks are joined.
_MOST = 1500
# Each look of :class:`Looks` comes after this many times the blocks of the one before.
_GROWTH = 1.5

Array = npt.NDArray[np.float64]


class Looks:
    """When a measurement in turns looks at its interval, to stop if it is tight.

    At a few geometrically spaced moments, and only at the interval's width: looking after every
    block, or stopping when a difference appears, would give too many false ones.
    """

    def __init__(self, first: int) -> None:
        self._next = first

    def is_due(self, done: int) -> bool:
        """Whether to look after so many blocks; asked once after each."""
        if done < self._next:
            return False
        self._next = math.ceil(done * _GROWTH)
        return True


@dataclass(frozen=True)
class Interval:
    """A ratio with its interval at ``confidence``, from ``n_blocks`` blocks."""

    ratio: float
    low: float
    high: float
    confidence: float
    n_blocks: int = 0

    @property
    def different(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1 <= self.high

    @property
    def known(self) -> bool:
        """Whether there is an interval: one or two blocks give none."""
        return self.low > 0 and math.isfinite(self.high)

    @property
    def tight(self) -> bool:
        """Narrow enough to stop: 2 % wide, or a tenth of the gain."""
        width = math.log(self.high / self.low) if self.low > 0 else math.inf
        return width <= max(_TIGHT, _TIGHT_OF_GAIN * abs(math.log(self.ratio)))

    @property
    def detectable(self) -> float | None:
        """The smallest difference that blocks like these detect with 80 % probability.

        As a share: 0.03 is a ratio of 1.03; None for one block. It is the minimum detectable effect
        (Bloom 1995, Evaluation Review 19(5)), ``(t[α/2] + t[80 %]) · standard error`` in logarithms
        with n - 1 degrees of freedom. The half width of this interval is t[α/2] standard errors.
        """
        if self.n_blocks < 2 or not self.known:
            return None
        half = math.log(self.high / self.low) / 2
        error = half / t_quantile(self.confidence, self.n_blocks - 1)
        # 80 % on one side is the 60 % interval on both
        return math.expm1(half + t_quantile(0.6, self.n_blocks - 1) * error)


def ratio_interval(
    first: Sequence[float] | Sequence[Sequence[float]] | Array,
    second: Sequence[float] | Sequence[Sequence[float]] | Array,
    *,
    confidence: float = _CONFIDENCE,
) -> Interval:
    """How many times longer ``first`` takes than ``second``, over blocks of both.

    With fewer blocks than the ranks need for ``confidence`` (6 for 95 %), the interval is Student's
    t of the log ratios, or their range if that is wider. One or two blocks with positive times give
    no interval, because two that agree by chance would look certain: its ends are 0 and infinity.

    Args:
        first, second: one time per block, or an array of blocks × letters; in the same unit and the
            same block order.

    Raises:
        MeasurementError: no block has positive times for both.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    usable = (a > 0).all(axis=1) & (b > 0).all(axis=1)
    if not usable.any():
        raise MeasurementError(
            "the clock did not advance during the calls: there is no time to compare"
        )
    own = np.log(a[usable]).mean(axis=1) - np.log(b[usable]).mean(axis=1)
    n = len(own)
    if n < _FEWEST_OF_ALL:
        return Interval(math.exp(own.mean()), 0.0, math.inf, confidence, n)
    centre, low, high = _centre(own, confidence)
    return Interval(math.exp(centre), math.exp(low), math.exp(high), confidence, n)


def _centre(own: Array, confidence: float) -> tuple[float, float, float]:
    """Centre of three or more log ratios, with its interval."""
    if len(own) > _MOST:
        own = np.array([part.mean() for part in np.array_split(own, _MOST)])
    n = len(own)
    rows, columns = np.triu_indices(n)
    walsh = np.sort((own[rows] + own[columns]) / 2)
    centre = float(np.median(walsh))
    rank = _signed_rank(n, confidence)
    if rank is not None:
        return centre, float(walsh[rank]), float(walsh[-1 - rank])
    # t keeps its level for symmetric tails of any weight (Efron 1969)
    half = t_quantile(confidence, n - 1) * float(own.std(ddof=1)) / math.sqrt(n)
    middle = float(own.mean())
    return centre, min(middle - half, float(own.min())), max(middle + half, float(own.max()))


@functools.cache
def _signed_rank(n: int, confidence: float) -> int | None:
    """How many Walsh averages of n blocks are cut off on each side; None where all are too few."""
    tail = (1 - confidence) / 2
    if 0.5**n > tail:
        return None
    if n > _EXACT_UP_TO:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return int(n * (n + 1) / 4 + NormalDist().inv_cdf(tail) * deviation)
    share = np.zeros(n * (n + 1) // 2 + 1)
    share[0] = 1.0
    for rank in range(1, n + 1):  # each rank is either in the sum or not
        share[rank:] = (share[rank:] + share[:-rank]) / 2
        share[:rank] /= 2
    # a rank sum this small would be significant, so one average fewer may be cut off
    return max(int(np.searchsorted(np.cumsum(share), tail, side="right")) - 1, 0)


@functools.cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t for which P(|T| < t) is ``confidence``: scipy is no dependency.

    With t = √freedom · tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.cumsum(density) - (density + density[0]) / 2  # trapezoids
    return math.sqrt(freedom) * math.tan(np.interp(confidence * below[-1], below, angles))
