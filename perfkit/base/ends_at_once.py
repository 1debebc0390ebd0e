"""Ends a process whose main thread does not come to handle a signal in time.

Python runs handlers of signals in the main thread, between two of its instructions. A main thread
that hangs in a call of C (a collective that never ends, a driver) never comes to that, so a process
that handles SIGTERM cannot be ended by it any more. Python's C code, though, tells a pipe of every
signal at once: a thread waits there, and ends the process as the signal would have without a
handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable


class EndsAtOnce:
    """Ends this process if a handler is not reached in time.

    Args:
        number: the signal.
        is_due: whether the signal is still waiting for its handler; called in another thread.
        grace_s: how long it may.
        before: called just before the end, in another thread.
    """

    def __init__(
        self,
        number: int,
        is_due: Callable[[], bool],
        *,
        grace_s: float,
        before: Callable[[], object],
    ) -> None:
        self._number = number
        self._is_due = is_due
        self._grace_s = grace_s
        self._before = before
        self._reading = -1

    def start(self) -> None:
        """Begin, in the main thread. Where a program has such a pipe itself it keeps it."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._reading = reading
        threading.Thread(target=self._wait, name="perfkit-signals", daemon=True).start()

    @staticmethod
    def forget() -> None:
        """In a forked child: its signals are none of the parent's."""
        with contextlib.suppress(ValueError):  # forked by another thread
            signal.set_wakeup_fd(-1)

    def _wait(self) -> None:
        while number := os.read(self._reading, 1):
            if number[0] == self._number:
                timer = threading.Event()
                timer.wait(self._grace_s)
                if self._is_due():
                    self._end()

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            self._before()
        # signal.signal() is for the main thread only; C's own is not
        ctypes.CDLL(None).signal(self._number, None)
        os.kill(os.getpid(), self._number)
