"""Why the device idled: every idle ns of a step has one cause, the first of these that applies.

Work was queued: an activity had been launched and had not started, so the host is not to blame.

================= =================================================================
``communication`` the gap borders on a collective: a stream waits for it, or it for
                  other ranks
``kernels``       a short pause between one activity and the next (below 50 µs)
``queued``        a longer one: the trace does not show what held the device. A copy
                  to the host that the host is waiting for is not such work: a gap in
                  which nothing else is queued is ``sync``
================= =================================================================

The queue was empty: the device waited for the host.

================= =================================================================
``setup``         the host compiled, made a first call that loads code or makes the context,
                  or a convolution searched for its algorithm (:mod:`perfkit.trace.ask.set_up`)
``data``          the host waited for the DataLoader
``copy``          the host was in a blocking host-to-device transfer
``sync``          the host was waiting for the device, or had just done so: after a wait the
                  device gets no work until the host has launched some; the waits are to
                  blame for that for as long as they had lasted
``capture``       the host captured a CUDA graph: what is launched then runs only in replays
``driver``        the host was in a long call of the driver that neither launches, copies nor
                  waits: it allocates or frees memory, loads code, builds a graph
``launch``        the host ran ops (forward, backward, optimizer) but too slowly
``communication`` the host took part in a collective that the CPU runs (gloo, MPI, UCC)
``host``          the host did something else: Python, logging, its own data loading
================= =================================================================

An activity is in the queue from the return of the call that launched it (joined by correlation)
until it starts; those that one call starts (a CUDA graph) are there once the first has started.
When the device has run dry, the first activity needs some µs to start: that latency is part of
what the device waited for. Only where a trace records no correlation, a gap shorter than 3 µs
counts as queued: a launch call itself takes longer than that on the host, so in a shorter gap
nothing can have been launched and started.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.base.words import fmt_count, fmt_ms
from perfkit.trace.ask import question
from perfkit.trace.ask.breakdown import busiest_device, device_layers, host_layers
from perfkit.trace.ask.set_up import set_up
from perfkit.trace.read.columns import (
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    Bool,
    Category,
    Int64,
    Trace,
)
from perfkit.trace.read.events import (
    driver_calls,
    graph_captures,
    launch_calls,
    launch_rows,
    runtime_calls,
    together,
)
from perfkit.trace.read.intervals import (
    EMPTY,
    Intervals,
    covered_ns,
    joined,
    overlap,
    paint,
    span,
    union,
    without,
)
from perfkit.trace.read.steps import Steps, find_steps

IDLE_CAUSES = (
    "setup", "data", "copy", "sync", "communication", "kernels", "queued", "capture", "driver",
    "launch", "host",
)  # fmt: skip

_SHORTEST_LAUNCH_NS = 3_000
# A device takes 1 to 10 µs from one kernel to the next, and as long to start the first one.
_LONGEST_PAUSE_NS = 50_000
# A device that has work starts it, and a copy of some bytes, within some 10 µs: a call that waits
# this long on an idle device waits for something that was not recorded.
_LONG_WAIT_MS = 1.0
# From which cause each layer of the picture is, in order of priority.
_LAYERS = (
    "communication", "kernels", "queued", "setup", "data", "copy", "sync", "capture", "driver",
    "launch", "communication",
)  # fmt: skip


@dataclass(frozen=True)
class Idle(Shown):
    """The device's idle time by cause.

    Attributes:
        names: what the trace calls the steps.
        steps: per step: cause → ns; they add up to the step's idle time. Empty without a device.
        wall_ns: length of each step in ns.
    """

    names: tuple[str, ...]
    steps: tuple[Mapping[str, int], ...]
    wall_ns: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    @property
    def total_us(self) -> dict[str, float]:
        """Cause → µs, all steps together; empty without a device."""
        return {c: sum(s[c] for s in self.steps) / 1e3 for c in IDLE_CAUSES} if self.steps else {}

    @property
    def median_ms(self) -> dict[str, float]:
        """Cause → median over the steps, in ms (medians do not add up); empty without a device."""
        if not self.steps:
            return {}
        return {c: statistics.median(s[c] / 1e6 for s in self.steps) for c in IDLE_CAUSES}

    def shares(self) -> dict[str, float]:
        """Cause → share of all steps' time; together the device's idle share."""
        wall_us = max(sum(self.wall_ns) / 1e3, 1e-9)
        return {c: v / wall_us for c, v in self.total_us.items()}


@dataclass(frozen=True)
class Sitting:
    """The runtime call in which the host sat for most of the time that the device idled.

    Attributes:
        call: its name, e.g. ``hipMemcpyWithStream``.
        count: how many such calls overlap that idle time.
        host_ms: their duration, all together, in ms.
        idle_ms: for how much of it the device idled for the cause that was asked for, in ms.
        n_queued: activities that waited in the queue in the longest of these stretches, without
            copies to the host.
        longest_ms: for how long the device idled during one such call at most, in ms.
    """

    call: str
    count: int
    host_ms: float
    idle_ms: float
    n_queued: int
    longest_ms: float = 0.0

    @property
    def is_unexplained(self) -> bool:
        """Whether it waited, on a device that had nothing to do, for what was not recorded."""
        return not self.n_queued and self.longest_ms >= _LONG_WAIT_MS

    def words(self) -> str:
        """``cudaStreamSynchronize (3 calls, 9 ms in all)``, or ``… for 463 ms`` for one call."""
        if self.count == 1:
            return f"{self.call} for {fmt_ms(self.host_ms)}"
        return f"{self.call} ({fmt_count(self.count)} calls, {fmt_ms(self.host_ms)} in all)"


def sitting(
    trace: Trace, steps: Steps, cause: str, indices: Sequence[int] | None = None
) -> Sitting | None:
    """In which blocking call the host sat while the device idled for this cause.

    None where no kind of call covers at least half of that time.

    Args:
        cause: one of ``IDLE_CAUSES``.
        indices: only these steps; by default all.
    """
    layers = _layers(trace, steps)
    if not layers or cause not in _LAYERS:
        return None
    chosen = list(range(len(steps)) if indices is None else indices)
    parts = union(steps.start_ns[chosen], steps.end_ns[chosen])
    inside = EMPTY
    for name, layer in zip(("", *_LAYERS), layers, strict=True):
        if name == cause:
            here = overlap(parts, layer)
            inside = joined((inside, here))
        parts = without(parts, layer)
    calls = runtime_calls(trace, steps)
    rows = calls.rows[calls.blocks]
    idle_ns = covered_ns(inside, trace.start_ns[rows], trace.end_ns[rows])
    rows, idle_ns = rows[idle_ns > 0], idle_ns[idle_ns > 0]
    if not len(rows):
        return None
    by_name = np.bincount(trace.name_id[rows], weights=idle_ns)
    name_id = int(by_name.argmax())
    if by_name[name_id] < inside.total_ns / 2:
        return None
    of_it = trace.name_id[rows] == name_id
    rows, idle_ns = rows[of_it], idle_ns[of_it]
    longest = rows[idle_ns.argmax()]
    stretch = overlap(inside, span(trace, np.array([longest])))
    widest = int((stretch.end - stretch.start).argmax())
    at = int(stretch.start[widest] + stretch.end[widest]) // 2
    ready, start, _ = _queue(trace, awaited_too=False)
    return Sitting(
        call=trace.names[name_id],
        count=len(rows),
        host_ms=float((trace.end_ns[rows] - trace.start_ns[rows]).sum()) / 1e6,
        idle_ms=float(idle_ns.sum()) / 1e6,
        n_queued=int(((ready <= at) & (at < start)).sum()),
        longest_ms=float(idle_ns.max()) / 1e6,
    )


@question("idle", "Why did the device idle?")
def idle(trace: Trace, steps: Steps | None = None) -> Idle:
    """Why the device idled in every step; nothing where no device was recorded."""
    steps = find_steps(trace) if steps is None else steps
    causes = idle_causes(trace, steps)
    doubts = device_layers(trace)[1] if causes else ["no device activity was recorded"]
    if causes and not (trace.is_a(Category.RUNTIME) & (trace.correlation >= 0)).any():
        doubts = [
            *doubts,
            "no correlation was recorded: what was queued is judged by the gap alone",
        ]
    if causes and not trace.is_a(*HOST_CATEGORIES).any():
        doubts = [*doubts, "nothing of the host was recorded: host is the time that has no cause"]
    wall = tuple(map(int, steps.end_ns - steps.start_ns))
    return Idle(steps.names, causes, wall, together(steps.warnings, doubts))


def idle_causes(trace: Trace, steps: Steps) -> tuple[Mapping[str, int], ...]:
    """Per step: cause → ns of device idle time; they add up to the step's idle time.

    Empty without a device.
    """
    layers = _layers(trace, steps)
    if not layers:
        return ()
    cells = paint(steps.start_ns, steps.end_ns, layers).sum(axis=2)
    return tuple(_by_cause(row[1:].tolist()) for row in cells)


def _layers(trace: Trace, steps: Steps) -> list[Intervals]:
    """When the device was busy, then the layers of ``_LAYERS``; empty without a device."""
    device, _ = device_layers(trace)
    if not device:
        return []
    host = host_layers(trace, steps)
    busy = joined(device)
    # of the whole trace: the cause of a gap must not depend on where a step cuts it
    begin = min(int(trace.start_ns.min()), int(steps.start_ns[0]))
    end = max(int(trace.end_ns.max()), int(steps.end_ns.max()))
    gaps = _gaps(busy, begin, end)
    before_last = _gaps(busy, begin, int(busy.end.max(initial=begin)))
    waiting, after_running = _queued_parts(trace, gaps)
    short = waiting.end - waiting.start < _LONGEST_PAUSE_NS
    talking = after_running & _beside_a_collective(device[1], waiting)
    driver, calls = driver_calls(trace, steps), launch_calls(trace, steps)
    working = [host[c] for c in ("forward", "backward", "optimizer")]
    working.append(span(trace, calls))
    return [
        busy,
        _select(waiting, talking),
        _select(waiting, after_running & short & ~talking),
        without(_select(waiting, ~short & ~talking), waits_alone(trace, steps)),
        set_up(trace).parts,
        host["data wait"],
        host["copy"],
        joined((host["sync"], _after_sync(trace, steps, before_last))),
        graph_captures(trace),
        span(trace, driver),
        joined(working),
        host["communication"],
    ]


def waits_alone(trace: Trace, steps: Steps) -> Intervals:
    """When the host waits for the device and nothing is queued but copies to the host.

    Such a copy is what the host waits for: it is no work that the host had launched ahead.
    Empty without correlations, which say what was queued.
    """
    ready, start, is_known = _queue(trace, awaited_too=False)
    if not is_known:
        return EMPTY
    return without(runtime_calls(trace, steps).waiting(trace), union(ready, start))


def _by_cause(layers_ns: list[int]) -> dict[str, int]:
    found = dict.fromkeys(IDLE_CAUSES, 0)
    for cause, ns in zip((*_LAYERS, "host"), layers_ns, strict=True):
        found[cause] += ns
    return found


def _gaps(busy: Intervals, begin: int, end: int) -> Intervals:
    start = np.r_[np.int64(begin), busy.end]
    stop = np.r_[busy.start, np.int64(end)]
    real = stop > start
    return Intervals(start[real], stop[real])


def _select(parts: Intervals, chosen: Bool) -> Intervals:
    return Intervals(parts.start[chosen], parts.end[chosen])


def _beside_a_collective(talk: Intervals, parts: Intervals) -> Bool:
    """Parts at whose beginning a collective ends, or at whose end one begins."""
    return np.isin(parts.start, talk.end) | np.isin(parts.end, talk.start)


def _after_sync(trace: Trace, steps: Steps, gaps: Intervals) -> Intervals:
    """Idle time after waits in which the device ran dry, as far as the waits are to blame.

    Without a wait the host would have been ahead by as much as it waited: together these parts
    are no longer than the waits before them. Each ends with work that could have begun sooner:
    where the device gets no more work, no wait has delayed any.

    Args:
        gaps: when the device idled, up to its last activity.
    """
    calls = runtime_calls(trace, steps)
    rows = calls.rows[calls.is_sync]
    waits = span(trace, rows)
    if not len(gaps):
        return EMPTY
    # The copy that answers a sync ends a little before the call that waits for it returns: the
    # gap that covers its return begins in it.
    at = np.searchsorted(gaps.start, waits.end, side="right") - 1
    gap_start, gap_end = gaps.start[np.maximum(at, 0)], gaps.end[np.maximum(at, 0)]
    dry = (at >= 0) & (gap_start >= waits.start) & (gap_end > waits.end)
    idle_for = np.where(dry, gap_end - waits.end, 0)
    lead, blamed = 0, []
    for waited, rest in zip((waits.end - waits.start).tolist(), idle_for.tolist(), strict=True):
        lead += waited
        blamed.append(min(rest, lead))
        lead -= blamed[-1]
    return union(waits.end, waits.end + np.array(blamed, dtype=np.int64))


def _queue(trace: Trace, *, awaited_too: bool = True) -> tuple[Int64, Int64, bool]:
    """When each activity of the busiest device was queued, when it started, and if that is known.

    Args:
        awaited_too: with copies to the host, which the host usually waits for.
    """
    rows = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    launch = launch_rows(trace, rows)
    known = (launch >= 0) & (trace.device[rows] == busiest_device(trace))
    is_known = bool((launch >= 0).any())
    if not awaited_too:
        known &= ~trace.name_table(lambda n: "DtoH" in n)[trace.name_id[rows]]
    rows, launch = rows[known], launch[known]
    start: Int64 = trace.start_ns[rows]
    first: Int64 = np.full(len(trace), np.iinfo(np.int64).max)
    np.minimum.at(first, launch, start)
    return np.minimum(trace.end_ns[launch], first[launch]), start, is_known


def _queued_parts(trace: Trace, gaps: Intervals) -> tuple[Intervals, Bool]:
    """The parts of gaps in which work was queued, and which of them begin with their gap."""
    ready, start, is_known = _queue(trace)
    if not is_known:
        began = trace.start_ns[trace.is_a(*DEVICE_CATEGORIES)]
        at = np.isin(gaps.end, began)
        parts = _select(gaps, at & (gaps.end - gaps.start < _SHORTEST_LAUNCH_NS))
        return parts, np.ones(len(parts), dtype=np.bool_)
    queued = union(ready, start)
    # cut the queue to the gaps
    edges = np.unique(np.concatenate([queued.start, queued.end, gaps.start, gaps.end]))
    left, right = edges[:-1], edges[1:]
    inside = queued.covers(left) & gaps.covers(left)
    begins = np.isin(left, gaps.start)
    keep = np.flatnonzero(inside)
    if not len(keep):
        return EMPTY, np.zeros(0, dtype=np.bool_)
    # neighbours are one part, unless a gap begins between them
    new = np.r_[True, (left[keep[1:]] != right[keep[:-1]]) | begins[keep[1:]]]
    ends = np.r_[np.flatnonzero(new)[1:] - 1, len(keep) - 1]
    parts = Intervals(left[keep[new]], right[keep[ends]])
    return parts, begins[keep[new]]
