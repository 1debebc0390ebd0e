"""Which cores the training process and its loader workers may run on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

#: The cores that the process had before it was pinned; loader workers get theirs from them.
_before: tuple[int, ...] | None = None


def allowed() -> tuple[int, ...]:
    """The cores of this process, as they were before :func:`pin`."""
    if _before is not None:
        return _before
    return tuple(sorted(os.sched_getaffinity(0)))


def split(values: Mapping[str, Any], cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The cores of the training process and those of its workers.

    ``"one"``: both on the first core. ``"apart"``: each worker a core from the end, the training
    process the rest, at least one. Otherwise all for both.
    """
    affinity = values.get("affinity", "any")
    if affinity == "one":
        return cores[:1], cores[:1]
    n_workers = values.get("num_workers", 1)
    if affinity == "apart" and n_workers and len(cores) > 1:
        n_training = max(1, len(cores) - n_workers)
        return cores[:n_training], cores[n_training:]
    return cores, cores


def pin(values: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Put this process on its cores; None where they are left as they are."""
    global _before
    if values.get("affinity", "any") == "any":
        return None
    _before = allowed()
    training, _ = split(values, _before)
    os.sched_setaffinity(0, training)
    return training


class PinWorker:
    """``worker_init_fn`` of a DataLoader: puts a worker on the cores of the workers."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self.cores = cores

    def __call__(self, worker_id: int) -> None:
        """Called in the worker as it begins."""
        os.sched_setaffinity(0, self.cores)
