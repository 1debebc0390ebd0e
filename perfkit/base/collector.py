"""Python's garbage collector, at rest while much is made that stays, or while none may begin."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

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
