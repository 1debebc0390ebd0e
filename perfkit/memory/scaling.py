"""The peak of a step at any batch size, from its allocations at two sizes.

A step whose shapes follow the batch makes the same tensors in the same order, each of a size
that grows evenly. So two books of allocations and frees give the book at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def scaled_peak(
    first: tuple[int, Sequence[int]], second: tuple[int, Sequence[int]], start_bytes: int
) -> Callable[[int], int] | None:
    """The peak in bytes as a function of the batch size; None where the two do not match.

    Args:
        first: a batch size, and the bytes allocated (positive) and freed (negative) in order.
        second: the same at another size.
        start_bytes: what was there before.
    """
    (a, at_a), (b, at_b) = first, second
    if a == b or len(at_a) != len(at_b):
        return None
    changes, other = np.asarray(at_a, np.int64), np.asarray(at_b, np.int64)
    if (np.sign(changes) != np.sign(other)).any():
        return None
    slopes, rest = np.divmod(other - changes, b - a)
    if rest.any():
        return None
    # the total after each event is `here + (n - a) * rise`
    here = np.concatenate(([0], np.cumsum(changes)))
    rise = np.concatenate(([0], np.cumsum(slopes)))

    def peak(n: int) -> int:
        return start_bytes + int((here + (n - a) * rise).max())

    return peak
