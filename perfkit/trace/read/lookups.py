"""What several questions ask: which launch belongs to a kernel, which step, how much is covered."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfkit.trace.read.columns import Category, Int32, Int64, Trace
from perfkit.trace.read.intervals import Intervals, nest
from perfkit.trace.read.steps import Steps


def launch_rows(trace: Trace, device_rows: Int64) -> Int64:
    """For each device activity: the row of the runtime call that launched it, -1 where unknown."""
    calls = np.flatnonzero(trace.is_a(Category.RUNTIME) & (trace.correlation >= 0))
    result = np.full(len(device_rows), -1, dtype=np.int64)
    if not len(calls) or not len(device_rows):
        return result
    order = np.argsort(trace.correlation[calls], kind="stable")
    keys, calls = trace.correlation[calls][order], calls[order]
    wanted = trace.correlation[device_rows]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[at] == wanted
    result[hit] = calls[at[hit]]
    return result


def device_rows(trace: Trace, steps: Steps, *categories: Category) -> tuple[Int64, Int64]:
    """Device activities of the steps, and the index of each one's step.

    An activity belongs to the step in which it was launched; where no launch was recorded, to
    the step in which it starts.
    """
    rows = np.flatnonzero(trace.is_a(*categories))
    launch = launch_rows(trace, rows)
    began = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], trace.start_ns[rows])
    step = steps.containing(began)
    return rows[step >= 0], step[step >= 0]


def covered_ns(parts: Intervals, start: Int64, end: Int64) -> Int64:
    """How many ns of each ``[start, end)`` lie inside the intervals."""
    if not len(parts):
        return np.zeros(len(start), dtype=np.int64)
    before = np.r_[np.int64(0), np.cumsum(parts.end - parts.start)]

    def until(points: Int64) -> Int64:
        at = np.searchsorted(parts.start, points, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.maximum(parts.end[last] - points, 0)
        return np.where(at > 0, before[at] - beyond, 0).astype(np.int64)

    inside: Int64 = until(np.maximum(end, start)) - until(start)
    return inside


def enclosing(trace: Trace, candidates: Int64, rows: Int64) -> Int64:
    """For each of ``rows``: the innermost of ``candidates`` around it on its thread, else -1."""
    return enclosing_points(
        trace, candidates, trace.thread[rows], trace.start_ns[rows], trace.end_ns[rows]
    )


def enclosing_points(
    trace: Trace, candidates: Int64, thread: Int32, start: Int64, end: Int64
) -> Int64:
    """As :func:`enclosing`, for times on threads that need not be rows of the trace."""
    result = np.full(len(start), -1, dtype=np.int64)
    for index in np.unique(thread):
        around = candidates[trace.thread[candidates] == index]
        asked = np.flatnonzero(thread == index)
        if not len(around):
            continue
        begin = np.r_[trace.start_ns[around], start[asked]]
        until = np.r_[trace.end_ns[around], end[asked]]
        # Among equals a candidate stands first, so that it encloses what is asked about.
        order = np.lexsort((np.r_[np.zeros(len(around)), np.ones(len(asked))], -until, begin))
        _, above = nest(begin[order], until[order])
        is_asked = order >= len(around)
        while True:  # what is asked about encloses nothing: as many rounds as they are nested
            climb = (above >= 0) & is_asked[np.maximum(above, 0)]
            if not climb.any():
                break
            above[climb] = above[above[climb]]
        at = np.flatnonzero(is_asked)
        found = above[at] >= 0
        result[asked[order[at[found]] - len(around)]] = around[order[above[at[found]]]]
    return result


def sum_by(keys: Int64, values: Int64, n: int) -> Int64:
    """Exact integer sums of ``values`` by key 0 … n-1."""
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def together(*warnings: Iterable[str]) -> tuple[str, ...]:
    """Warnings of several sources, each once."""
    return tuple(dict.fromkeys(w for source in warnings for w in source))


def recorded_on(trace: Trace) -> str:
    """Name of the device of a trace; ``"cpu"`` without one."""
    devices = trace.metadata.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        name = devices[0].get("name")
        if isinstance(name, str):
            return name
    return "a device" if trace.has_device else "cpu"
