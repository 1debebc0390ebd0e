"""Which activity of the device a CUDA event wait waited for, exactly as the profiler recorded it.

Traces that were recorded with syncs (category ``cuda_sync``) say for each ``cudaStreamWaitEvent``
and ``cudaEventSynchronize`` on which stream the event was recorded and by which call. Calls are
numbered in the order in which they were made (their correlation), and a stream works in that
order: what was waited for is the last activity that was sent to that stream before the event was.
"""

from __future__ import annotations

import numpy as np

from perfkit.trace.read.columns import Category, Int64, Trace

_Stream = tuple[int, int]  # device, stream


class EventWaits:
    """Looks up targets among some activities of the device.

    Args:
        rows: rows of activities; positions below are positions in this.
    """

    def __init__(self, trace: Trace, rows: Int64) -> None:
        self._correlation = trace.correlation[rows]
        self._streams: list[_Stream] = list(
            zip(trace.device[rows].tolist(), trace.stream[rows].tolist(), strict=True)
        )
        self._sent: dict[_Stream, tuple[Int64, Int64]] = {}
        self._waits: dict[_Stream, list[tuple[int, int, int]]] = {}
        self._of_host: dict[int, tuple[_Stream, int]] = {}
        syncs = np.flatnonzero(trace.is_a(Category.DEVICE_SYNC) & (trace.correlation >= 0))
        if not len(syncs) or not len(rows):
            return
        places: dict[_Stream, list[int]] = {}
        for at, key in enumerate(self._streams):
            places.setdefault(key, []).append(at)
        for key, members in places.items():
            at_stream = np.array(members, dtype=np.int64)
            order = np.argsort(self._correlation[at_stream], kind="stable")
            self._sent[key] = self._correlation[at_stream][order], at_stream[order]
        for row in syncs.tolist():
            number, device = int(trace.correlation[row]), int(trace.device[row])
            name, own = trace.names[trace.name_id[row]], int(trace.stream[row])
            stream, record = trace.waits.get(number, (-1, -1))
            if name == "Stream Wait Event" and stream >= 0:
                self._waits.setdefault((device, own), []).append((number, stream, record))
            elif name == "Event Sync" and stream >= 0:
                self._of_host[number] = (device, stream), record
            elif name == "Stream Sync" and own >= 0:
                self._of_host[number] = (device, own), number
        for found in self._waits.values():
            found.sort()

    def before(self, at: int, previous: int) -> tuple[int, int]:
        """Position of the activity of another stream that ``at`` waited for, and that stream.

        Args:
            at: position of an activity.
            previous: position of the one before it on its own stream, -1 where there is none:
                waits that were asked for before it are over.

        Returns:
            (-1, -1) where it waited for none.
        """
        device, own = self._streams[at]
        after = int(self._correlation[previous]) if previous >= 0 else -1
        latest, of_stream = -1, -1
        for number, stream, record in self._waits.get((device, own), ()):
            if after < number < int(self._correlation[at]) and stream != own:
                target = self._last_sent((device, stream), record if record >= 0 else number)
                if target > latest:  # positions are sorted by end
                    latest, of_stream = target, stream
        return latest, of_stream

    def of_host(self, correlation: int) -> int | None:
        """Position of the activity that this call of the host waited for: -1 for none on record,
        None where it is not known what the call waited for.
        """
        found = self._of_host.get(correlation)
        if found is None:
            return None
        stream, record = found
        return self._last_sent(stream, record if record >= 0 else correlation)

    def _last_sent(self, stream: _Stream, before: int) -> int:
        if stream not in self._sent:
            return -1
        numbers, places = self._sent[stream]
        at = int(np.searchsorted(numbers, before, side="left")) - 1
        return int(places[at]) if at >= 0 else -1
