"""Says when the time or the memory to record in is over, in a thread of its own."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable

from perfkit.base.instrument import Instrument
from perfkit.base.process_memory import heap_bytes, peak_resident_bytes, resident_bytes
from perfkit.base.uninterrupted import raised_by_handler, send_again

#: Tiny ops make a million events a second; then time is no bound. Each takes about 8 µs to end and
#: to read, and 1.5 KB then.
MOST_EVENTS = 500_000
# Torch does not tell how many it holds, so what they take is looked at, so much each until they are
# read; within a step, whose tensors take memory, too, only roughly.
_EVENT_BYTES = 240
_KEPT_BYTES = MOST_EVENTS * _EVENT_BYTES
_MEMORY_BYTES = 2**30

_LOOK_EVERY_S = 0.25
_JOIN_S = 2.0  # the thread may be waiting for a place in the interpreter's queue of calls


class Deadline:
    """A time, or an amount of memory, whichever comes first; told once, in a thread of its own."""

    def __init__(self, on_deadline: Callable[[], None]) -> None:
        self.memory_was_full = False
        self.instrument = Instrument("the watch of the deadline")
        self._on_deadline = on_deadline
        self._ceiling_bytes: int | None = None
        self._step_end_bytes: int | None = None
        self._kept_bytes = 0  # by the last step, more than at the first look at a step's end
        self._deadline_s: float | None = None
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self.instrument.hook(self._run), name="perfkit-deadline", daemon=True
        )
        self._thread.start()

    def set(self, seconds: float) -> None:
        self._deadline_s = time.monotonic() + seconds
        self._wake.set()

    def allow_memory(self, *, at_step_end: bool = False) -> None:
        """From now on events may take memory until the deadline comes.

        They are not all that grows: the tensors of a step come and go. So what counts is what is
        above the most that the process has had before, and what :meth:`steps_grew` sees.
        """
        self.memory_was_full = False
        self._step_end_bytes = (heap_bytes() or resident_bytes()) if at_step_end else None
        self._ceiling_bytes = (peak_resident_bytes() or resident_bytes()) + _MEMORY_BYTES

    def steps_grew(self) -> bool:
        """At the end of a step: whether steps have left more behind than events may take.

        By then the tensors of the step are freed, and a process that was larger once may take more
        events than it should.
        """
        now = heap_bytes() or resident_bytes()
        if self._step_end_bytes is None:
            self._step_end_bytes = now
        self._kept_bytes = now - self._step_end_bytes
        grew = self._kept_bytes > _KEPT_BYTES
        self.memory_was_full |= grew
        return grew

    @property
    def n_events(self) -> float:
        """About how many events the steps have left; 0 where that is not known."""
        return max(self._kept_bytes / _EVENT_BYTES, 0.0)

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=_JOIN_S)
        self._on_deadline = lambda: None  # mostly a method of its owner's: no cycle stays

    def _run(self) -> None:
        while not self._closed:
            left_s = None
            if self._deadline_s is not None:
                left_s = min(max(self._deadline_s - time.monotonic(), 0.0), _LOOK_EVERY_S)
            if self._wake.wait(left_s):
                self._wake.clear()
                continue
            full = self._memory_is_full()
            if self._deadline_s is not None and (full or time.monotonic() >= self._deadline_s):
                self.memory_was_full |= full
                self._deadline_s = None
                self._on_deadline()

    def _memory_is_full(self) -> bool:
        return self._ceiling_bytes is not None and resident_bytes() > self._ceiling_bytes


_due: deque[Callable[[], None]] = deque()


def _run_due(_: object) -> int:
    while _due:
        try:
            _due.popleft()()
        except BaseException as error:  # the caller guards what it hands in: it is a signal's
            if (number := raised_by_handler(error)) is not None:  # raised here it is ignored
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
