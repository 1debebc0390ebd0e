"""How long the training thread waits for its DataLoaders, and how many samples it gets."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.stand_in import CallEnd
from perfkit.measure.batch import SampleCounter


class LoaderWait:
    """Adds up data wait and samples of the current step.

    As a context manager it listens to fetches; else :class:`~perfkit.measure.phases.Phases`, which
    does, calls :meth:`fetched`.

    Starting an iterator counts too: without persistent workers each epoch begins with that. Only
    the thread that created this object is watched: a prefetching thread's wait is not a wait of the
    step. It cannot raise into a fetch: where it fails it counts no more batches, and
    :attr:`failure` says why.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._began_s: float | None = None  # while a fetch runs
        self._source: Any = None
        self._count = SampleCounter()
        self._instrument = Instrument("the look at batches")
        self._stop: Callable[[], None] | None = None
        self.wait_s = 0.0
        self.samples: int | None = None
        self.first_asked_s: float | None = None
        self.source: weakref.ref[Any] | None = None  # the iterator that gave the last batch

    def __enter__(self) -> LoaderWait:
        self._stop = torch_compat.watch_loader_iterators(self._begins)
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

    def _begins(self, is_batch: bool, source: Any) -> CallEnd | None:
        if self._began_s is not None or threading.get_ident() != self._thread:
            return None  # a loader inside a data set, counted already; another thread
        self._source = source if is_batch else None
        self._began_s = began_s = self._clock()
        if self.first_asked_s is None:
            self.first_asked_s = began_s
        return self._ended

    def _ended(self, fetched: Any) -> None:
        began_s, self._began_s = self._began_s, None
        source, self._source = self._source, None
        if began_s is not None:
            self.fetched(max(self._clock() - began_s, 0.0), fetched, source)

    def fetched(self, waited_s: float, batch: Any, source: Any) -> None:
        """A fetch is over; it cannot raise into it.

        Args:
            waited_s: how long it took.
            batch: what came; None where nothing did.
            source: the iterator that was asked; None where one was started.
        """
        self.wait_s += waited_s
        if source is not None and batch is not None and self._instrument.failure is None:
            try:
                self._came(batch, source)
            except Exception as error:
                self._instrument.fail(error, "the look at a batch")

    def _came(self, batch: Any, source: Any) -> None:
        if self.source is None or self.source() is not source:
            self.source = weakref.ref(source)
        n = self._count(batch)
        if n is not None:
            self.samples = (self.samples or 0) + n
