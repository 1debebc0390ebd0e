"""What recording itself cost, so that it can be told beside the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from perfkit.base.words import fmt_change, fmt_ms, fmt_s, no_difference, plural

_CONFIDENCE = 0.95
# Up to so many pairs the ranks are counted exactly; beyond, the normal curve is as good.
_EXACT_PAIRS = 400
# A profiler makes no step so many times as long: 1.7 times was measured for tiny operations on a
# CPU, 1.9 times for a ResNet-50 on an H100. Steps that compile, load or wait are.
_MOST_SLOWDOWN = 3.0
# Marks and hooks may add this much to any step, also to one of microseconds.
_FIXED_MS = 1.0
# A profiler makes nothing faster; where recorded steps took less than this share of the others, the
# steps themselves differ.
_LEAST_SLOWDOWN = 0.9


@dataclass(frozen=True)
class Cost:
    """What recording cost.

    Attributes:
        profiled_step_ms: median step while the profiler ran; None where no step was seen.
        unprofiled_step_ms: median of later steps without it, which still have perfkit's hooks (the
            end of a step is seen, lines are sampled); None where none followed.
        n_profiled: how many steps the first figure stands on.
        n_unprofiled: how many the second.
        stop_s: seconds that stopping the profiler took, once.
        read_s: seconds to write the trace out and read it back, once, after the region.
        n_events: events recorded.
        slowdown_interval: 95 % interval of the ratio of profiled to unprofiled steps (see
            :func:`ratio_interval`); None where there are too few for one.
        stays_attached: whether launches stay slower until the process ends.
    """

    profiled_step_ms: float | None
    unprofiled_step_ms: float | None
    n_profiled: int
    n_unprofiled: int
    stop_s: float
    read_s: float
    n_events: int
    slowdown_interval: tuple[float, float] | None = None
    stays_attached: bool = False

    @property
    def slowdown(self) -> float | None:
        """Profiled over unprofiled median step; None where one of them is missing."""
        if not self.profiled_step_ms or not self.unprofiled_step_ms:
            return None
        return self.profiled_step_ms / self.unprofiled_step_ms

    @property
    def is_clear(self) -> bool:
        """Whether profiled steps are longer than the others beyond their spread."""
        return self.slowdown_interval is not None and self.slowdown_interval[0] > 1

    @property
    def plain_step_ms(self) -> float | None:
        """``unprofiled_step_ms`` where those are the same steps but for the profiler; else None."""
        plain, profiled = self.unprofiled_step_ms, self.profiled_step_ms
        if not plain or not profiled:
            return None
        if not _LEAST_SLOWDOWN * plain <= profiled <= _MOST_SLOWDOWN * plain + _FIXED_MS:
            return None
        return plain

    def sentence(self) -> str:
        """The same in words."""
        parts = []
        if self.slowdown is not None:
            parts.append(
                f"a profiled step took {fmt_ms(self.profiled_step_ms)} (n={self.n_profiled}), "
                f"one after recording, which still has perfkit's hooks, "
                f"{fmt_ms(self.unprofiled_step_ms)} (n={self.n_unprofiled}): {self._verdict()}"
            )
        elif self.profiled_step_ms is not None:
            parts.append(
                f"a profiled step took {fmt_ms(self.profiled_step_ms)} (n={self.n_profiled}); "
                "none followed to compare it with"
            )
        parts.append(
            f"stopping {fmt_s(self.stop_s)} and reading {fmt_s(self.read_s)}, once "
            f"({plural(self.n_events, 'event')})"
        )
        if self.stays_attached:
            parts.append(
                "from now on every launch of this process takes longer, until you restart it: "
                "CUPTI stays attached (CUDA 12.6 or later lets it go, unless the environment "
                "variable TEARDOWN_CUPTI is 0)"
            )
        return "Profiling cost: " + "; ".join(parts) + "."

    def _verdict(self) -> str:
        if self.slowdown_interval is None:
            return "too few to tell a difference"
        low, high = self.slowdown_interval
        if high < 1 or low > _MOST_SLOWDOWN:  # a profiler makes nothing faster
            return "the steps themselves differ, so the cost is unknown"
        # The ratio of the medians is another measure, and may lie outside of this interval.
        interval = f"{fmt_change(low - 1)} to {fmt_change(high - 1)}"
        if low <= 1:
            return f"{no_difference(low, high)} (95 % interval {interval})"
        return f"{interval} (95 % interval)"


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of how many times as long as ``second`` ``first`` takes; None if too few.

    Free of a distribution: the ratios of all pairs, cut where the rank-sum test of Mann and
    Whitney (1947) rejects (Hodges and Lehmann 1963, on logarithms). Takes steps as independent.
    """
    n, m = len(first), len(second)
    if not n or not m or min(*first, *second) <= 0:
        return None
    cut = _rank_cut(n, m)
    if cut < 1:
        return None
    ratios = np.sort(np.divide.outer(np.asarray(first), np.asarray(second)).ravel())
    return float(ratios[cut - 1]), float(ratios[n * m - cut])


def _rank_cut(n: int, m: int) -> int:
    """From which pair on, counted from an end, the interval begins; 0 if there is none."""
    tail = (1 - _CONFIDENCE) / 2
    if n * m > _EXACT_PAIRS:
        z = NormalDist().inv_cdf(1 - tail)
        return max(math.floor(n * m / 2 - z * math.sqrt(n * m * (n + m + 1) / 12)), 0)
    # in how many of all orders the statistic takes each value: Gauss's binomial coefficient
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            ways[k] -= ways[k - m - i]
        for k in range(i, n * m + 1):
            ways[k] += ways[k - i]
    below, cut, total = 0, 0, math.comb(n + m, n)
    while cut < len(ways) and (below + ways[cut]) / total <= tail:
        below += ways[cut]
        cut += 1
    return cut
