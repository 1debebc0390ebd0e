"""Says when the time or the memory to record in is over, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from perfkit.base.heap import heap_bytes
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.resident import peak_resident_bytes, resident_bytes

#: Tiny ops make a million events a second; then time is no bound. Each takes about 8 µs to end and
#: to read, and 1.5 KB then.
MOST_EVENTS = 500_000
# Torch does not tell how many it holds, so what they take is looked at, so much each until they are
# read; within a step, whose tensors take memory, too, only roughly.
_EVENT_BYTES = 240
_KEPT_BYTES = MOST_EVENTS * _EVENT_BYTES
_MEMORY_BYTES = 2**30

_LOOK_EVERY_S = 0.25
# So many times as long as the last look took the next one waits: 2 % of the time.
_REST_AFTER_LOOK = 50
_JOIN_S = 2.0  # the thread may be waiting for a place in the interpreter's queue of calls


class Deadline:
    """A time, or an amount of memory, whichever comes first. Its thread begins at once.

    Args:
        on_deadline: called in its thread, once for each deadline.

    Attributes:
        memory_was_full: the deadline came early, because the process has grown.
    """

    def __init__(self, on_deadline: Callable[[], None]) -> None:
        self.memory_was_full = False
        self._on_deadline: Callable[[], None] | None = on_deadline
        self._ceiling_bytes: int | None = None
        self._highest_bytes = 0  # of the looks so far
        self._step_end_bytes: int | None = None
        self._kept_bytes = 0  # by the last step, more than at the first look at a step's end
        self._due_s = 0.0
        self._deadline_s: float | None = None
        self._wake = threading.Event()
        self._closed = False
        self._instrument = Instrument("the watch of the deadline", switch_off=self._failed)
        self._thread = threading.Thread(
            target=self._instrument.hook(self._run), name="perfkit-deadline", daemon=True
        )
        self._thread.start()

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def set(self, seconds: float) -> None:
        """Call ``on_deadline`` so long from now."""
        self._deadline_s = time.monotonic() + seconds
        self._wake.set()

    def allow_memory(self, *, at_step_end: bool = False) -> None:
        """From now on events may take memory until the deadline comes.

        They are not all that grows: the tensors of a step come and go. So what counts is what is
        above the most that the process has had before, and what :meth:`steps_grew` sees.
        """
        self.memory_was_full = False
        self._step_end_bytes = _used_bytes() if at_step_end else None
        known = max(resident_bytes(), peak_resident_bytes() or self._highest_bytes)
        self._ceiling_bytes = known + _MEMORY_BYTES

    def steps_grew(self) -> bool:
        """At the end of a step: whether steps have left more behind than events may take.

        By then the tensors of the step are freed, and a process that was larger once may take more
        events than it should. On a heap with many holes a look takes long, and the next rests.
        """
        if time.perf_counter() < self._due_s:
            return False
        spent_s = time.thread_time()
        now = _used_bytes()
        self._due_s = time.perf_counter() + _REST_AFTER_LOOK * (time.thread_time() - spent_s)
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
        """End the thread."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN_S)
        self._on_deadline = None  # mostly a method of its owner's: no cycle stays

    def _failed(self) -> None:
        """Nobody watches the deadline any more, so it is over now."""
        self._closed = True
        if self._deadline_s is not None and self._on_deadline is not None:
            self._on_deadline()

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
                if self._on_deadline is not None:
                    self._on_deadline()

    def _memory_is_full(self) -> bool:
        now = resident_bytes()
        self._highest_bytes = max(self._highest_bytes, now)
        return self._ceiling_bytes is not None and now > self._ceiling_bytes


def _used_bytes() -> int:
    heap = heap_bytes()
    return resident_bytes() if heap is None else heap
