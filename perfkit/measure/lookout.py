"""Which line runs while a step takes much longer than the others?

A thread sleeps until the current step is overdue, and looks which line the watched thread is on:
then, and twenty times a second for as long as the step goes on. Nothing is hooked. A step that
begins puts the moment off, which wakes nobody (:mod:`perfkit.base.alarm`), so that a loop without
overdue steps pays for no look at all (``tests/bench/watch_overhead.py``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType

from perfkit.base.alarm import Alarm, new_alarm
from perfkit.base.instrument import Instrument
from perfkit.base.stack import Level, stack_of
from perfkit.base.statement import statement
from perfkit.base.user_code import cell_names, is_user_code, tells_something, where
from perfkit.measure.meter import StepMeter

# Between two looks. No more of them than that, however many steps are overdue.
_LOOK_EVERY_NS = 50_000_000
# The moment is put off when it has come nearer than this many usual steps: the next one ends before
# it comes, or is a long one itself. Where steps are so long that this is always so, it is put off
# for each of them.
_PUT_OFF = 1.5
_NEVER_NS = 1 << 62
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
        watches: whether there is a thread that looks.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.instrument = Instrument("the lookout for long steps")
        self.limit_ns = 0
        self.watches = False
        self.seen: dict[int, Counter[_Place]] = {}
        self._now = now
        self._learnt_until = 0  # as of so many steps the limit is asked for again
        self._step = (0, 0)  # number and start: one assignment, so always consistent
        self._alarm: Alarm | None = None  # while it watches
        self._put_off_ns = _NEVER_NS  # when to set it again
        self._stays_ns = 0  # how long it may stay as it is
        self._thread: threading.Thread | None = None

    def learns(self, meter: StepMeter) -> None:
        """Set the limit by the last steps, if enough of them are new to change it."""
        if meter.n < self._learnt_until:
            return
        usual_ns = meter.usual_ns(_RECENT)
        if usual_ns:
            self.limit_ns = int(max(_OVERDUE * usual_ns, usual_ns + _OVERDUE_NS))
            self._stays_ns = self.limit_ns - int(_PUT_OFF * usual_ns)
            self._learnt_until = meter.n + min(max(meter.n // 4, 1), _RECENT // 2)

    def begins(self, number: int, now_ns: int) -> None:
        """Step ``number`` begins."""
        self._step = number, now_ns
        if now_ns >= self._put_off_ns and self._alarm is not None and self.limit_ns:
            self._put_off_ns = now_ns + self._stays_ns
            self._alarm.set(self.limit_ns)

    def rests(self) -> None:
        """No step is running."""
        self._step = 0, 0

    def start(self, loop: CodeType | None) -> None:
        """Watch the calling thread; ``loop`` is the code that asks for batches."""
        if self._thread is not None or not self.instrument.is_on:
            return
        self._alarm = alarm = new_alarm()
        self._put_off_ns = 0
        self._thread = threading.Thread(
            target=self.instrument.hook(self._look),
            args=(alarm, threading.get_ident(), loop),
            name="perfkit-lookout",
            daemon=True,
        )
        self._thread.start()
        self.watches = True

    def stop(self) -> None:
        """Stop watching."""
        self.watches = False
        thread, self._thread = self._thread, None
        alarm, self._alarm = self._alarm, None
        self._put_off_ns = _NEVER_NS
        self.rests()
        if alarm is not None:
            alarm.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _look(self, alarm: Alarm, watched: int, loop: CodeType | None) -> None:
        again_ns = 0  # no look before
        while alarm.wait():
            number, began_ns = self._step
            limit_ns = self.limit_ns
            if not began_ns or not limit_ns:
                continue  # the next step sets it
            now_ns = self._now()
            early_ns = max(began_ns + limit_ns, again_ns) - now_ns
            if early_ns > 0:  # another step than the one that it was set for
                alarm.set(early_ns)
                continue
            again_ns = now_ns + _LOOK_EVERY_NS
            alarm.set(_LOOK_EVERY_NS)
            if number not in self.seen and len(self.seen) >= _MOST_STEPS:
                continue
            place = _telling(stack_of(watched), loop)
            if place is not None and self._step == (number, began_ns):  # else it ended meanwhile
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


def _telling(stack: Sequence[Level], loop: CodeType | None) -> _Place | None:
    """The innermost user frame within the loop, else the innermost of the training library."""
    library: _Place | None = None
    for code, line, _ in stack:
        place = code.co_filename, line or 0, code.co_name
        if is_user_code(code.co_filename):
            return place
        if library is None and tells_something(code.co_filename):
            library = place
        if code is loop:
            return library or place
    return library


def _told(place: _Place, cells: Mapping[str, object]) -> str:
    file, line, function = place
    if not is_user_code(file):
        return f"{function} ({where(file, line, cells)})"
    source = statement(file, line, longest=_LONGEST_SOURCE)
    return f"{source or function} ({where(file, line, cells)})"
