"""Splits each training step into data wait and the rest.

The meter reads no clock: the loop knows when a batch was requested and when it arrived, and passes
the times in. Three calls per step take 0.4–0.8 µs together (measured by
tests/bench/watch_overhead.py). Memory is bounded by two preallocated columns: when they are full,
every second step is dropped and only every second one is kept from then on, then every fourth, and
so on. Sums stay exact.
"""

from __future__ import annotations

import operator
from array import array

import numpy as np
import numpy.typing as npt

from perfkit.base.errors import UsageError

#: Steps that are kept; when there are more, every second one is dropped.
CAPACITY = 65_536


class StepMeter:
    """Steps of one run, in order.

    ``begin(t)`` starts a step, ``wait(dt)`` adds to its data wait, ``leave_out(dt)`` subtracts time
    that is not the loop's, ``end(t)`` closes it and starts the next. All times are nanoseconds of
    one clock. If the clock goes backwards, the step is 0, never negative; a wait is never longer
    than its step.

    Attributes:
        n: steps closed so far.
        total_ns, wait_total_ns: exact sums over all of them.
        stride: the columns keep every ``stride``-th step.
    """

    __slots__ = (
        "_began",
        "_filled",
        "_skip",
        "_steps",
        "_wait",
        "_waits",
        "n",
        "stride",
        "total_ns",
        "wait_total_ns",
    )

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 2 or capacity % 2:
            raise UsageError(f"a step meter's capacity is an even number ≥ 2, got {capacity}")
        self._steps = array("q", bytes(8 * capacity))
        self._waits = array("q", bytes(8 * capacity))
        self._filled = 0
        self._began = 0
        self._wait = 0
        self._skip = 0
        self.n = 0
        self.stride = 1
        self.total_ns = 0
        self.wait_total_ns = 0

    def begin(self, now_ns: int) -> None:
        """Start a step here; time since the last ``end`` belongs to no step."""
        self._began = now_ns
        self._wait = 0

    def wait(self, duration_ns: int) -> None:
        """Add this much data wait to the current step."""
        if duration_ns > 0:
            self._wait += duration_ns

    def leave_out(self, duration_ns: int) -> None:
        """Subtract this much from the current step: it is the measurement's own time."""
        if duration_ns > 0:
            self._began += duration_ns

    def end(self, now_ns: int) -> tuple[int, int]:
        """Close the step and start the next; return its duration and data wait in nanoseconds."""
        step = now_ns - self._began
        if step < 0:
            step = 0
        wait = self._wait
        if wait > step:
            wait = step
        self._began = now_ns
        self._wait = 0
        self.n += 1
        self.total_ns += step
        self.wait_total_ns += wait
        if self._skip:
            self._skip -= 1
            return step, wait
        filled = self._filled
        self._steps[filled] = step
        self._waits[filled] = wait
        self._skip = self.stride - 1
        filled += 1
        self._filled = filled
        if filled == len(self._steps):
            self._thin()
        return step, wait

    def _thin(self) -> None:
        """Keep every second entry. The next step to keep is already on the wider grid."""
        half = self._filled // 2
        self._steps[:half] = self._steps[::2]
        self._waits[:half] = self._waits[::2]
        self._filled = half
        self.stride *= 2

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each kept step, from 0."""
        return np.arange(self._filled, dtype=np.int64) * self.stride

    @property
    def step_ms(self) -> npt.NDArray[np.float64]:
        """Durations of the kept steps, in milliseconds."""
        return _ms(self._steps, 0, self._filled)

    @property
    def wait_ms(self) -> npt.NDArray[np.float64]:
        """Data waits of the kept steps, in milliseconds."""
        return _ms(self._waits, 0, self._filled)

    def since(
        self, number: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Numbers, durations (ms) and data waits (ms) of the kept steps from ``number`` on."""
        first, end = self._first_kept(number), self._filled
        numbers = np.arange(first, end, dtype=np.int64) * self.stride
        return numbers, _ms(self._steps, first, end), _ms(self._waits, first, end)

    def few_since(self, number: int) -> tuple[list[int], list[float], list[float]]:
        """:meth:`since` in lists: for a few steps quicker, and the same to the last digit."""
        first, end, stride = self._first_kept(number), self._filled, self.stride
        return (
            list(range(first * stride, end * stride, stride)),
            [ns / 1e6 for ns in self._steps[first:end]],
            [ns / 1e6 for ns in self._waits[first:end]],
        )

    def n_kept_since(self, number: int) -> int:
        """How many steps :meth:`since` returns."""
        return self._filled - self._first_kept(number)

    def n_brief_since(self, number: int, work_ns: int) -> int:
        """How many kept steps from ``number`` on took no longer than this besides their wait."""
        first, end = self._first_kept(number), self._filled
        work = map(operator.sub, self._steps[first:end], self._waits[first:end])
        return len([ns for ns in work if ns <= work_ns])

    def _first_kept(self, number: int) -> int:
        """Where the first kept step from ``number`` on is."""
        return min(-(-number // self.stride), self._filled)

    def usual_ns(self, n: int) -> int:
        """The median duration of the last ``n`` kept steps, in nanoseconds; 0 without any."""
        last = sorted(self._steps[max(self._filled - n, 0) : self._filled])
        return last[len(last) // 2] if last else 0


def _ms(column: array[int], first: int, end: int) -> npt.NDArray[np.float64]:
    milliseconds: npt.NDArray[np.float64] = np.frombuffer(column, np.int64)[first:end] / 1e6
    return milliseconds
