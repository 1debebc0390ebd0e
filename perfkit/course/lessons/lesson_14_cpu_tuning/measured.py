"""Lesson 14: trainings side by side in fresh processes, and what the system counts of them."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import cloudpickle

from perfkit.base.errors import MeasurementError, UsageError
from perfkit.base.line_child import EndedError, LineChild
from perfkit.base.machine import facts
from perfkit.experiment import CATALOGUE

#: These tell a process how many threads to start; "default" is without them.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
#: Whoever interrupts the notebook leaves no training behind for longer than this.
_AT_MOST_S = 60.0

Make = Callable[[int], Callable[[], object]]


@dataclass(frozen=True)
class Ran:
    """What several trainings did at the same time.

    Attributes:
        seconds: until the last of them had finished.
        switches: context switches of a step, of all threads of its process: how often a core was
            given to another thread or process.
        faults: page faults of a step: how many pages the system gave to its process.
        cpu_s: CPU time of all of them.
        resident_bytes, peak_bytes: the largest resident set of one of them, at the end and at its
            highest; 0 where the system does not tell.
    """

    seconds: float
    switches: float
    faults: float
    cpu_s: float
    resident_bytes: int
    peak_bytes: int


class Together:
    """Fresh processes that train at the same time, each for itself.

    They start when this object is made, and the first call waits until they are ready: make several
    objects before you use one, and their processes start beside each other. They stay ready between
    calls of :meth:`run`; a process that waits takes no core. They end with this object or with the
    program, at the latest.

    Args:
        make: called with the process's number in each process; returns a step.
        n: how many processes.
        threads: torch's threads in each; None for its default.
        malloc: a value of the setting ``malloc``.
        core: the only core on which they may run (Linux); None for any.

    Raises:
        UsageError: no process, or a malloc or core that this machine lacks.
    """

    def __init__(
        self,
        make: Make,
        n: int,
        *,
        threads: int | None = None,
        malloc: str = "system",
        core: int | None = None,
    ) -> None:
        if n < 1:
            raise UsageError(f"{n} processes cannot train: take at least one")
        lacking = CATALOGUE["malloc"].unavailable(malloc, facts())
        if lacking is not None:
            raise UsageError(f"malloc={malloc!r} is not available on this machine: {lacking}")
        if core is not None and core not in cores_here():
            raise UsageError(
                f"this process may not run on core {core}: {cores_here() or 'no pinning'}"
            )
        asked = CATALOGUE["malloc"].environment
        environment = {k: v for k, v in os.environ.items() if k not in _THREADS}
        environment |= asked(malloc) if asked is not None else {}
        program = "perfkit.course.lessons.lesson_14_cpu_tuning._training_program"
        self._children = [LineChild("-m", program, env=environment) for _ in range(n)]
        for child in self._children:
            child.tell({"threads": threads, "core": core})
        self.n = n
        self.malloc = malloc
        self._threads: int | None = None  # as soon as they are ready
        self._make(make)

    @property
    def threads(self) -> int:
        """Threads of torch in each, once all are ready.

        Raises:
            MeasurementError: one of them ended; the message has its last words.
        """
        return self._wait_until_ready()

    @property
    def all_threads(self) -> int:
        """Threads of torch in all of them."""
        return self.n * self.threads

    def change(self, make: Make) -> None:
        """Let them train something else from now on: ``make`` as for the constructor.

        Raises:
            MeasurementError: one of them ended.
        """
        self._wait_until_ready()
        self._threads = None
        self._make(make)

    def run(self, steps: int, *, processes: int | None = None) -> Ran:
        """Let each do so many steps, all at the same time, and wait for the last.

        Args:
            steps: of each process.
            processes: only the first so many train; None for all.

        Raises:
            MeasurementError: one of them ended.
        """
        self._wait_until_ready()
        children = self._children[:processes]
        began_s = time.perf_counter()
        for child in children:
            child.tell({"steps": steps})
        told = self._hear(children)
        return Ran(
            seconds=time.perf_counter() - began_s,
            switches=fmean(one["switches"] / one["steps"] for one in told),
            faults=fmean(one["faults"] / one["steps"] for one in told),
            cpu_s=sum(one["cpu_s"] for one in told),
            resident_bytes=max(one["resident_bytes"] for one in told),
            peak_bytes=max(one["peak_bytes"] or 0 for one in told),
        )

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """All of them train while the body of ``with`` runs, for a minute at most."""
        self._wait_until_ready()
        for child in self._children:
            child.tell({"until_called_s": _AT_MOST_S})
        try:
            yield
        finally:
            for child in self._children:
                child.tell("stop")
            self._hear()

    def end(self) -> None:
        """Let them end; a second call does nothing."""
        for child in self._children:
            child.end()

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def _make(self, make: Make) -> None:
        made = base64.b64encode(cloudpickle.dumps(make)).decode()
        for number, child in enumerate(self._children):
            child.tell({"make": made, "number": number})

    def _wait_until_ready(self) -> int:
        if self._threads is None:
            self._threads = int(self._hear()[0]["threads"])
        return self._threads

    def _hear(self, children: Sequence[LineChild] | None = None) -> list[dict[str, Any]]:
        try:
            return [child.hear() for child in (self._children if children is None else children)]
        except EndedError as error:
            self.end()
            raise MeasurementError(f"a training ended in its process: {error}") from None


def cores_here() -> Sequence[int]:
    """The cores on which this process may run; empty where processes cannot be pinned."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextlib.contextmanager
def pinned(*cores: int) -> Iterator[None]:
    """This thread runs on these cores alone while the body of ``with`` runs, as before after it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def mallocs_here() -> Sequence[str]:
    """The values of the setting ``malloc`` that this machine has, the system's first."""
    one, machine = CATALOGUE["malloc"], facts()
    return [str(value) for value in one.values if one.unavailable(value, machine) is None]
