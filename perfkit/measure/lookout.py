"""Which line runs while a step takes much longer than the others?

Twenty times a second a thread checks whether the current step is overdue and, if so, which line the
watched thread is on; less often, down to five times, while none is. Nothing is hooked: a check is
one comparison. To wake for it takes 0.1 ms of a core where the machine is busy, so watching costs
0.05 to 0.2 % of one (``tests/bench/watch_overhead.py``).
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import CodeType, FrameType

from perfkit.base.instrument import Instrument
from perfkit.base.statement import statement
from perfkit.base.user_code import cell_names, is_user_code, tells_something, where
from perfkit.measure.meter import StepMeter

__all__ = ["Lookout"]

# The wait for the next check grows by the first one's with so many checks in which no step was
# overdue. Only what is rare and short is then missed, and what is long or comes again is not.
_LOOK_EVERY_S = 0.05
_CALM_LOOKS = 100
_LONGEST_WAIT_S = 0.2
# Beyond this many, steps need no explanation of their own; the first ones are kept.
_MOST_STEPS = 500
_LONGEST_SOURCE = 60
# A step is overdue when it takes 1.5 times the median of the last ones, and at least 20 ms more.
_OVERDUE = 1.5
_OVERDUE_NS = 20_000_000
_RECENT = 200

_Place = tuple[str, int, str]  # file, line, function


class Lookout:
    """Records where a thread is while its step is overdue.

    The loop calls :meth:`begins` for each step, a plain assignment, and :meth:`learns` from time to
    time.

    Args:
        now: the loop's clock, in nanoseconds.

    Attributes:
        limit_ns: from when on a step is overdue; 0 where that is not known yet.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.instrument = Instrument("the lookout for long steps")
        self.limit_ns = 0
        self.seen: dict[int, Counter[_Place]] = {}
        self._now = now
        self._learnt_until = 0  # as of so many steps the limit is asked for again
        self._step = (0, 0)  # number and start: one assignment, so always consistent
        self._goes_on = threading.Lock()  # held while it watches
        self._thread: threading.Thread | None = None

    def learns(self, meter: StepMeter) -> None:
        """Set the limit by the last steps, if enough of them are new to change it."""
        if meter.n < self._learnt_until:
            return
        usual_ns = meter.usual_ns(_RECENT)
        if usual_ns:
            self.limit_ns = int(max(_OVERDUE * usual_ns, usual_ns + _OVERDUE_NS))
            self._learnt_until = meter.n + min(max(meter.n // 4, 1), _RECENT // 2)

    def begins(self, number: int, now_ns: int) -> None:
        """Step ``number`` begins."""
        self._step = number, now_ns

    def rests(self) -> None:
        """No step is running."""
        self._step = 0, 0

    def start(self, loop: CodeType | None) -> None:
        """Watch the calling thread; ``loop`` is the code that asks for batches."""
        if self._thread is not None or not self.instrument.is_on:
            return
        self._goes_on = threading.Lock()
        self._goes_on.acquire()
        self._thread = threading.Thread(
            target=self.instrument.hook(self._look),
            args=(self._goes_on, threading.get_ident(), loop),
            name="perfkit-lookout",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        thread, self._thread = self._thread, None
        self.rests()
        if thread is None:
            return
        self._goes_on.release()
        if thread is not threading.current_thread():
            thread.join(1.0)

    def _look(self, goes_on: threading.Lock, watched: int, loop: CodeType | None) -> None:
        # a bare lock: an Event's wait is a dozen calls of Python, twenty times a second
        calm = 0
        while not goes_on.acquire(timeout=wait_s(calm)):
            calm += 1
            number, began_ns = self._step
            if not began_ns or not 0 < self.limit_ns < self._now() - began_ns:
                continue
            calm = 0
            frame = sys._current_frames().get(watched)
            place = None if frame is None else _telling(frame, loop)
            del frame  # it would keep user variables alive
            if place is None or self._step != (number, began_ns):
                continue  # the step ended during the look
            if number in self.seen or len(self.seen) < _MOST_STEPS:
                self.seen.setdefault(number, Counter())[place] += 1

    def during(self, numbers: set[int]) -> str:
        """The line seen most often in these steps, in words; empty if nothing stood out."""
        found: Counter[_Place] = Counter()
        for number in numbers & self.seen.keys():
            found.update(self.seen[number])
        if not found:
            return ""
        place, n = found.most_common(1)[0]
        if 2 * n < found.total():
            return ""
        return _told(place, cell_names())


def wait_s(calm: int) -> float:
    """How long to wait after so many checks in a row in which no step was overdue."""
    return min(_LOOK_EVERY_S * (1 + calm / _CALM_LOOKS), _LONGEST_WAIT_S)


def _telling(frame: FrameType | None, loop: CodeType | None) -> _Place | None:
    """The innermost user frame within the loop, else the innermost of the training library."""
    library: _Place | None = None
    while frame is not None:
        code = frame.f_code
        place = code.co_filename, frame.f_lineno, code.co_name
        if is_user_code(code.co_filename):
            return place
        if library is None and tells_something(code.co_filename):
            library = place
        if code is loop:
            return library or place
        frame = frame.f_back
    return library


def _told(place: _Place, cells: Mapping[str, object]) -> str:
    file, line, function = place
    if not is_user_code(file):
        return f"{function} ({where(file, line, cells)})"
    source = statement(file, line, longest=_LONGEST_SOURCE)
    return f"{source or function} ({where(file, line, cells)})"
