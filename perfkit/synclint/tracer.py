"""Which of the user's lines waited for the GPU, from a trace of the run that is watched.

Each operator runs under a label that stands for a line, in the backward pass for the line of the
forward pass that it belongs to; the profiler records every runtime call with its duration, and one
that waited inside a label is a wait of that line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Self

from perfkit.base import torch_compat
from perfkit.base.errors import MeasurementError, ProfilerBusyError, TraceError
from perfkit.base.instrument import Instrument
from perfkit.synclint.sites import Site
from perfkit.trace.ask.waits import Wait, waits_under
from perfkit.trace.read.columns import Category
from perfkit.trace.record.record import UNFINISHED_MARK, Recorder

_LABEL = "perfkit line "
# What the recorder's events may take in memory ends it sooner; these only have to be numbers.
_ALL, _MAX_SECONDS = 10**9, 3600.0


class Tracer:
    """Context manager in the watched run; afterwards :meth:`waits` says which lines waited.

    Args:
        late: the trace starts at :meth:`forget`.

    Attributes:
        missing: why there is no trace of all of the run; empty where there is one.
        pause: a context in which the watch does not look; the watch sets it.
    """

    def __init__(self, *, late: bool = False) -> None:
        self.missing = "the run had no part that is traced"
        self.pause: Callable[[], AbstractContextManager[None]] = nullcontext
        self._late = late
        self._recorder: Recorder | None = None
        self._numbers: dict[Site | None, int] = {}
        self._count = itertools.count()
        self._instrument = Instrument("the tracer of waits")

    def __enter__(self) -> Self:
        with self._instrument.guard("starting"):
            if not self._late:
                self._start()
        return self

    def forget(self) -> None:
        """Do not count what has happened so far; once."""
        with self._instrument.guard("starting"):
            if self._recorder is None:
                self._start()

    def _start(self) -> None:
        self._recorder = recorder = Recorder(
            steps=_ALL, warmup=0, lines=False, max_seconds=_MAX_SECONDS
        )
        self.missing = ""
        with self.pause():
            try:
                recorder.start()
            except ProfilerBusyError as error:
                self.missing = str(error)

    def __exit__(self, *error: object) -> None:
        with self._instrument.guard("ending"):
            self._stop()
        if self._instrument.failure is not None:
            self.missing = self._instrument.failure.sentence()

    def _stop(self) -> None:
        if (recorder := self._recorder) is None:
            return
        if recorder.is_done and not self.missing:
            self.missing = (
                "this code runs a torch profiler of its own, and torch runs one at a time"
                if recorder.gave_way
                else "the trace took too much memory, and ended before the run did"
            )
        with self.pause():
            recorder.stop()
        if recorder.failure is not None:
            self.missing = recorder.failure.sentence()

    @contextmanager
    def around(self, site: Site | None) -> Iterator[None]:
        """Run one operator of this line."""
        if self._recorder is None or self._recorder.is_done:
            yield
            return
        number = self._numbers.get(site)
        if number is None:  # two backward threads may ask at once: none gets the other's number
            number = self._numbers.setdefault(site, next(self._count))
        with torch_compat.profiler_label(f"{_LABEL}{number}"):
            yield

    def waits(self) -> list[tuple[Site | None, Wait]]:
        """The waits in the order in which they happened, each with its line.

        The line is None where the host waited outside of torch's operators. Call it after the
        block; where nothing can be told it is empty, and ``missing`` says why.
        """
        if self._recorder is None or self.missing:
            return []
        try:
            trace = self._recorder.recording.trace
        except (MeasurementError, TraceError, OSError) as error:
            self.missing = str(error)
            return []
        if not trace.is_a(Category.RUNTIME).any():
            self.missing = (
                "the profiler recorded no calls of the CUDA runtime (CUPTI is missing, or this "
                "user may not use it)"
            )
            return []
        # what comes after this mark is the profiler's own
        ends = trace.end_ns[trace.named(lambda name: name == UNFINISHED_MARK)]
        end = ends.max(initial=0)
        lines = {f"{_LABEL}{number}": line for line, number in self._numbers.items()}
        return [
            (lines.get(wait.label), wait)
            for wait in waits_under(trace, lambda name: name.startswith(_LABEL))
            if wait.start_ns < end
        ]
