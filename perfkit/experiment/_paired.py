"""The ratio of two arms that were measured block by block, with its interval."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfkit.timing.compare import Interval, ratio_interval


def paired_interval(
    a: npt.ArrayLike, b: npt.ArrayLike, *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median of the blocks' own ratios a ÷ b, with the interval of :func:`ratio_interval`.

    Each block is first divided by its own level (the geometric mean of its two times), so that
    what changes from block to block meets neither arm's median. Without this, drift of 30 % over
    60 blocks hides a difference of 3 % in one case of five (simulated, 2 % of luck of each
    process), for the two medians then come from different blocks.

    Args:
        a, b: one positive time for each block, in the same block order.
        confidence, seed: see ``ratio_interval``.

    Raises:
        UsageError, MeasurementError: see ``ratio_interval``.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    level = np.sqrt(first * second)
    usable = np.where(level > 0, level, 1.0)
    return ratio_interval(
        (first / usable)[:, None], (second / usable)[:, None], confidence=confidence, seed=seed
    )
