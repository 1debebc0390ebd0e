"""The line samples of a region, told by its steps."""

from __future__ import annotations

import bisect
import statistics
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import FrameType

from perfkit.base.instrument import Failure
from perfkit.base.line_sampler import LineSampler, frames_of
from perfkit.base.stack import levels_of
from perfkit.base.words import fmt_share
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.record.elsewhere import Elsewhere, elsewhere, longest_alike_s
from perfkit.trace.record.lines import (
    NO_LINES,
    LineSamples,
    Sample,
    child_lines,
    lines_of,
    samples_of,
    user_line,
)
from perfkit.trace.record.step_log import StepLog

# Fewer samples of a line say nothing.
_LEAST_SAMPLES = 2


class RegionLines:
    """Samples the lines of a thread until :meth:`close`; then it tells what ran when.

    Args:
        log: the steps of the region.

    Attributes:
        of_workers, of_processes: lines of the DataLoader's workers, and of other processes that the
            region starts; known when it has ended.
    """

    def __init__(self, log: StepLog) -> None:
        self.of_workers = self.of_processes = NO_LINES
        self._log = log
        self._sampler: LineSampler | None = None
        self._samples: tuple[Sample, ...] | None = None
        self._frameworks: frozenset[tuple[str, int]] = frozenset()

    def start(self) -> None:
        """Begin, in the thread whose lines are to be sampled."""
        self._sampler = LineSampler(threading.get_ident())
        self._sampler.start()

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return None if self._sampler is None else self._sampler.failure

    def close(self) -> None:
        """Take no more samples; does nothing where that is so."""
        if self._sampler is not None and self._samples is None:
            found = self._sampler.stop()
            self._samples = samples_of(found.thread)
            self.of_workers, self.of_processes = child_lines(found.children)

    def step_ended_below(self, frame: FrameType) -> None:
        """A step has ended below this frame: shows whether the loop is a framework's."""
        if self._sampler is not None:
            key = user_line(frames_of(levels_of(frame)))
            if key is not None and key.inner is not None:
                self._frameworks |= {key.frame.place}

    def within(self, spans: Sequence[tuple[float, float]]) -> LineSamples:
        """What ran in these spans, which are in order of time."""
        begins = [begin for begin, _ in spans]
        inside = []
        for sample in self._samples or ():
            at = bisect.bisect_right(begins, sample.at_s) - 1
            if at >= 0 and sample.at_s <= spans[at][1]:
                inside.append(sample)
        return lines_of(inside, self._frameworks)

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

    def elsewhere(self, n_slowed: int) -> Elsewhere | None:
        """The region's time outside of steps like the recorded ones."""
        log = self._log
        return elsewhere(
            log.times_s,
            log.began_s,
            log.ended_s,
            log.recorded_ms,
            self._samples or (),
            partial(lines_of, frameworks=self._frameworks),
            n_steps=log.n,
            region_s=log.region_s,
            last_s=log.since_s,
            n_slowed=n_slowed,
            n_recorded=log.n_until_stop,
        )


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
