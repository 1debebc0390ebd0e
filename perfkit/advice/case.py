"""The case before the rules: everything known about the profiled steps, asked for by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfkit.trace.breakdown import HOST_CLASSES, Breakdown
from perfkit.trace.columns import Bool, Category, Trace
from perfkit.trace.events import host_threads
from perfkit.trace.facts import Facts
from perfkit.trace.idle import IDLE_CAUSES, idle_causes
from perfkit.trace.intervals import Intervals, union
from perfkit.trace.lines import NO_LINES, LineSamples
from perfkit.trace.operators import Nesting, Operator, nesting, operators
from perfkit.trace.steps import Steps
from perfkit.trace.syncs import Sync, syncs


@dataclass(frozen=True, eq=False)
class Case:
    """What the rules look at. Shares are of all profiled steps' time.

    Attributes:
        trace: the events.
        steps: the steps in them.
        breakdown: their split.
        lines: samples of source lines; none for a trace from a file.
        facts: what the trace does not say; empty for a trace from a file.
    """

    trace: Trace
    steps: Steps
    breakdown: Breakdown
    lines: LineSamples = NO_LINES
    facts: Facts = field(default_factory=Facts)

    @cached_property
    def nesting(self) -> Nesting:
        """Which op encloses which."""
        return nesting(self.trace, self.steps)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators by self time."""
        return operators(self.trace, self.steps, within=self.nesting)

    @cached_property
    def syncs(self) -> tuple[Sync, ...]:
        """Host-device syncs by cost."""
        return syncs(self.trace, self.steps)

    @cached_property
    def wall_us(self) -> float:
        """All profiled steps together, in µs."""
        return max(sum(s.wall_ns for s in self.breakdown.steps) / 1e3, 1e-3)

    @property
    def n_steps(self) -> int:
        """How many steps were profiled."""
        return max(len(self.steps), 1)

    @property
    def on_device(self) -> bool:
        """Whether a device worked in these steps."""
        return self.breakdown.has_device

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Host class → share; zeros where there is no step."""
        return self.breakdown.shares() or dict.fromkeys(HOST_CLASSES, 0.0)

    @cached_property
    def idle(self) -> Mapping[str, float]:
        """Cause of device idling → share; zeros without a device."""
        causes = idle_causes(self.trace, self.steps)
        return {c: sum(step[c] for step in causes) / 1e3 / self.wall_us for c in IDLE_CAUSES}

    def lost_to(self, host_class: str) -> float:
        """The share of the step that a host class really costs.

        On a device, the host may do what it likes while the device is busy: only the time in
        which the device idled meanwhile is lost.
        """
        if not self.on_device:
            return self.shares[host_class]
        if host_class == "data wait":
            return self.idle["data"]
        if host_class == "copy":
            return self.idle["copy"]
        if host_class == "sync":
            return self.idle["sync"]
        if host_class == "other":
            return self.idle["host"]
        return self.breakdown.idle_shares()[host_class]

    def rows(self, *categories: Category, named: Callable[[str], object]) -> Bool:
        """Rows on the steps' host threads that begin inside a step and are named so."""
        return (
            self.trace.is_a(*categories)
            & self._inside
            & host_threads(self.trace, self.steps)[self.trace.thread]
            & self.trace.named(named)
        )

    @cached_property
    def _inside(self) -> Bool:
        return self.steps.containing(self.trace.start_ns) >= 0

    def span(self, rows: Bool) -> Intervals:
        """The time that these rows cover."""
        return union(self.trace.start_ns[rows], self.trace.end_ns[rows])

    def labels(self, prefix: str) -> Intervals:
        """The time that labels (or, in old traces, ops) with this prefix cover, inside steps."""
        return self.span(
            self.rows(Category.ANNOTATION, Category.OP, named=lambda n: n.startswith(prefix))
        )

    def ops_inside(self, parts: Intervals) -> dict[str, int]:
        """Op name → how many of them begin inside these intervals, all steps together."""
        ops = self.rows(Category.OP, named=lambda n: True)
        rows = np.flatnonzero(ops)
        rows = rows[parts.covers(self.trace.start_ns[rows])]
        counts = np.bincount(self.trace.name_id[rows], minlength=len(self.trace.names))
        return {self.trace.names[i]: int(counts[i]) for i in np.flatnonzero(counts)}

    def ms_per_step(self, share: float) -> float:
        """A share of the mean step, in ms."""
        return share * self.wall_us / self.n_steps / 1e3
