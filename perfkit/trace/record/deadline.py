"""Says when the time or the memory to record in is over, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from perfkit.base.heap import heap_bytes
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.resident import peak_resident_bytes, resident_bytes

_LOOK_EVERY_S = 0.25
# So many times as long as the last look took the next one waits: 2 % of the time.
_REST_AFTER_LOOK = 50
_JOIN_S = 2.0  # the thread may be waiting for a place in the interpreter's queue of calls


class Deadline:
    """A time, or an amount of memory, whichever comes first.

    Args:
        on_deadline: called in its thread, once for each deadline.
        memory_limit_bytes: how much this process may grow, see :meth:`allow_memory`.
        kept_limit_bytes: how much of that may stay at the end of a step, see :meth:`steps_grew`.
    """

    def __init__(
        self, on_deadline: Callable[[], None], memory_limit_bytes: int, kept_limit_bytes: int
    ) -> None:
        self._on_deadline: Callable[[], None] | None = on_deadline
        self._memory_limit_bytes = memory_limit_bytes
        self._kept_limit_bytes = kept_limit_bytes
        self._memory_ceiling_bytes: int | None = None
        self._highest_bytes = 0  # of the looks so far
        self._step_end_bytes: int | None = None
        self._due_s = 0.0
        self.kept_bytes = 0  # by the last step, more than at the first look at a step's end
        self._deadline_s: float | None = None
        self._wake = threading.Event()
        self._closed = False
        self.memory_was_full = False  # … at a deadline, which then came early
        self._instrument = Instrument("the watch of the deadline", switch_off=self._failed)
        self._thread = threading.Thread(
            target=self._instrument.hook(self._run), name="perfkit-deadline", daemon=True
        )

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def set(self, monotonic_s: float) -> None:
        """Call ``on_deadline`` at this time of ``time.monotonic``."""
        self._deadline_s = monotonic_s
        self._wake.set()

    def allow_memory(self, *, at_step_end: bool = False) -> None:
        """From now on this process may grow by ``memory_limit_bytes`` until the deadline comes.

        Events are not all that grows: the tensors of a step come and go. So what counts is what is
        above the most that the process has had before, and what :meth:`steps_grew` sees.
        """
        self.memory_was_full = False
        self._step_end_bytes = _used_bytes() if at_step_end else None
        known = max(resident_bytes(), peak_resident_bytes() or self._highest_bytes)
        self._memory_ceiling_bytes = known + self._memory_limit_bytes

    def steps_grew(self) -> bool:
        """At the end of a step: whether steps have left ``kept_limit_bytes`` behind.

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
        self.kept_bytes = now - self._step_end_bytes
        grew = self.kept_bytes > self._kept_limit_bytes
        self.memory_was_full |= grew
        return grew

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
        if self._memory_ceiling_bytes is None:
            return False
        now = resident_bytes()
        self._highest_bytes = max(self._highest_bytes, now)
        return now > self._memory_ceiling_bytes


def _used_bytes() -> int:
    heap = heap_bytes()
    return resident_bytes() if heap is None else heap
