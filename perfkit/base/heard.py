"""What a signal's handler raises reaches the user's code, also where it falls into perfkit's.

Python runs handlers between any two instructions of the main thread, so what they raise (Ctrl-C's
``KeyboardInterrupt``, the ``TimeoutError`` of a user's ``signal.alarm``) may come up in the middle
of perfkit's own work. That is no failure of perfkit's: :func:`raised_by_handler` tells. And where
Python calls perfkit from a place that cannot raise (a garbage collection, the end of a generator),
it prints such an exception and goes on: :func:`hear` has the signal sent once more, right after.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from perfkit.base.uninterrupted import behind

_PERFKIT = str(Path(__file__).absolute().parents[1]) + os.sep
# It may fall into the same callback again, and is sent again then.
_SOON_S = 0.001

_hook: Callable[[Any], None] | None = None


def hear() -> None:
    """From now on, no signal is lost in a callback of perfkit's; for all other errors no change."""
    global _hook
    if sys.unraisablehook is not _hook:
        before = sys.unraisablehook

        def hook(unraisable: Any, /) -> None:
            error = unraisable.exc_value
            number = None
            with contextlib.suppress(Exception):  # a program may have replaced what this calls
                if error is not None and _is_ours(unraisable.exc_traceback):
                    number = raised_by_handler(error)
            if number is None:
                before(unraisable)
            else:
                send_again(number)

        sys.unraisablehook = _hook = hook


def raised_by_handler(error: BaseException) -> int | None:
    """The number of the signal whose handler in Python raised this; None if none did."""
    if threading.get_ident() != threading.main_thread().ident:
        return None  # no handler runs here
    codes = {entry.tb_frame.f_code for entry in _entries(error.__traceback__)}
    for number in signal.valid_signals():
        handler: Any = behind(signal.getsignal(number))
        if handler is signal.default_int_handler:
            if type(error) is KeyboardInterrupt:
                return int(number)
        elif callable(handler) and _code(handler) in codes:
            return int(number)
    return None


def send_again(number: int) -> None:
    """Send this signal to the main thread once more, when what runs there now is over."""
    _thread.start_new_thread(_send_soon, (number,))


def _code(handler: Any) -> CodeType | None:
    for _ in range(4):  # a partial of a method, say
        inner = getattr(handler, "func", None) or getattr(handler, "__func__", None)
        if inner is None:
            break
        handler = inner
    code = getattr(handler, "__code__", None)
    if code is None:  # an object with this method
        code = getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None


def _entries(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_ours(trace: TracebackType | None) -> bool:
    return any(e.tb_frame.f_code.co_filename.startswith(_PERFKIT) for e in _entries(trace))


def _send_soon(number: int) -> None:
    time.sleep(_SOON_S)
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)  # a call that waits in C ends, too
    else:
        _thread.interrupt_main(signal.Signals(number))
