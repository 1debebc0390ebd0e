"""How long the training thread waits for its DataLoaders, and how many samples it gets."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.measure.batch import SampleCounter


class LoaderWait:
    """Context manager that adds up data wait and samples of the current step.

    Starting an iterator counts too: without persistent workers each epoch begins with that. Only
    the thread that created this object is watched: a prefetching thread's wait is not a wait of the
    step. It cannot raise into a fetch: where it fails it counts no more batches, and
    :attr:`failure` says why.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._depth = 0
        self._count = SampleCounter()
        self._instrument = Instrument("the look at batches")
        self._batch_came = self._instrument.hook(self._came)
        self._stop: Callable[[], None] | None = None
        self.wait_s = 0.0
        self.samples: int | None = None
        self.first_asked_s: float | None = None
        self.source: weakref.ref[Any] | None = None  # the iterator that gave the last batch

    def __enter__(self) -> LoaderWait:
        self._stop = torch_compat.watch_loader_iterators(self._around)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    @property
    def failure(self) -> Failure | None:
        """Why it looks at no more batches; None where it does."""
        return self._instrument.failure

    def take(self) -> tuple[float, int | None]:
        """Seconds waited and samples fetched since the last call."""
        taken = self.wait_s, self.samples
        self.wait_s, self.samples = 0.0, None
        return taken

    def _around(self, fetch: Callable[[], Any], is_batch: bool, source: Any) -> Any:
        if threading.get_ident() != self._thread or self._depth:
            return fetch()  # another thread, or a loader inside a data set: already counted
        self._depth += 1
        began_s = self._clock()
        if self.first_asked_s is None:
            self.first_asked_s = began_s
        try:
            fetched = fetch()
        finally:
            self._depth -= 1
            self.wait_s += max(self._clock() - began_s, 0.0)
        if is_batch:
            self._batch_came(fetched, source)
        return fetched

    def _came(self, batch: Any, source: Any) -> None:
        if self.source is None or self.source() is not source:
            self.source = weakref.ref(source)
        n = self._count(batch)
        if n is not None:
            self.samples = (self.samples or 0) + n
