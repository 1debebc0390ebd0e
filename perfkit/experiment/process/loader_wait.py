"""How long the training thread waits for its DataLoaders, and how many samples it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.stand_in import CallEnd
from perfkit.measure.batch import Batches


class LoaderWait:
    """Adds up data wait and samples of the current step; a context manager.

    Starting an iterator counts too: without persistent workers each epoch begins with that. Only
    the thread that created this object is watched: a prefetching thread's wait is not a wait of the
    step. It cannot raise into a fetch.

    Attributes:
        first_asked_s: when a loader was asked first; None where none was.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._began_s: float | None = None  # while a fetch runs
        self._source: Any = None  # the iterator that is asked; None where one is started
        self._batches = Batches()
        self._stop: Callable[[], None] | None = None
        self._wait_s = 0.0
        self.first_asked_s: float | None = None

    def __enter__(self) -> LoaderWait:
        self._stop = torch_compat.watch_loader_iterators(self._begins)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def take(self) -> tuple[float, int | None]:
        """Seconds waited and samples fetched since the last call."""
        taken, self._wait_s = self._wait_s, 0.0
        return taken, self._batches.take()

    def _begins(self, is_batch: bool, source: Any) -> CallEnd | None:
        if self._began_s is not None or threading.get_ident() != self._thread:
            return None  # a loader inside a data set, counted already; another thread
        self._source = source if is_batch else None
        self._began_s = began_s = self._clock()
        if self.first_asked_s is None:
            self.first_asked_s = began_s
        return self._ended

    def _ended(self, batch: Any) -> None:
        began_s, self._began_s = self._began_s, None
        source, self._source = self._source, None
        if began_s is not None:
            self._wait_s += max(self._clock() - began_s, 0.0)
            if source is not None and batch is not None:
                self._batches.came(batch, source)
