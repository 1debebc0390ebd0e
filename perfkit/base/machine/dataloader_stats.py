"""What DataLoader workers do with their time: CPU, disk, waiting.

At most once a second, at the end of a step, psutil reads the counters of each worker (some 0.1 ms).
Workers are the processes that multiprocessing has started, with the name that torch gives them, so
nothing is hooked. A worker that begins and ends between two looks is not seen.

Read are CPU time, waits for a core and, where the system tells, the bytes that came from a disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from perfkit.base import torch_compat
from perfkit.base.instrument import Instrument
from perfkit.base.machine import _host
from perfkit.base.machine.cpu_contention import cores_busy_s, run_delay_s

_T = TypeVar("_T")

_LOOK_EVERY_S = 1.0
# A look rests this many times as long as the last one took: at most 0.2 % of the run.
_REST_AFTER_LOOK = 500
_LONGEST_REST_S = 5.0
# Beyond this many, workers are alike.
_MOST_WORKERS = 64
# The kernel counts CPU time in ticks of 10 ms, and a shorter look at a process says little.
_LEAST_S = 0.5


@dataclass(frozen=True)
class ProcessReading:
    """A process's counters at one moment; None for what may not be read.

    Attributes:
        at_s: when, by a clock that stands still with the loop.
        waited_s: how long its main thread was ready without a core.
        disk_bytes: read from a disk.
    """

    at_s: float
    cpu_s: float
    waited_s: float | None
    disk_bytes: int | None


@dataclass(frozen=True)
class ProcessUse:
    """What one worker did between its first and last look.

    Attributes:
        seen_s: wall time between these.
        cpu_s: CPU time in it.
        waited_s: ready without a core; None if unknown.
        disk_bytes: read from a disk; None if unknown.
    """

    seen_s: float
    cpu_s: float
    waited_s: float | None
    disk_bytes: int | None

    @classmethod
    def between(cls, first: ProcessReading, last: ProcessReading) -> ProcessUse:
        """The difference of two readings."""
        names = ("at_s", "cpu_s", "waited_s", "disk_bytes")
        return cls(*(_since(getattr(first, name), getattr(last, name)) for name in names))


@dataclass(frozen=True)
class DataLoaderStats:
    """What loading did to this machine during a run.

    Attributes:
        wall_s: from the first look to the last.
        workers: DataLoader workers that were seen at least twice, half a second apart.
        spare_cores: cores that nobody used, on average; None if unknown.
        doubts: why this may be incomplete.
    """

    wall_s: float
    n_cores: int
    workers: tuple[ProcessUse, ...]
    spare_cores: float | None = None
    doubts: tuple[str, ...] = ()

    def mean(self, of: Callable[[ProcessUse], float | None]) -> float | None:
        """The sum over all workers divided by the time for which they were seen: a share or rate.

        None if there is no worker, or if one of them does not tell.
        """
        values = [of(worker) for worker in self.workers]
        seen_s = sum(worker.seen_s for worker in self.workers)
        if not values or None in values or seen_s <= 0:
            return None
        return sum(value for value in values if value is not None) / seen_s


def _started_processes() -> list[int]:
    """The ids of the processes that multiprocessing, by which torch starts workers, has started."""
    process = sys.modules.get("multiprocessing.process")
    return [one.pid for one in [*getattr(process, "_children", ())] if one.pid is not None]


class DataLoaderSampler:
    """Looks at the workers of this process.

    :meth:`look` belongs at the end of a step, in the thread that trains. It never raises: if it
    fails, it is switched off, and :attr:`instrument` says why.

    Args:
        spent: CPU time of the calling thread, in seconds.
        started: the processes among which workers may be.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        *,
        spent: Callable[[], float] = time.thread_time,
        started: Callable[[], list[int]] = _started_processes,
    ) -> None:
        self.instrument = Instrument("the look at DataLoader workers")
        self.look = self.instrument.hook(self._look)
        self._now = now
        self._spent = spent
        self._started = started
        self._due_s = 0.0
        self._workers: dict[tuple[int, float], list[ProcessReading]] = {}
        self._machine: list[tuple[float, float | None]] = []
        self._stood_still_s = 0.0

    def skip(self, seconds: float) -> None:
        """So long the loop stood still for perfkit: it asked the workers for nothing."""
        self._stood_still_s += seconds

    def _look(self, *, now: bool = False) -> None:
        """Look, if the last time was long enough ago, or at once."""
        began_s = self._now()
        if not now and began_s < self._due_s:
            return
        before_s = self._spent()
        self._due_s = began_s + _LOOK_EVERY_S
        pids = self._started()
        workers = _read_workers(pids, began_s - self._stood_still_s) if pids else {}
        for key, reading in workers.items():
            _keep(self._workers.setdefault(key, []), reading)
        if workers:  # else the loop over the loader is over, or it has none
            _keep(self._machine, (began_s, cores_busy_s()[0]))
        if len(self._machine) > 1:  # the first look loads psutil, and says nothing of the next
            rest_s = _REST_AFTER_LOOK * (self._spent() - before_s)
            self._due_s = max(self._due_s, began_s + min(rest_s, _LONGEST_REST_S))

    def result(self) -> DataLoaderStats | None:
        """What was seen; None if that is too little to say anything."""
        if len(self._machine) < 2:
            return None
        (first_s, busy_s), (last_s, busy_now_s) = self._machine
        wall_s = last_s - first_s
        if wall_s < _LEAST_S:
            return None
        uses = [ProcessUse.between(*seen) for seen in self._workers.values() if len(seen) == 2]
        workers = tuple(use for use in uses if use.seen_s >= _LEAST_S)
        n_cores = _host.usable_cpus()
        busy = _since(busy_s, busy_now_s)
        doubts = []
        if n_missed := len(self._workers) - len(workers):
            doubts.append(f"{n_missed} of {len(self._workers)} workers lived too short to be seen")
        if any(worker.disk_bytes is None for worker in workers):
            doubts.append("how much the workers read from the disk may not be read here")
        return DataLoaderStats(
            wall_s=wall_s,
            n_cores=n_cores,
            workers=workers,
            spare_cores=None if busy is None else max(n_cores - busy / wall_s, 0.0),
            doubts=tuple(doubts),
        )


def _keep(ends: list[_T], reading: _T) -> None:
    """Keep the first and the last reading."""
    if ends:
        ends[1:] = [reading]
    else:
        ends.append(reading)


def _read_workers(pids: list[int], at_s: float) -> dict[tuple[int, float], ProcessReading]:
    """Their readings by process id and start: an id is used again."""
    import psutil

    readings: dict[tuple[int, float], ProcessReading] = {}
    for pid in pids:
        try:
            worker = psutil.Process(pid)
            if worker.name() != torch_compat.LOADER_WORKER_NAME:
                continue
            times = worker.cpu_times()
            readings[pid, worker.create_time()] = ProcessReading(
                at_s, times.user + times.system, run_delay_s(str(pid)), _bytes_read(worker)
            )
        except psutil.Error:  # it has ended
            continue
        if len(readings) >= _MOST_WORKERS:
            break
    return readings


def _bytes_read(process: Any) -> int | None:
    """Bytes from a disk; None where the system does not tell or hides them."""
    import psutil

    try:
        read = process.io_counters()
    except (psutil.AccessDenied, AttributeError, NotImplementedError, OSError):
        return None
    # elsewhere than on Linux it counts what came from the page cache, too
    return read.read_bytes if hasattr(read, "read_chars") else None


def _since(before: Any, now: Any) -> Any:
    return None if before is None or now is None else max(now - before, 0)
