"""Python's garbage collections while steps are recorded: the profiler does not see them."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from perfkit.base.instrument import Failure, Instrument

# A young collection takes some µs and happens often; what a step feels are the few long ones.
_SHORTEST_MS = 0.1
_MOST = 10_000


class GcPauses:
    """Notes how long each garbage collection in one thread takes, from start to stop.

    Args:
        thread_id: ``threading.get_ident()`` of the thread whose steps are recorded.
    """

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._began_s: float | None = None
        self._pauses_ms: list[float] = []
        self._instrument = Instrument("the listener to garbage collections", switch_off=self.stop)
        self._callback = self._instrument.hook(self._collected)

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def start(self) -> None:
        """Begin to listen."""
        gc.callbacks.append(self._callback)

    def forget(self) -> None:
        """Drop what was noted so far."""
        self._pauses_ms.clear()

    def stop(self) -> None:
        """Listen no more; does nothing where that is so already."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    @property
    def pauses_ms(self) -> tuple[float, ...]:
        """The pauses of at least 0.1 ms, in order."""
        return tuple(self._pauses_ms)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._began_s = time.perf_counter()
        elif self._began_s is not None:
            took_ms = (time.perf_counter() - self._began_s) * 1e3
            self._began_s = None
            if took_ms >= _SHORTEST_MS and len(self._pauses_ms) < _MOST:
                self._pauses_ms.append(took_ms)
