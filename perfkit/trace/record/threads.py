"""Work for the main thread, from any other one."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable

from perfkit.base.heard import raised_by_handler, send_again

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
