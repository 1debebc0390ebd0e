"""Each training step, split into data wait and the rest, with its phases and garbage collections.

The meter reads no clock: whoever knows when steps end passes the times in. Memory is bounded: when
the rows are full, every second one is dropped and only every second step is kept from then on, then
every fourth, and so on. Sums stay exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.measure.phases import PHASES

#: Steps that are kept; when there are more, every second one is dropped.
CAPACITY = 65_536
#: Points of an update; more steps than that are means of neighbours.
MOST_POINTS = 500
# So many last steps tell what is usual.
_RECENT = 200

Points = tuple[list[float], list[float], list[float]]
"""Step numbers from 1, durations and data waits in milliseconds."""

Array = npt.NDArray[np.float64]
# A row: step and data wait, each of PHASES, garbage collections; all in ns.
_N = 2 + len(PHASES) + 1
_NOTHING = (0,) * (_N - 2)


@dataclass(frozen=True, eq=False)
class Steps:
    """The kept steps of a run, and what they were made of, in milliseconds.

    Attributes:
        step_ms, wait_ms: how long each took, and its data wait.
        phase_ms: of each of :data:`~perfkit.measure.phases.PHASES`; empty where they are not sure.
        gc_ms: in Python's garbage collector; part of the phases.
    """

    numbers: npt.NDArray[np.int64]
    step_ms: Array
    wait_ms: Array
    phase_ms: dict[str, Array]
    gc_ms: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def are_between(self, first: int, end: int) -> npt.NDArray[np.bool_]:
        """Which have a number from ``first`` on and below ``end``."""
        return (self.numbers >= first) & (self.numbers < end)

    def at(self, rows: npt.NDArray[Any]) -> Steps:
        phase_ms = {name: column[rows] for name, column in self.phase_ms.items()}
        numbers, step_ms, wait_ms = self.numbers[rows], self.step_ms[rows], self.wait_ms[rows]
        return Steps(numbers, step_ms, wait_ms, phase_ms, self.gc_ms[rows])


def means_of_neighbours(rows: Array, at_most: int) -> Array:
    if len(rows) <= at_most:
        return rows
    edges = np.linspace(0, len(rows), at_most + 1).astype(int)[:-1]
    sizes = np.diff(edges, append=len(rows))
    return np.asarray(np.add.reduceat(rows, edges) / sizes[:, None])


class StepMeter:
    """Steps of one run, in order. A step is never negative, and a wait never longer than its step.

    Attributes:
        total_ns, wait_total_ns: exact sums over all of them.
        stride: every ``stride``-th step is kept.
    """

    __slots__ = ("_capacity", "_rows", "_skip", "n", "stride", "total_ns", "wait_total_ns")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._rows = array("q")
        self._capacity = capacity * _N
        self._skip = self.n = self.total_ns = self.wait_total_ns = 0
        self.stride = 1

    def add(self, step_ns: int, wait_ns: int, made_of: Sequence[int] = _NOTHING) -> tuple[int, int]:
        """A step is over; return its duration and data wait as they are kept, in nanoseconds."""
        step_ns = max(step_ns, 0)  # the clock may have gone backwards
        wait_ns = 0 if wait_ns < 0 else min(wait_ns, step_ns)
        self.n += 1
        self.total_ns += step_ns
        self.wait_total_ns += wait_ns
        if self._skip:
            self._skip -= 1
            return step_ns, wait_ns
        self._rows.extend((step_ns, wait_ns, *made_of))
        self._skip = self.stride - 1
        if len(self._rows) == self._capacity:
            # the next step to keep is already on the wider grid
            kept = np.frombuffer(self._rows, np.int64).reshape(-1, _N)[::2].tobytes()
            self._rows = array("q", kept)
            self.stride *= 2
        return step_ns, wait_ns

    @property
    def steps(self) -> Steps:
        # a copy: an array that is looked at cannot grow
        step_ms, wait_ms, *phases, gc_ms = np.array(self._rows, np.int64).reshape(-1, _N).T / 1e6
        numbers = np.arange(len(step_ms), dtype=np.int64) * self.stride
        return Steps(numbers, step_ms, wait_ms, dict(zip(PHASES, phases, strict=True)), gc_ms)

    def points(self, since: int, left_out: Collection[int]) -> Points:
        """The kept steps from number ``since`` on but for some, few enough to be drawn.

        Plain Python where they are few, as they are in a training loop: an update comes after much
        other work, and then the first operation of numpy alone takes as long as all of this.
        """
        first = -(-since // self.stride)
        rows = self._rows[first * _N :]
        kept: list[Sequence[float]] = [
            (number + 1.0, step_ns / 1e6, wait_ns / 1e6)
            for i, (step_ns, wait_ns) in enumerate(zip(rows[::_N], rows[1::_N], strict=True), first)
            if (number := i * self.stride) not in left_out
        ]
        if len(kept) > MOST_POINTS:
            kept = means_of_neighbours(np.array(kept), MOST_POINTS).tolist()
        numbers, step_ms, wait_ms = zip(*kept, strict=True) if kept else ((), (), ())
        return list(numbers), list(step_ms), list(wait_ms)

    def usual_ns(self) -> int:
        """The median duration of the last kept steps, in nanoseconds; 0 without any."""
        last = sorted(self._rows[-_RECENT * _N :: _N])
        return last[len(last) // 2] if last else 0
