"""Other threads: work for the main one, and which ones a region starts."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from perfkit.base.heard import raised_by_handler, send_again
from perfkit.base.stand_in import Calls, Listeners, stand_in

_due: deque[Callable[[], None]] = deque()


def _run_due(_: object) -> int:
    while _due:
        try:
            _due.popleft()()
        except BaseException as error:  # the caller guards what it hands in: it is a signal's
            number = raised_by_handler(error)
            if number is not None:  # from here it would be ignored, also if it was raised again now
                send_again(number)
    return 0


# Kept for ever: the interpreter may still hold it when it ends.
_callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_run_due)


def call_in_main_thread(function: Callable[[], None]) -> None:
    """Have the main thread call ``function`` between two bytecodes; it must not raise.

    A profiler must be stopped by the thread that started it, and that may be busy in user code for
    minutes. ``Py_AddPendingCall`` is no signal, so it does not clash with the user's handlers.
    While the main thread is inside one long C call, this waits for that call's end.
    """
    _due.append(function)
    while ctypes.pythonapi.Py_AddPendingCall(_callback, None) != 0:
        time.sleep(0.001)  # the interpreter's queue (32 places) is full


def watch_thread_starts(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call ``listener(name)`` for each ``threading.Thread`` that starts; returns how to stop.

    While somebody listens, ``Thread.start`` is a wrapper of ours: a thread may be over before
    anybody could look for it in ``threading.enumerate``.
    """
    return _listeners.add(listener)


def _install(calls: Calls) -> Callable[[], None]:
    thread: Any = threading.Thread
    original = thread.start

    def start(self: threading.Thread) -> None:
        calls.begin(self.name)
        original(self)

    return stand_in(thread, "start", start)


_listeners = Listeners(_install)
