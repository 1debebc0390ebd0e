"""The launch queue: how far the host runs ahead of the device.

A kernel is *in the queue* from the return of the call that launched it until it starts. A long
queue means that the host is fast enough; an empty one that the device waits for launches. The
joint is ``correlation``; a trace without it gives no answer.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.base.words import plural
from perfkit.trace.ask import question
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Int32, Int64, Trace
from perfkit.trace.read.events import launch_rows, together
from perfkit.trace.read.steps import Steps, find_steps


@dataclass(frozen=True)
class StepQueue:
    """The queue during one step.

    Attributes:
        name: what the trace calls the step.
        n_launches: device activities that it launched.
        median_delay_us: from the call's start to the activity's start, in µs; 0.0 without any.
        mean_length: mean number of activities queued, over the step's time.
        longest: most of them at one time.
        empty_share: share of the step's time in which none was queued.
    """

    name: str
    n_launches: int
    median_delay_us: float
    mean_length: float
    longest: int
    empty_share: float


@dataclass(frozen=True, eq=False)
class LaunchQueue(Shown):
    """The launch queue over time.

    Attributes:
        at_ns: times in ns after the trace's origin at which the length changes.
        length: activities queued from then on.
        rows: trace rows of the joined device activities, sorted by start.
        delay_ns: for each, from the launch call's start until it starts.
        steps: the queue step by step.
        warnings: what is doubtful, also when nothing could be joined.
    """

    at_ns: Int64
    length: Int32
    rows: Int64
    delay_ns: Int64
    steps: tuple[StepQueue, ...]
    warnings: tuple[str, ...] = ()

    @property
    def median_delay_us(self) -> float | None:
        """Median launch delay in µs; None where nothing was joined."""
        return float(np.median(self.delay_ns)) / 1e3 if len(self.delay_ns) else None

    @property
    def empty_share(self) -> float | None:
        """Median over the steps of the time with an empty queue; None where nothing was joined."""
        if not self.steps:
            return None
        return statistics.median(s.empty_share for s in self.steps)


@question("queue", "How far does the host run ahead of the device?")
def launch_queue(trace: Trace, steps: Steps | None = None) -> LaunchQueue:
    """How many launched activities waited for the device, over time."""
    steps = find_steps(trace) if steps is None else steps
    rows = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    launch = launch_rows(trace, rows)
    doubts = []
    if not len(rows):
        doubts.append("no device activity was recorded")
    elif not (launch >= 0).any():
        doubts.append("no correlation was recorded: launches and kernels cannot be joined")
    elif n_alone := int((launch < 0).sum()):
        activities = plural(n_alone, "device activity has", "device activities have")
        doubts.append(f"{activities} no recorded launch")
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    begin = trace.start_ns[rows]
    delay = begin - trace.start_ns[launch]
    if n_early := int((delay < 0).sum()):
        doubts.append(
            f"{plural(n_early, 'kernel starts', 'kernels start')} before the launch: the clocks of "
            "host and device do not agree"
        )
    # What blocks its caller (a pageable copy) or starts during the call never waits in a queue.
    queued_from = np.minimum(trace.end_ns[launch], begin)
    edges = np.r_[queued_from, begin]
    change = np.r_[np.ones(len(rows), np.int64), np.full(len(rows), -1, np.int64)]
    order = np.argsort(edges, kind="stable")
    edges, length = edges[order], np.cumsum(change[order])
    last = np.r_[edges[1:] > edges[:-1], np.ones(min(len(edges), 1), np.bool_)]
    at_ns, length = edges[last], length[last]
    began_in = steps.containing(trace.start_ns[launch])
    return LaunchQueue(
        at_ns=at_ns,
        length=length.astype(np.int32),
        rows=rows,
        delay_ns=delay,
        steps=_by_step(steps, at_ns, length, began_in, delay) if len(rows) else (),
        warnings=together(steps.warnings, doubts),
    )


def _by_step(
    steps: Steps, at_ns: Int64, length: Int64, began_in: Int64, delay: Int64
) -> tuple[StepQueue, ...]:
    # Integrals of the length and of "empty" up to each change, for sums over any stretch.
    gap = np.diff(at_ns)
    filled = np.r_[0, np.cumsum(length[:-1] * gap)]
    emptied = np.r_[0, np.cumsum((length[:-1] == 0) * gap)]

    def until(point: int) -> tuple[int, int]:
        at = int(np.searchsorted(at_ns, point, side="right")) - 1
        if at < 0:
            return 0, point - int(at_ns[0])
        beyond = point - int(at_ns[at])
        n = int(length[at])
        return int(filled[at]) + n * beyond, int(emptied[at]) + (beyond if n == 0 else 0)

    order = np.argsort(began_in, kind="stable")
    bounds = np.searchsorted(began_in[order], np.arange(len(steps) + 1))
    result = []
    for i, name in enumerate(steps.names):
        begin, end = int(steps.start_ns[i]), int(steps.end_ns[i])
        wall = max(end - begin, 1)
        before, after = until(begin), until(end)
        # from the last change before it on: what waits at its begin waits in it
        first = max(int(np.searchsorted(at_ns, begin, side="right")) - 1, 0)
        inside = length[first : np.searchsorted(at_ns, end)]
        waits = delay[order[bounds[i] : bounds[i + 1]]]
        result.append(
            StepQueue(
                name=name,
                n_launches=len(waits),
                median_delay_us=float(np.median(waits)) / 1e3 if len(waits) else 0.0,
                mean_length=(after[0] - before[0]) / wall,
                longest=int(inside.max()) if len(inside) else 0,
                empty_share=(after[1] - before[1]) / wall,
            )
        )
    return tuple(result)
