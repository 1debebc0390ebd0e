"""What each step was made of: its phases, garbage collections, page faults, lost turns on a core.

A row a step, thinned as :class:`~perfkit.measure.meter.StepMeter` thins its steps, so that row and
step belong together.
"""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.instrument import Failure, Instrument
from perfkit.measure.meter import CAPACITY
from perfkit.measure.phases import PHASES

_Array = npt.NDArray[np.float64]
_N_TIMES = len(PHASES) + 1
_N = _N_TIMES + 2


@dataclass(frozen=True, eq=False)
class StepColumns:
    """One value a kept step.

    Attributes:
        phase_ms: milliseconds of each of :data:`~perfkit.measure.phases.PHASES`.
        gc_ms: in Python's garbage collector; part of the phases.
        disk_faults: pages that had to come from the disk.
        preempted: how often the thread lost its core to another one.
    """

    phase_ms: dict[str, _Array]
    gc_ms: _Array
    disk_faults: _Array
    preempted: _Array

    def at(self, rows: npt.NDArray[np.int64]) -> StepColumns:
        """Of these steps alone."""
        return StepColumns(
            {name: column[rows] for name, column in self.phase_ms.items()},
            self.gc_ms[rows],
            self.disk_faults[rows],
            self.preempted[rows],
        )


class StepFacts:
    """Collects the rows; for the thread that starts it. It cannot raise into the program.

    Args:
        now: the clock, in nanoseconds.
        capacity: of the rows; that of the meter.
    """

    def __init__(
        self, now: Callable[[], int] = time.perf_counter_ns, capacity: int = CAPACITY
    ) -> None:
        self._now = now
        self._capacity = capacity
        self._instrument = Instrument("the listener to garbage collections", switch_off=self.stop)
        self._callback = self._instrument.hook(self._collected)
        self._thread_id = 0
        self._began_ns = 0
        self._gc_ns = 0
        self._usage = (0, 0)
        self._rows = array("q")
        self._stride, self._skip = 1, 0

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def start(self) -> None:
        """Begin to listen, in this thread."""
        self._thread_id = threading.get_ident()
        self._gc_ns = self._began_ns = 0
        self._usage = _usage()
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Listen no more; the rows stay."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def step(self, phase_ns: Sequence[int]) -> None:
        """A step is over; its phases are known."""
        gc_ns, self._gc_ns = self._gc_ns, 0
        faults, preempted = usage = _usage()
        faults_before, preempted_before = self._usage
        self._usage = usage
        if self._skip:
            self._skip -= 1
            return
        rows = self._rows
        rows.extend((*phase_ns, gc_ns, faults - faults_before, preempted - preempted_before))
        self._skip = self._stride - 1
        if len(rows) == self._capacity * _N:
            kept = np.frombuffer(rows, np.int64).reshape(-1, _N)[::2].tobytes()
            self._rows = array("q", kept)
            self._stride *= 2

    def columns(self) -> StepColumns:
        """All kept rows."""
        rows = np.array(self._rows, np.float64).reshape(-1, _N)
        times_ms = rows[:, :_N_TIMES] / 1e6
        return StepColumns(
            {name: times_ms[:, i] for i, name in enumerate(PHASES)},
            times_ms[:, len(PHASES)],
            rows[:, _N_TIMES],
            rows[:, _N_TIMES + 1],
        )

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if phase == "start":
            self._began_ns = self._now()
        elif self._began_ns:
            self._gc_ns += max(self._now() - self._began_ns, 0)
            self._began_ns = 0


def _reader() -> Callable[[], tuple[int, int]]:
    """How to read pages from the disk, and turns lost, of this thread so far."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:  # not on Linux: the machine's part is not known
        return lambda: (0, 0)

    def read() -> tuple[int, int]:
        used = getrusage(RUSAGE_THREAD)
        return used.ru_majflt, used.ru_nivcsw

    return read


_usage = _reader()
