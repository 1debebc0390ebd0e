"""Why the device idled: every idle ns of a step in one cause.

=============  =====================================================================
``data``       the host waited for the DataLoader
``copy``       the host was in a blocking host-to-device transfer
``sync``       the host had waited for the device, so the queue had run empty: from the
               last kernel until the first one after the wait
``kernels``    the next kernel was already queued: the gap between two kernels
``launch``     the host ran ops (forward, backward, optimizer) but too slowly
``host``       the host did something else: Python, logging, its own data loading
=============  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfkit.trace.breakdown import device_layers, host_layers
from perfkit.trace.columns import DEVICE_CATEGORIES, Category, Int64, Trace
from perfkit.trace.events import runtime_calls
from perfkit.trace.intervals import Intervals, paint, union
from perfkit.trace.steps import Steps

IDLE_CAUSES = ("data", "copy", "sync", "kernels", "launch", "host")


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
    layers = [
        busy,
        host["data wait"],
        host["copy"],
        _select(gaps, _after_sync(trace, steps, gaps)),
        _select(gaps, _already_queued(trace, gaps)),
        launch,
    ]
    cells = paint(steps.start_ns, steps.end_ns, layers).sum(axis=2)
    return tuple(dict(zip(IDLE_CAUSES, map(int, row[1:]), strict=True)) for row in cells)


def _gaps(busy: Intervals, begin: int, end: int) -> Intervals:
    start = np.r_[np.int64(begin), busy.end]
    stop = np.r_[busy.start, np.int64(end)]
    real = stop > start
    return Intervals(start[real], stop[real])


def _select(parts: Intervals, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Intervals:
    return Intervals(parts.start[chosen], parts.end[chosen])


def _after_sync(
    trace: Trace, steps: Steps, gaps: Intervals
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Gaps that began while the host was in a sync, which ended before the gap did."""
    calls = runtime_calls(trace, steps)
    rows = calls.rows[calls.is_sync]
    waits = union(trace.start_ns[rows], trace.end_ns[rows])
    # The copy that answers a sync ends a little before the call that waits for it returns.
    return waits.covers(gaps.start)


def _already_queued(trace: Trace, gaps: Intervals) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Gaps whose next device activity had been launched before the gap began."""
    result = np.zeros(len(gaps), dtype=np.bool_)
    rows = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    launched = _launch_end(trace, rows)
    start: Int64 = trace.start_ns[rows]
    at = np.searchsorted(start, gaps.end, side="left")
    found = (at < len(rows)) & (start[np.minimum(at, len(rows) - 1)] == gaps.end)
    at = np.minimum(at, len(rows) - 1)
    result[found] = (launched[at] >= 0)[found] & (launched[at] <= gaps.start)[found]
    return result


def _launch_end(trace: Trace, device_rows: Int64) -> Int64:
    """When the runtime call that launched each device activity returned; -1 where unknown."""
    calls = np.flatnonzero(trace.is_a(Category.RUNTIME) & (trace.correlation >= 0))
    result = np.full(len(device_rows), -1, dtype=np.int64)
    if not len(calls):
        return result
    order = np.argsort(trace.correlation[calls], kind="stable")
    keys, ends = trace.correlation[calls][order], trace.end_ns[calls][order]
    wanted = trace.correlation[device_rows]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = (keys[at] == wanted) & (wanted >= 0)
    result[hit] = ends[at[hit]]
    return result
