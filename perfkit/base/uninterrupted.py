"""Ctrl-C waits while perfkit puts something in place, or takes it away again.

Python raises ``KeyboardInterrupt`` between any two instructions of the main thread. Where that is
in the middle of starting a profiler or of removing a hook, no ``finally`` puts right what is half
done, and what is left changes every later step of the notebook.
"""

from __future__ import annotations

# signal's functions around these take ten times as long, and this runs in recorded steps
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NUMBERS = (int(signal.SIGINT), int(signal.SIGTERM))
# Who presses Ctrl-C so often means it: something in here hangs.
_AT_LAST = 3


class Uninterrupted:
    """Context manager in which signals that have a handler in Python wait, until its end.

    For short pieces of perfkit's own, never around the user's code. Their handlers are called at
    the end, where they may raise; the third signal of a kind does not wait. It may be nested. In
    other threads, where no handler ever runs, it does nothing.
    """

    __slots__ = ("_held",)

    def __enter__(self) -> None:
        self._held: list[_Held] = []
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for number in _NUMBERS:
                handler: Any = _signal.getsignal(number)
                if callable(handler) and not isinstance(handler, _Held):
                    held = _Held(number, handler)
                    self._held.append(held)
                    _signal.signal(number, held)
        except ValueError:  # a thread of another interpreter: no handler runs here
            pass
        except BaseException:  # another signal's handler raised
            _put_back(self._held)
            raise

    def __exit__(self, *error: object) -> None:
        _put_back(self._held)
        _raise([held.number for held in self._held if held.n])


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


def behind(handler: Any) -> Any:
    """The handler that is called once no piece of perfkit's own holds the signal back."""
    while isinstance(handler, _Held):
        handler = handler.handler
    return handler


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
    if all_held:
        *others, last = all_held
        try:
            now: Any = _signal.getsignal(last.number)
            if now is last:
                _signal.signal(last.number, last.handler)
        finally:  # a signal that comes now is handled at once, and its handler may raise
            _put_back(others)


def _raise(numbers: list[int]) -> None:
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:  # a handler may raise
            _raise(numbers[1:])
