"""What DataLoader workers, and the thread that trains, do with their time: CPU, disk, waiting.

At most once a second, at the end of a step, the kernel's counters of each worker are read from
``/proc`` (Linux only; some 0.1 ms a worker). Workers are recognised by the name that torch gives
them, so nothing is hooked. A worker that begins and ends between two looks is not seen.

What is read, by proc_pid_stat(5), proc_pid_io(5) and the kernel's sched-stats.rst:

* CPU time of the process, user and system, and how long its main thread was ready without a core;
* minor faults: pages of memory touched for the first time, such as those of a new shared batch;
* bytes asked for by read calls (``rchar``), and those that came from a disk (``read_bytes``): the
  rest came from the page cache. Of mapped files only the disk's part is counted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfkit.base import torch_compat
from perfkit.base.instrument import Instrument
from perfkit.base.machine import _host
from perfkit.base.machine.busy import cores_busy_s
from perfkit.base.machine.held_back import stalled_s

_T = TypeVar("_T")

_LOOK_EVERY_S = 1.0
# A look rests this many times as long as the last one took: at most 0.2 % of the run.
_REST_AFTER_LOOK = 500
_LONGEST_REST_S = 5.0
# How often to look while there is no worker, and after which part of what has passed since the
# first look: only that one and the last one count then.
_ALONE_S = 5.0
_ALONE_SHARE = 0.25
# Beyond this many, workers are alike.
_MOST_WORKERS = 64
# Children of children are looked at too: workers of a fork server are its children.
_DEPTH = 2
# The kernel counts CPU time in ticks of 10 ms, and a shorter look at a process says little.
_LEAST_S = 0.5


@dataclass(frozen=True)
class ProcessReading:
    """A process's counters at one moment; None for what may not be read.

    Attributes:
        at_s: when, by a clock that stands still with the loop.
        cpu_s, system_s: CPU time, and the kernel's part of it.
        waited_s: how long its main thread was ready without a core.
        minor_faults: pages touched for the first time.
        asked_bytes, disk_bytes: read by read calls, and read from a disk.
    """

    at_s: float
    cpu_s: float
    system_s: float
    waited_s: float | None
    minor_faults: int
    asked_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True)
class ProcessUse:
    """What one process, or the training thread, did between its first and last look.

    Attributes:
        seen_s: wall time between these.
        cpu_s, system_s: CPU time in it, and the kernel's part.
        waited_s: ready without a core; None if unknown.
        fresh_bytes: memory that it touched for the first time.
        asked_bytes, disk_bytes: read by read calls, and read from a disk; None if unknown.
    """

    seen_s: float
    cpu_s: float
    system_s: float
    waited_s: float | None
    fresh_bytes: int
    asked_bytes: int | None
    disk_bytes: int | None

    @classmethod
    def between(cls, first: ProcessReading, last: ProcessReading) -> ProcessUse:
        """The difference of two readings."""

        def since(name: str) -> Any:
            before, now = getattr(first, name), getattr(last, name)
            return None if before is None or now is None else max(now - before, 0)

        return cls(
            seen_s=since("at_s"),
            cpu_s=since("cpu_s"),
            system_s=since("system_s"),
            waited_s=since("waited_s"),
            fresh_bytes=since("minor_faults") * _page_bytes(),
            asked_bytes=since("asked_bytes"),
            disk_bytes=since("disk_bytes"),
        )


@dataclass(frozen=True)
class LoaderUse:
    """What loading did to this machine during a run.

    Attributes:
        wall_s: from the first look to the last.
        n_cores: cores that this process may use.
        main: the training thread's CPU time and waiting, and its process's reading; None if
            unknown.
        workers: DataLoader workers that were seen at least twice, half a second apart.
        spare_cores: cores that nobody used, on average; None if unknown.
        io_stalled_s: time in which some thread of the machine waited for a disk
            (https://docs.kernel.org/accounting/psi.html); None if unknown.
        doubts: why this may be incomplete.
    """

    wall_s: float
    n_cores: int
    main: ProcessUse | None
    workers: tuple[ProcessUse, ...]
    spare_cores: float | None = None
    io_stalled_s: float | None = None
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


def _has_started_processes() -> bool:
    """Whether Python's multiprocessing, by which torch starts workers, has a process.

    True where it does not tell. To find them in ``/proc`` takes a look at each thread of this
    process, 0.3 ms in a notebook's kernel.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(getattr(process, "_children", True))


class LoaderLooks:
    """Looks at the workers of the calling process, and at the calling thread.

    :meth:`look` belongs at the end of a step, in the thread that trains. It never raises: if it
    fails, it is switched off, and :attr:`instrument` says why.

    Args:
        now: the clock, in seconds.
        spent: CPU time of the calling thread, in seconds: what a look costs the run.
        root: where ``/proc`` is.
        may_have_workers: whether to look for workers now.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        root: Path = Path("/"),
        *,
        spent: Callable[[], float] = time.thread_time,
        may_have_workers: Callable[[], bool] = _has_started_processes,
    ) -> None:
        self.instrument = Instrument("the look at DataLoader workers")
        self.look = self.instrument.hook(self._look)
        self._now = now
        self._spent = spent
        self._root = root
        self._thread_id = threading.get_native_id()
        self._may_have_workers = may_have_workers
        self._due_s = self._alone_due_s = 0.0
        self._main: list[ProcessReading] = []
        self._workers: dict[tuple[int, str], list[ProcessReading]] = {}
        self._machine: list[tuple[float, float | None, float | None]] = []
        self._stood_still_s = 0.0
        self._is_off = not sys.platform.startswith("linux")

    def skip(self, seconds: float) -> None:
        """So long the loop stood still for perfkit: it asked the workers for nothing."""
        self._stood_still_s += seconds

    def _look(self, *, now: bool = False) -> None:
        """Look, if the last time was long enough ago, or at once."""
        if self._is_off:
            return
        began_s = self._now()
        may_have_workers = self._may_have_workers()
        if not now and began_s < (self._due_s if may_have_workers else self._alone_due_s):
            return
        before_s = self._spent()
        self._due_s = began_s + _LOOK_EVERY_S
        passed_s = began_s - self._machine[0][0] if self._machine else 0.0
        self._alone_due_s = began_s + max(_ALONE_S, _ALONE_SHARE * passed_s)
        proc = self._root / "proc"
        at_s = began_s - self._stood_still_s
        workers = self._read_workers(proc, at_s) if may_have_workers else {}
        main = _read_thread(proc, self._thread_id, at_s)
        if main is None and not workers:
            self._is_off = True  # nothing may be read here
            return
        if workers and not self._workers:  # what went before was no loading with workers
            self._main.clear()
            self._machine.clear()
        for key, reading in workers.items():
            _keep(self._workers.setdefault(key, []), reading)
        if workers or not self._workers:  # else the loop over the loader is over
            if main is not None:
                _keep(self._main, main)
            _keep(self._machine, (began_s, cores_busy_s()[0], stalled_s(self._root, "io")))
        if len(self._machine) > 1:  # the first look loads psutil, and says nothing of the next
            rest_s = _REST_AFTER_LOOK * (self._spent() - before_s)
            self._due_s = max(self._due_s, began_s + min(rest_s, _LONGEST_REST_S))

    @staticmethod
    def _read_workers(proc: Path, at_s: float) -> dict[tuple[int, str], ProcessReading]:
        found: dict[tuple[int, str], ProcessReading] = {}
        for pid in _children(proc, "self", _DEPTH):
            if len(found) >= _MOST_WORKERS:
                break
            if _text(proc / pid / "comm").strip() != torch_compat.LOADER_WORKER_NAME:
                continue
            read = _read_process(proc / pid, at_s)
            if read is not None:
                started, reading = read
                # a process id is used again: with its start it is one process
                found[int(pid), started] = reading
        return found

    def result(self) -> LoaderUse | None:
        """What was seen; None if that is too little to say anything."""
        if len(self._machine) < 2:
            return None
        (first_s, busy_s, stalled), (last_s, busy_now_s, stalled_now) = self._machine
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
        return LoaderUse(
            wall_s=wall_s,
            n_cores=n_cores,
            main=ProcessUse.between(*self._main) if len(self._main) == 2 else None,
            workers=workers,
            spare_cores=None if busy is None else max(n_cores - busy / wall_s, 0.0),
            io_stalled_s=_since(stalled, stalled_now),
            doubts=tuple(doubts),
        )


def _keep(ends: list[_T], reading: _T) -> None:
    """Keep the first and the last reading."""
    if ends:
        ends[1:] = [reading]
    else:
        ends.append(reading)


def _children(proc: Path, pid: str, depth: int) -> Iterator[str]:
    """Process ids of the children of all threads of a process, and theirs."""
    try:
        threads = list((proc / pid / "task").iterdir())
    except OSError:
        return
    for thread in threads:
        for child in _text(thread / "children").split():
            yield child
            if depth > 1:
                yield from _children(proc, child, depth - 1)


def _read_process(folder: Path, at_s: float) -> tuple[str, ProcessReading] | None:
    """When it began, in the kernel's ticks, and its counters; None if it has ended."""
    fields = _stat(folder / "stat")
    if fields is None:
        return None
    asked, disk = _io(folder / "io")
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    user_s, system_s = int(fields[11]) * tick_s, int(fields[12]) * tick_s
    return fields[19], ProcessReading(
        at_s=at_s,
        cpu_s=user_s + system_s,
        system_s=system_s,
        waited_s=_scheduled(folder / "schedstat")[1],
        minor_faults=int(fields[7]),
        asked_bytes=asked,
        disk_bytes=disk,
    )


def _read_thread(proc: Path, thread_id: int, at_s: float) -> ProcessReading | None:
    """The counters of one of our own threads; bytes are the whole process's."""
    folder = proc / "self/task" / str(thread_id)
    fields = _stat(folder / "stat")
    ran_s, waited_s = _scheduled(folder / "schedstat")
    if fields is None or ran_s is None:
        return None
    asked, disk = _io(proc / "self/io")
    return ProcessReading(
        at_s=at_s,
        cpu_s=ran_s,
        system_s=int(fields[12]) / os.sysconf("SC_CLK_TCK"),
        waited_s=waited_s,
        minor_faults=int(fields[7]),
        asked_bytes=asked,
        disk_bytes=disk,
    )


def _stat(path: Path) -> list[str] | None:
    """The fields from the state on: number n of proc_pid_stat(5) is at n - 3."""
    # the name in parentheses may contain anything
    fields = _text(path).rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


def _scheduled(path: Path) -> tuple[float | None, float | None]:
    """Seconds that a thread ran, and that it was ready without a core."""
    words = _text(path).split()
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None, None
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def _io(path: Path) -> tuple[int | None, int | None]:
    """Bytes asked for and bytes from a disk; None where another user's process hides them."""
    values = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdigit():
            values[name] = int(value)
    return values.get("rchar"), values.get("read_bytes")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended, or may not be read
        return ""


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(now - before, 0.0)


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
