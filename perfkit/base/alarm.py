"""A moment at which one thread wakes, and which another one puts off without waking it.

A lock or an event that is waited for with a timeout cannot do so: who waits wakes at the old
moment, takes the interpreter's lock, and looks. Where that happens many times a second it costs
what it was to save.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
import weakref
from typing import Any, Protocol

_SECOND_NS = 1_000_000_000
# Without the kernel's timers: who waits looks so often whether the moment has been put off.
_LOOK_EVERY_S = 0.1
_CLOCK_MONOTONIC, _TFD_CLOEXEC = 1, 0o2000000


class Alarm(Protocol):
    """One thread waits; any may set or close."""

    def set(self, in_ns: int) -> None:
        """Wake who waits in so many nanoseconds, and not at the moment set before."""

    def wait(self) -> bool:
        """Wait for the moment; False where the alarm has been closed."""

    def close(self) -> None:
        """Wake who waits, for the last time."""


def new_alarm() -> Alarm:
    """The kernel's timer where there is one (Linux), else a thread that looks now and then."""
    calls = _calls()
    if calls is not None:
        file = calls[0](_CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if file >= 0:
            return _Timer(file, calls[1])
    return _Looks()


class _Spec(ctypes.Structure):
    """``struct itimerspec``: every so often (never), and the first time; see timerfd_create(2)."""

    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")
    )


@functools.cache
def _calls() -> tuple[Any, Any] | None:
    """``timerfd_create`` and ``timerfd_settime``, called with Python's lock, which is short."""
    try:
        library = ctypes.PyDLL(None)
        create, settime = library.timerfd_create, library.timerfd_settime
    except (OSError, AttributeError, TypeError):
        return None
    create.argtypes = ctypes.c_int, ctypes.c_int
    settime.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    return create, settime


class _Timer:
    """A timer of the kernel, read by who waits, without Python's lock."""

    def __init__(self, file: int, settime: Any) -> None:
        self._file = file
        self._settime = settime
        self._is_closed = False
        self._at_once = ctypes.byref(_Spec(0, 0, 0, 1))  # 0 would be off
        self._spec: tuple[int, Any] = 0, self._at_once  # the last moment is often the next one, too
        # with the last who knows it: else its number might be another file's by then
        weakref.finalize(self, os.close, file).atexit = False

    def set(self, in_ns: int) -> None:
        spec = self._spec
        if spec[0] != in_ns:
            first = divmod(max(in_ns, 1), _SECOND_NS)
            self._spec = spec = in_ns, ctypes.byref(_Spec(0, 0, *first))
        self._settime(self._file, 0, spec[1], None)

    def wait(self) -> bool:
        os.read(self._file, 8)
        return not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._settime(self._file, 0, self._at_once, None)


class _Looks:
    """The same with a lock and a timeout."""

    def __init__(self) -> None:
        self._due_ns: int | None = None
        self._open = threading.Lock()
        self._open.acquire()

    def set(self, in_ns: int) -> None:
        self._due_ns = time.monotonic_ns() + in_ns

    def wait(self) -> bool:
        while not self._open.acquire(timeout=_LOOK_EVERY_S):
            due_ns = self._due_ns
            if due_ns is not None and time.monotonic_ns() >= due_ns:
                self._due_ns = None
                return True
        self._open.release()
        return False

    def close(self) -> None:
        if self._open.locked():
            self._open.release()
