"""Which cores the training process and its loader workers may run on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

#: The cores that the process had before it was pinned; loader workers get a share of them.
_before: tuple[int, ...] | None = None


def allowed() -> tuple[int, ...]:
    """The cores of this process before :func:`pin`."""
    if _before is not None:
        return _before
    return tuple(sorted(os.sched_getaffinity(0)))


def split(values: Mapping[str, Any], cores: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The cores of the training process and those of its workers.

    ``"one"``: both share the first core. ``"apart"``: each worker gets a core from the end, the
    training process the rest, at least one. Otherwise both get all.
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
    """Pin this process to its cores and return them; None if they are left unchanged."""
    global _before
    if values.get("affinity", "any") == "any":
        return None
    _before = allowed()
    training, _ = split(values, _before)
    os.sched_setaffinity(0, training)
    return training


class PinWorker:
    """``worker_init_fn`` for a DataLoader: pins each worker to the workers' cores.

    Args:
        cores: these.
        then: called in the worker after that, with the worker's number.
    """

    def __init__(self, cores: tuple[int, ...], then: Callable[[int], object] | None = None) -> None:
        self.cores = cores
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Called in the worker at its start."""
        os.sched_setaffinity(0, self.cores)
        if self._then is not None:
            self._then(worker_id)
