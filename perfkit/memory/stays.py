"""Which lines make what stays in memory, of what Python and NumPy hand out over a few steps.

``tracemalloc`` sees it, and makes the Python of a step some five times as slow. So it is asked for
five steps, once a run, when memory is known to grow. A tensor's memory and that of libraries in C
it does not see.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter

from perfkit.base.user_code import is_user_code

# Below the user's line: pandas and matplotlib are this deep.
_FRAMES = 24
# Steps between the two looks, fewer where they take long.
_STEPS, _MOST_S = 4, 2.0

_ByLine = Counter[tuple[str, int]]


class Stays:
    """Traces from one step's end; :meth:`step_ended` says of the next ones that they are over.

    Args:
        starts: whether it is to trace.

    Attributes:
        is_on: whether it traces. Not where the program does so itself.
        first, last: the steps that were compared, by number; 0 until then.
        line: the user's line of which most stays; None where nothing does.
        per_step: bytes of it, a step.
    """

    def __init__(self, *, starts: bool = True) -> None:
        self.is_on = starts and not tracemalloc.is_tracing()
        self.first = self.last = 0
        self.line: tuple[str, int] | None = None
        self.per_step = 0.0
        self._before = _ByLine()
        self._began_s = 0.0
        if self.is_on:
            tracemalloc.start(_FRAMES)

    def stop(self) -> None:
        """Trace no more."""
        if self.is_on:
            self.is_on = False
            tracemalloc.stop()

    def step_ended(self, n: int) -> None:
        """So many steps have ended."""
        if not self.is_on or n < self.first:
            return
        try:
            self._compare(n)
        except BaseException:
            self.stop()
            raise

    def _compare(self, n: int) -> None:
        if not self.first:  # what the next step replaces is there once
            self.first, self._before = n + 1, _held()
            self._began_s = time.perf_counter()
        elif n - self.first + 1 >= _STEPS or time.perf_counter() - self._began_s > _MOST_S:
            held = _held()
            self.stop()
            held.subtract(self._before)
            self.last = n
            for line, more in held.most_common(1):
                self.line, self.per_step = line, more / (n - self.first + 1)


def _held() -> _ByLine:
    """Bytes that are traced now, by the innermost line of the user's code."""
    found = _ByLine()
    # once for each place, of which there are far fewer than blocks
    for place in tracemalloc.take_snapshot().statistics("traceback"):
        for frame in reversed(place.traceback):
            if is_user_code(frame.filename):
                found[frame.filename, frame.lineno] += place.size
                break
    return found
