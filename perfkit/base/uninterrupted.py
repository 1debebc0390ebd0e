"""Signals that come while perfkit is at work: they wait, or reach the user's code.

Python raises ``KeyboardInterrupt`` between any two instructions of the main thread. Where that is
in the middle of starting a profiler or of removing a hook, no ``finally`` puts right what is half
done, and what is left changes every later step of the notebook.

So Ctrl-C waits while perfkit puts something in place, or takes it away again. What a handler raises
elsewhere in perfkit's work (Ctrl-C's ``KeyboardInterrupt``, the ``TimeoutError`` of a user's
``signal.alarm``) is no failure of perfkit's: :func:`raised_by_handler` tells. And where Python
calls perfkit from a place that cannot raise (a garbage collection, the end of a generator), it
prints such an exception and goes on: :func:`hear` has the signal sent once more, right after.
"""

from __future__ import annotations

# signal's functions around these take ten times as long, and this runs in recorded steps
import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

_NUMBERS = (int(signal.SIGINT), int(signal.SIGTERM))
# Who presses Ctrl-C so often means it: something in here hangs.
_AT_LAST = 3
_PERFKIT = str(Path(__file__).absolute().parents[1]) + os.sep
# A signal that is sent again may fall into the same callback, and is sent again then.
_SOON_S = 0.001

_hook: Callable[[Any], None] | None = None


class Uninterrupted:
    """Context manager in which signals that have a handler in Python wait, until its end.

    For short pieces of perfkit's own, never around the user's code. Their handlers are called at
    the end, where they may raise; the third signal of a kind does not wait. It may be nested. In
    other threads, where no handler ever runs, it does nothing.
    """

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held: list[_Held] = []
        try:
            for number in _NUMBERS:
                handler: Any = _signal.getsignal(number)
                if callable(handler) and not isinstance(handler, _Held):
                    held = _Held(number, handler)
                    self._held.append(held)
                    _signal.signal(number, held)
        except ValueError:  # another thread, or another interpreter: no handler runs here
            pass
        except BaseException:  # another signal's handler raised
            if self._held:
                _put_back(self._held)
            raise

    def __exit__(self, *error: object) -> None:
        if self._held:
            _put_back(self._held)
            for held in self._held:
                if held.n:
                    _raise([held.number for held in self._held if held.n])
                    break


def surely(undo: Callable[[], object]) -> None:
    """Call it under :class:`Uninterrupted`, also where Ctrl-C came just before that began.

    Args:
        undo: may be called twice; the second time it has nothing left to do.
    """
    try:
        with Uninterrupted():
            undo()
    except KeyboardInterrupt:
        with Uninterrupted():
            undo()
        raise


class _Held:
    """Stands in for a handler, and counts."""

    def __init__(self, number: int, handler: Any) -> None:
        self.number = number
        self.handler = handler
        self.n = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.n += 1
        if self.n >= _AT_LAST:
            self.n = 0
            self.handler(number, frame)


def _put_back(all_held: list[_Held]) -> None:
    *others, last = all_held
    try:
        now: Any = _signal.getsignal(last.number)
        if now is last:
            _signal.signal(last.number, last.handler)
    finally:  # a signal that comes now is handled at once, and its handler may raise
        if others:
            _put_back(others)


def _raise(numbers: list[int]) -> None:
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:  # a handler may raise
            _raise(numbers[1:])


def _behind(handler: Any) -> Any:
    """The handler that is called once no piece of perfkit's own holds the signal back."""
    while isinstance(handler, _Held):
        handler = handler.handler
    return handler


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
        handler: Any = _behind(signal.getsignal(number))
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
