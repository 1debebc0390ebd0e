"""What each worker of each rank reads of a data set without indices, with shares and without."""

from __future__ import annotations

from collections.abc import Iterable


def every_number(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    """All of it, as if there were no other workers."""
    return range(n)


def own_share(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    """Its share of what all workers of all ranks read."""
    return range(rank * workers + worker, n, ranks * workers)
