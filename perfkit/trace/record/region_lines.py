"""The line samples of a region, told by its steps."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from dataclasses import replace

from perfkit.base.instrument import Failure
from perfkit.base.line_sampler import LineSampler, Samples
from perfkit.base.words import fmt_share
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.record.elsewhere import longest_alike_s
from perfkit.trace.record.lines import (
    NO_LINES,
    LineSamples,
    Sample,
    child_lines,
    inside,
    lines_of,
    samples_of,
)
from perfkit.trace.record.step_log import StepLog

# Fewer samples of a line say nothing.
_LEAST_SAMPLES = 2


class RegionLines:
    """Samples the lines of a thread until :meth:`close`; then it tells what ran when.

    Args:
        log: the steps of the region.

    Attributes:
        samples: of the thread, up to the last :meth:`take` or :meth:`close`.
        of_workers, of_processes: lines of the DataLoader's workers, and of other processes that the
            region starts; likewise.
    """

    def __init__(self, log: StepLog) -> None:
        self.of_workers = self.of_processes = NO_LINES
        self._log = log
        self._taken = Samples()
        self._failure: Failure | None = None
        self._sampler: LineSampler | None = None
        self.samples: tuple[Sample, ...] = ()

    def start(self) -> None:
        """Begin, in the thread whose lines are to be sampled."""
        self._sampler = LineSampler(threading.get_ident())
        self._sampler.start()

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._failure if self._sampler is None else self._sampler.failure

    def close(self) -> None:
        """Take no more samples."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        before, found = self._taken, sampler.stop()
        self._failure = sampler.failure
        self._taken = Samples(before.thread + found.thread, before.children + found.children)
        self.samples = samples_of(self._taken.thread)
        self.of_workers, self.of_processes = child_lines(self._taken.children)

    def take(self) -> None:
        """Tell what was seen so far, in the sampled thread, and go on."""
        if self._sampler is not None and self._sampler.failure is None:
            self.close()
            self.start()

    def within(self, spans: Sequence[tuple[float, float]]) -> LineSamples:
        """What ran in these spans, which are in order of time."""
        return lines_of(inside(spans, self.samples))

    def between(self, begin_s: float, end_s: float) -> str:
        """The line most often seen from ``begin_s`` to ``end_s``, in words; empty if too few."""
        top = self.within([(begin_s, end_s)]).by_line()[:1]
        if not top or top[0].n_samples < _LEAST_SAMPLES:
            return ""
        source = f": {top[0].source}" if top[0].source else ""
        return f"{fmt_share(top[0].share)} of it at {top[0].place}{source}"

    @property
    def of_steps(self) -> LineSamples:
        """Of all steps like the recorded ones, or the usual ones; without steps of the region."""
        log = self._log
        later = log.times_s[1:]
        if not (log.recorded_ms or (log.asked.late and later)):
            return self.within([(log.began_s, log.ended_s)])
        alike_ms = log.recorded_ms or [statistics.median((e - b) * 1e3 for b, e in later)]
        limit_s = longest_alike_s(alike_ms)
        return self.within([(b, e) for b, e in later if e - b <= limit_s])


def in_trace_time(
    lines: LineSamples, trace: Trace, marks: Sequence[tuple[float, str]]
) -> LineSamples:
    """Samples by the trace's clock: in it and in ``marks`` is when each mark was opened."""
    shifts = []
    for at_s, name in marks:
        rows = trace.is_a(Category.ANNOTATION) & trace.named(lambda n, name=name: n == name)
        if rows.sum() == 1:
            shifts.append(float(trace.start_ns[rows][0]) - at_s * 1e9)
    if not shifts:
        return replace(lines, taken=())
    shift = statistics.median(shifts)
    return replace(lines, taken=tuple((round(at + shift), index) for at, index in lines.taken))
