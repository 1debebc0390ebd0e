"""How long steps take: by the host's clock, or by the GPU's if CUDA is in use.

With a GPU the host only launches work and runs ahead. Synchronising every step would change what is
measured, so an event on the current stream marks the end of each step, and the host waits once per
window, when points are sent. The time between two events is the step time: the GPU's if it is the
slower of the two, else the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from perfkit.base.device import Device


class Stopwatch(Protocol):
    """Durations of steps since the last :meth:`take`."""

    def begin(self) -> None:
        """A step begins."""

    def end(self) -> None:
        """End a step."""

    def take(self) -> list[float]:
        """Durations in ms of the steps since the last call; waits for the device if necessary."""


class HostStopwatch:
    """``time.perf_counter``."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began_s = 0.0
        self._steps_ms: list[float] = []

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> None:
        # if the clock goes backwards, the step is 0, never negative
        self._steps_ms.append(max(self._clock() - self._began_s, 0.0) * 1e3)

    def take(self) -> list[float]:
        taken, self._steps_ms = self._steps_ms, []
        return taken


class EventStopwatch:
    """Events on the device's current stream.

    Args:
        make_event: returns a new event with ``record(stream)``, ``synchronize()`` and
            ``elapsed_time(later)`` in ms.
        stream: returns the stream to record on.
    """

    def __init__(self, make_event: Callable[[], Any], stream: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._stream = stream
        self._events: list[Any] = []
        self._spare: list[Any] = []

    def _mark(self) -> None:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record(self._stream())
        self._events.append(event)

    def begin(self) -> None:
        # within a window, the end of one step is the start of the next
        if not self._events:
            self._mark()

    def end(self) -> None:
        self._mark()

    def take(self) -> list[float]:
        if not self._events:
            return []
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        taken = [float(a.elapsed_time(b)) for a, b in pairs]
        self._spare += self._events
        self._events = []
        return taken


def device_stopwatch(device: Device, index: int) -> EventStopwatch:
    """The stopwatch for a child that uses this GPU."""
    return EventStopwatch(device.event, lambda: device.stream(index))
