"""Why the device idled: every idle ns of a step in one cause, the first that applies.

================= =================================================================
``data``          the host waited for the DataLoader
``copy``          the host was in a blocking host-to-device transfer
``sync``          the host had waited for the device, so the queue had run empty: from
                  the last kernel until the first one after the wait
``communication`` the next activity was already queued and the gap borders on a
                  collective (one stream waits for another, or for the other ranks); or
                  the host was in a collective of its own (gloo, MPI)
``kernels``       the next activity was already queued: the gap between two kernels
``launch``        the host ran ops (forward, backward, optimizer) but too slowly
``host``          the host did something else: Python, logging, its own data loading
================= =================================================================

*Already queued* is no threshold: the runtime call that launched the next activity had returned
before the gap began (joined by correlation). Only where a trace records no correlation, a gap
shorter than 3 µs counts as queued: a launch call itself takes longer than that on the host, so
in a shorter gap nothing can have been launched and started.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfkit._display import Shown
from perfkit.trace._lookups import launch_rows, together
from perfkit.trace.breakdown import device_layers, host_layers
from perfkit.trace.columns import DEVICE_CATEGORIES, Bool, Category, Int64, Trace
from perfkit.trace.events import runtime_calls
from perfkit.trace.intervals import Intervals, paint, union
from perfkit.trace.steps import Steps, find_steps

IDLE_CAUSES = ("data", "copy", "sync", "communication", "kernels", "launch", "host")

_SHORTEST_LAUNCH_NS = 3_000
_HOST_COLLECTIVE = ("gloo:", "mpi:")


@dataclass(frozen=True)
class Idle(Shown):
    """The device's idle time by cause.

    Attributes:
        names: what the trace calls the steps.
        steps: per step: cause → ns; they add up to the step's idle time. Empty without a device.
        wall_ns: length of each step in ns.
        warnings: what is doubtful.
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


def idle(trace: Trace, steps: Steps | None = None) -> Idle:
    """Why the device idled in every step; nothing where no device was recorded.

    Args:
        trace: the trace.
        steps: its steps; found from the trace where not given.
    """
    steps = find_steps(trace) if steps is None else steps
    causes = idle_causes(trace, steps)
    doubts = device_layers(trace)[1] if causes else ["no device activity was recorded"]
    if causes and not (trace.is_a(Category.RUNTIME) & (trace.correlation >= 0)).any():
        doubts = [*doubts, "no correlation was recorded: what was queued is told by the gap alone"]
    wall = tuple(map(int, steps.end_ns - steps.start_ns))
    return Idle(steps.names, causes, wall, together(steps.warnings, doubts))


def idle_causes(trace: Trace, steps: Steps) -> tuple[Mapping[str, int], ...]:
    """Per step: cause → ns of device idle time; they add up to the step's idle time.

    Empty without a device.
    """
    device, _ = device_layers(trace)
    if not device:
        return ()
    host = host_layers(trace, steps)
    busy = union(
        np.concatenate([layer.start for layer in device]),
        np.concatenate([layer.end for layer in device]),
    )
    gaps = _gaps(busy, int(steps.start_ns[0]), int(steps.end_ns.max()))
    working = [host[c] for c in ("forward", "backward", "optimizer", "sync")]
    launch = union(
        np.concatenate([layer.start for layer in working]),
        np.concatenate([layer.end for layer in working]),
    )
    queued, beside = _already_queued(trace, gaps), _beside_a_collective(device[1], gaps)
    talk = (
        trace.is_a(Category.OP, Category.ANNOTATION)
        & (trace.thread == steps.thread)
        & trace.named(lambda n: n.startswith(_HOST_COLLECTIVE))
    )
    on_host = union(trace.start_ns[talk], trace.end_ns[talk])
    layers = [
        busy,
        host["data wait"],
        host["copy"],
        _select(gaps, _after_sync(trace, steps, gaps)),
        _merged(_select(gaps, queued & beside), on_host),
        _select(gaps, queued),
        launch,
    ]
    cells = paint(steps.start_ns, steps.end_ns, layers).sum(axis=2)
    return tuple(dict(zip(IDLE_CAUSES, map(int, row[1:]), strict=True)) for row in cells)


def _gaps(busy: Intervals, begin: int, end: int) -> Intervals:
    start = np.r_[np.int64(begin), busy.end]
    stop = np.r_[busy.start, np.int64(end)]
    real = stop > start
    return Intervals(start[real], stop[real])


def _select(parts: Intervals, chosen: Bool) -> Intervals:
    return Intervals(parts.start[chosen], parts.end[chosen])


def _merged(a: Intervals, b: Intervals) -> Intervals:
    return union(np.r_[a.start, b.start], np.r_[a.end, b.end])


def _beside_a_collective(talk: Intervals, gaps: Intervals) -> Bool:
    """Gaps at whose beginning a collective ends, or at whose end one begins."""
    return np.isin(gaps.start, talk.end) | np.isin(gaps.end, talk.start)


def _after_sync(trace: Trace, steps: Steps, gaps: Intervals) -> Bool:
    """Gaps that began while the host was in a sync, which ended before the gap did."""
    calls = runtime_calls(trace, steps)
    rows = calls.rows[calls.is_sync]
    waits = union(trace.start_ns[rows], trace.end_ns[rows])
    # The copy that answers a sync ends a little before the call that waits for it returns.
    return waits.covers(gaps.start)


def _already_queued(trace: Trace, gaps: Intervals) -> Bool:
    """Gaps whose next device activity had been launched before the gap began."""
    rows = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    launch = launch_rows(trace, rows)
    start: Int64 = trace.start_ns[rows]
    at = np.searchsorted(start, gaps.end, side="left")
    found = (at < len(rows)) & (start[np.minimum(at, len(rows) - 1)] == gaps.end)
    at = np.minimum(at, len(rows) - 1)
    if not (launch >= 0).any():
        return np.asarray(found & (gaps.end - gaps.start < _SHORTEST_LAUNCH_NS))
    returned = trace.end_ns[np.maximum(launch, 0)]
    return np.asarray(found & (launch[at] >= 0) & (returned[at] <= gaps.start))
