"""How long each step of a region took, which of them were recorded, and why so few."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfkit.base.words import fmt_count, fmt_ms, fmt_s, fmt_share, plural
from perfkit.trace.record.deadline import MOST_EVENTS

#: One step may be longer than max_seconds; it is waited for, up to this many times as long.
PATIENCE = 5

EndedBy = Literal["the code", "time", "memory", "a failure"]

# Begin and end of so many steps are kept, 16 bytes each.
_MOST_STEPS = 200_000
# Kept for the median of unprofiled steps; more would not move it.
_MOST_UNPROFILED = 1000
# A profiler makes no step faster, and seldom a step more than three times as long or, of some
# thousand operators, longer by this: beyond, the steps themselves differ.
_FASTER, _SLOWER, _MOST_COST_MS = 0.8, 3.0, 20.0


@dataclass(frozen=True)
class Coverage:
    """What part of a region was profiled.

    Attributes:
        first_step: the first profiled one, counted from 1; 0 where none was marked.
        profiled_s: how long was profiled, in seconds: the marked steps, or where there are none
            what is shown in their place.
        region_s: how long the region took, in seconds, without the profiler's own stop.
    """

    n_steps_seen: int
    first_step: int
    last_step: int
    profiled_s: float
    region_s: float

    @property
    def share(self) -> float:
        """Profiled time as a share of the region's, 0 to 1."""
        return min(self.profiled_s / self.region_s, 1.0) if self.region_s > 0 else 1.0

    def sentence(self) -> str:
        part = f"{fmt_share(self.share)} of the code's {fmt_s(self.region_s)}"
        if not self.first_step:
            return f"The figures cover {part}."
        n = self.last_step - self.first_step + 1
        steps = f"steps {self.first_step}–{self.last_step}" if n > 1 else f"step {self.first_step}"
        return f"Profiled: {n} of {plural(self.n_steps_seen, 'step')} ({steps}), {part}."


class StepLog:
    """The steps of a region, by ``time.perf_counter``.

    Attributes:
        n, n_recorded: how many have ended, and of how many recording has seen begin and end.
        n_until_stop: how many had ended when recording did.
        times_s: begin and end of each of the first 200,000.
        recorded_ms, later_ms: how long the recorded ones took, and those after recording.
        since_s, last_s: when the step began that runs now, and the last one ended.
        ours_s: of the region, in which the profiler started or stopped.
        skips_next, skips_all: the step that runs now, or all from now on, tell nothing of
            unprofiled ones.
    """

    def __init__(self, steps: int, max_seconds: float, *, late: bool) -> None:
        self.steps, self.max_seconds, self.late = steps, max_seconds, late
        self.n = self.n_recorded = self.n_until_stop = 0
        self.times_s: list[tuple[float, float]] = []
        self.recorded_ms: list[float] = []
        self.later_ms: list[float] = []
        self.began_s = self.ended_s = self.since_s = self.last_s = 0.0
        self.ours_s = 0.0
        self.skips_next = self.skips_all = False

    @property
    def is_complete(self) -> bool:
        return self.n_recorded >= self.steps

    def ended(self, end_s: float, *, later: bool) -> float:
        """A step ended then, maybe one after recording; returns when it had begun."""
        began_s, self.since_s = self.since_s, end_s
        self.last_s = end_s
        self.n += 1
        if len(self.times_s) < _MOST_STEPS:
            self.times_s.append((began_s, end_s))
        if later and self.skips_next:
            self.skips_next = False
        elif later and not self.skips_all and len(self.later_ms) < _MOST_UNPROFILED:
            self.later_ms.append((end_s - began_s) * 1e3)
        return began_s

    @property
    def region_s(self) -> float:
        """How long the region took, without the profiler's own start and stop."""
        return max(self.ended_s - self.began_s - self.ours_s, 0.0)

    def coverage(self, began_s: float, ended_s: float) -> Coverage:
        """What of the region the figures are of: the recorded steps, or what was collected."""
        collected_s = min(ended_s, self.ended_s) - max(began_s, self.began_s)
        if not self.n_recorded:
            profiled_s = max(min(collected_s, self.region_s), 0.0)
            return Coverage(self.n, 0, 0, profiled_s, self.region_s)
        last = self.n_until_stop
        profiled_s = sum(self.recorded_ms) / 1e3
        return Coverage(self.n, last - self.n_recorded + 1, last, profiled_s, self.region_s)

    def odd_window(self) -> str:
        """That steps after the recorded ones differ by more than profiling can explain."""
        profiled, later = median(self.recorded_ms), median(self.later_ms)
        if profiled is None or later is None or min(len(self.recorded_ms), len(self.later_ms)) < 3:
            return ""
        is_slow = profiled > max(_SLOWER * later, later + _MOST_COST_MS)
        if not (is_slow or profiled < _FASTER * later):
            return ""
        last = self.n_until_stop
        warmup = min(max(self.n // 2, last), max(self.n - self.steps, last))
        return (
            f"steps {last - self.n_recorded + 1}–{last} took {fmt_ms(profiled)}, the later ones "
            f"{fmt_ms(later)}: the profiled ones are not typical; profile later ones with "
            f"-w {warmup} (in Python: `warmup`)"
        )

    def why_so_few(self, ended_by: EndedBy) -> str:
        """What ended the recording before all steps were recorded; empty where they are."""
        n = self.n_recorded
        if self.is_complete or not (self.n or ended_by == "memory"):
            return ""
        if ended_by == "memory":
            return (
                f"recording ended early, after {plural(n, 'whole step')}: meanwhile this process "
                f"grew by more than perfkit lets the events take (about {fmt_count(MOST_EVENTS)} "
                "of them): record fewer or shorter steps; if it was your tensors that grew, run "
                "the code once before"
            )
        said = f"{n} of {self.steps} steps {'was' if n == 1 else 'were'} recorded"
        if not n:
            part = "are of a part of one" if self.late else "include warm-up"
            said = f"no whole step was recorded after the warm-up: the figures {part}"
        if ended_by == "time":
            return f"{said}; the {self.max_seconds:g} s to record in were over"
        return said if ended_by == "a failure" else f"{said}; the code ended"


def median(values: Sequence[float]) -> float | None:
    """None of no values."""
    return statistics.median(values) if values else None
