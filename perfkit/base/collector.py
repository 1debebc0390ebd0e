"""Python's garbage collector: at rest while much is made that stays, and how long it takes."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from perfkit.base.instrument import Instrument
from perfkit.base.uninterrupted import Uninterrupted, surely

_lock = threading.RLock()
_was_on = True
_resting: dict[object, int] = {}  # each that wants it at rest, and its thread


@contextmanager
def at_rest() -> Iterator[None]:
    """No collection meanwhile: each would look through all that was made so far.

    An import of torch takes a sixth less time. Several threads may want it at once: the last one to
    leave switches it on again, if it was on. (A ``gc.disable()`` of the program meanwhile is
    undone.)
    """
    rest = object()
    try:
        with Uninterrupted():
            _begin(rest)
        yield
    finally:
        surely(partial(_end, rest))


def _begin(rest: object) -> None:
    global _was_on
    with _lock:
        if not _resting:
            _was_on = gc.isenabled()
            gc.disable()
        _resting[rest] = threading.get_ident()


def _end(rest: object) -> None:
    with _lock:
        if _resting.pop(rest, None) is not None:
            _back_on()


def _back_on() -> None:
    if not _resting and _was_on:
        gc.enable()


def _forked() -> None:
    """This process has no other thread: none will come to switch it on."""
    elsewhere = [one for one, thread in _resting.items() if thread != threading.get_ident()]
    for one in elsewhere:
        del _resting[one]
    if elsewhere:
        _back_on()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)


class CollectorTime:
    """How long each of Python's garbage collections takes, in the thread that starts it.

    Attributes:
        is_off: what is collected meanwhile is perfkit's own doing, and is not noted.

    Args:
        least_ns: a young collection takes some µs and happens often; shorter ones are not noted.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, *, least_ns: int = 0) -> None:
        self._now, self._least_ns = now, least_ns
        self.instrument = Instrument("the listener to garbage collections", switch_off=self.stop)
        self._callback = self.instrument.hook(self._collected)
        self._thread_id = self._began_ns = 0
        self._took_ns: list[int] = []
        self.is_off = False

    def start(self) -> None:
        """Begin to listen, in this thread."""
        self._thread_id = threading.get_ident()
        self._began_ns, self._took_ns = 0, []
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Listen no more."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def take(self) -> Sequence[int]:
        """Nanoseconds that each took since the last call."""
        if not self._took_ns:
            return ()
        taken, self._took_ns = self._took_ns, []
        return taken

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._began_ns = self._now()
        elif self._began_ns:
            took_ns, self._began_ns = self._now() - self._began_ns, 0
            if took_ns >= self._least_ns and not self.is_off:
                self._took_ns.append(took_ns)
