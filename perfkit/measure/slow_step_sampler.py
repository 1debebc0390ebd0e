"""Which line runs while a step takes much longer than the others?

A thread wakes ten times a second and does nothing unless the current step is overdue; then it looks
which line the watched thread is on, twenty times a second for as long as the step goes on. Nothing
is hooked: a step that begins is a plain assignment. Where a recorder samples all lines anyway
(:mod:`perfkit.base.line_sampler`), this is not started.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType

from perfkit.base.instrument import Instrument
from perfkit.base.source import statement
from perfkit.base.stack import stack_of
from perfkit.base.user_code import is_user_code, tells_something, where
from perfkit.measure.meter import StepMeter

_WAKE_EVERY_S, _LOOK_EVERY_S = 0.1, 0.05
# Beyond this many, steps need no explanation of their own; the first ones are kept.
_MOST_STEPS = 500
_LONGEST_SOURCE = 60
# A step is overdue when it takes 1.5 times the median of the last ones, and at least 20 ms more.
_OVERDUE = 1.5
_OVERDUE_NS = 20_000_000

_Place = tuple[str, int, str]  # file, line, function


class SlowStepSampler:
    """Records where the thread that starts it is while its step is overdue."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.instrument = Instrument("the sampler of slow steps")
        self._now = now
        self._limit_ns = 0
        self._step = (0, 0)  # number and start: one assignment, so always consistent
        self._seen: dict[int, Counter[_Place]] = {}
        self._closed = threading.Event()  # of the thread
        self._thread: threading.Thread | None = None

    def begins(self, number: int, now_ns: int) -> None:
        self._step = number, now_ns

    def learns(self, meter: StepMeter, loop: CodeType | None = None) -> None:
        """What the last steps say of when one is overdue; the first time, begin to look."""
        usual_ns = meter.usual_ns()
        if not usual_ns or not self.instrument.is_on:
            return
        self._limit_ns = int(max(_OVERDUE * usual_ns, usual_ns + _OVERDUE_NS))
        if self._thread is None:
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self.instrument.hook(self._run),
                args=(self._closed, threading.get_ident(), loop),
                name="perfkit-slow-steps",
                daemon=True,
            )
            self._thread.start()

    def forget(self) -> None:
        """In a forked child, where no thread of it is."""
        self._step, self._thread = (0, 0), None

    def stop(self) -> None:
        """Look no more; what was seen stays."""
        self._closed.set()
        thread = self._thread
        self.forget()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _run(self, closed: threading.Event, watched: int, loop: CodeType | None) -> None:
        pause_s = _WAKE_EVERY_S
        while not closed.wait(pause_s):
            pause_s = _WAKE_EVERY_S
            number, began_ns = step = self._step
            if not began_ns or self._now() - began_ns < self._limit_ns:
                continue
            pause_s = _LOOK_EVERY_S
            if number not in self._seen and len(self._seen) >= _MOST_STEPS:
                continue
            place = _telling(watched, loop)
            if place is not None and self._step == step:  # else it ended meanwhile
                self._seen.setdefault(number, Counter())[place] += 1

    def during(self, numbers: set[int]) -> str:
        """The line seen most often in these steps, in words; empty if nothing stood out."""
        found: Counter[_Place] = Counter()
        for number in numbers & self._seen.keys():
            found.update(self._seen[number])
        if not found:
            return ""
        (file, line, function), n = found.most_common(1)[0]
        if 2 * n < found.total():
            return ""
        source = statement(file, line, longest=_LONGEST_SOURCE) if is_user_code(file) else ""
        return f"{source or function} ({where(file, line)})"


def _telling(watched: int, loop: CodeType | None) -> _Place | None:
    """The innermost user frame within the loop, else the innermost of the training library."""
    library: _Place | None = None
    for code, line, _ in stack_of(watched):
        place = code.co_filename, line or 0, code.co_name
        if is_user_code(code.co_filename):
            return place
        if library is None and tells_something(code.co_filename):
            library = place
        if code is loop:
            return library or place
    return library
