"""What holds the machine itself back: a low clock, too little memory, a container's CPU quota.

:mod:`~perfkit.base.machine.cpu_contention` knows what *others* took away, and
:mod:`~perfkit.base.machine.gpu_state` the limits of a GPU. A sentence is said only for what
explains lost time. What the system does not report stays None: a virtual machine shows no clocks.

Of a quota, the kernel gives a control group so much CPU time in each period (100 ms unless set
otherwise) and stops all of its threads once that is used up. It counts the periods in which that
happened, and adds up the time for which each *core's* queue was stopped
(https://docs.kernel.org/scheduler/sched-bwc.html, https://docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfkit.base.machine._host import cgroup_folders, cpu_quota
from perfkit.base.plain import fields
from perfkit.base.words import fmt_bytes, fmt_number, fmt_s, plural

# Shorter measurements are dominated by single events.
_SHORTEST_S = 0.2
# Clocks of cores that have little to do are low on purpose.
_WORKS_FROM = 0.5
# With all cores at work a processor runs at 70 to 80 % of its highest clock, which is that of a
# single core. Below this share of it, it is held back.
_SLOW_CLOCK = 0.6
# One page from an NVMe SSD takes 0.1 ms (4 KiB at random, queue depth 1); from other disks longer.
_PAGE_READ_S = 1e-4
_FAULTS_FROM = 0.02
# If a tenth of the faults are the machine's swap-ins, memory was short; else files were read.
_SWAP_SHARE = 0.1

_ROOT = Path("/")
_Counter = TypeVar("_Counter", int, float)


@dataclass(frozen=True)
class PagesRead:
    """Counters since the start; None for what the system does not report.

    Attributes:
        major_faults: pages of this process and its ended children that came from a disk.
        swapped_in_bytes: of the whole machine.
    """

    major_faults: int | None = None
    swapped_in_bytes: int | None = None

    @classmethod
    def read(cls) -> PagesRead:
        """Read them now, in 0.1 ms."""
        import psutil

        try:
            import resource
        except ImportError:  # Windows
            return cls()
        who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        faults = sum(resource.getrusage(one).ru_majflt for one in who)
        try:
            swapped_in = int(psutil.swap_memory().sin)
        except (OSError, RuntimeError):
            return cls(faults)
        return cls(faults, swapped_in)


@dataclass(frozen=True)
class HostThrottling:
    """What held the machine back during a measurement; None for what the system does not report.

    Attributes:
        process_s: CPU time of this process and its children in it.
        clock_mhz: at its end, of the fastest core that this process may use.
        max_mhz: that core's highest clock.
        major_faults: pages of this process that had to come from a disk.
        swapped_in_bytes: of the whole machine.
    """

    wall_s: float
    process_s: float = 0.0
    clock_mhz: float | None = None
    max_mhz: float | None = None
    major_faults: int | None = None
    swapped_in_bytes: int | None = None

    @classmethod
    def between(
        cls, before: PagesRead, now: PagesRead, *, wall_s: float, process_s: float
    ) -> HostThrottling:
        """The difference of two readings, and the clock of this moment."""
        return cls(
            wall_s,
            process_s,
            *_clock_mhz(),
            since(before.major_faults, now.major_faults),
            since(before.swapped_in_bytes, now.swapped_in_bytes),
        )

    def sentences(self) -> tuple[str, ...]:
        """Say what explains lost time, one sentence each; empty if nothing does."""
        if self.wall_s < _SHORTEST_S:
            return ()
        return tuple(filter(None, (self._clock(), self._memory())))

    def to_dict(self) -> dict[str, Any]:
        """These facts as plain JSON types."""
        return fields(self, sentences=self.sentences())

    def _clock(self) -> str:
        clock, highest = self.clock_mhz, self.max_mhz
        works = self.process_s >= _WORKS_FROM * self.wall_s
        if not clock or not highest or not works or clock >= _SLOW_CLOCK * highest:
            return ""
        return (
            f"The fastest core ran at {fmt_number(clock / 1e3)} GHz of at most "
            f"{fmt_number(highest / 1e3)} GHz when this ended: a power limit, heat or a "
            "power-saving mode slows everything the host does."
        )

    def _memory(self) -> str:
        faults = self.major_faults or 0
        read_s = faults * _PAGE_READ_S
        if read_s < _FAULTS_FROM * self.wall_s:
            return ""
        waited = f"at least {fmt_s(read_s)}, at 0.1 ms a page from an SSD"
        swapped_in = self.swapped_in_bytes or 0
        if swapped_in >= _SWAP_SHARE * faults * mmap.PAGESIZE:
            return (
                f"Memory was short: {plural(faults, 'page')} of this process had to be read from "
                f"the disk again ({waited}), and the machine swapped {fmt_bytes(swapped_in)} in. "
                "Use less memory, or end other programs."
            )
        return (
            f"{plural(faults, 'page')} of mapped files came from the disk ({waited}): the first "
            "look at a memory-mapped data set or library, or memory too short to keep them. A "
            "second run shows which."
        )


def _clock_mhz() -> tuple[float | None, float | None]:
    """The clock of the fastest core that this process may use, and its highest one."""
    import psutil

    try:
        clocks = psutil.cpu_freq(percpu=True)
    except (AttributeError, OSError, RuntimeError, NotImplementedError):
        return None, None
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    mine = [c for i, c in enumerate(clocks) if allowed is None or i in allowed or len(clocks) == 1]
    fastest = max(mine, key=lambda clock: clock.current, default=None)
    if fastest is None or not fastest.current or not fastest.max:
        return None, None
    return fastest.current, fastest.max


def since(before: _Counter | None, now: _Counter | None) -> _Counter | None:
    """What a counter has counted between two readings; None where there is none."""
    return None if before is None or now is None else max(now - before, type(now)(0))


@dataclass(frozen=True)
class QuotaCounters:
    """The counters of one control group since it exists.

    Attributes:
        cpus: CPU time that it may use, in CPUs; None without a quota.
        period_s: length of a period.
        n_periods, n_throttled: periods so far, and those in which the quota was used up.
        throttled_s: time for which its queues were stopped, summed over the cores.
    """

    cpus: float | None
    period_s: float
    n_periods: int
    n_throttled: int
    throttled_s: float


@dataclass(frozen=True)
class Throttled:
    """What a quota did during a measurement.

    Attributes:
        stopped_s: an estimate of the wall time for which it stopped everything.
        cpus: the quota in CPUs; None if unknown.
        n_periods, n_throttled: periods, and those in which the quota was used up.
    """

    stopped_s: float
    cpus: float | None
    n_periods: int
    n_throttled: int

    @classmethod
    def between(
        cls, before: dict[Path, QuotaCounters], now: dict[Path, QuotaCounters]
    ) -> Throttled | None:
        """Of the group that stopped longest; None if no group reports it.

        In a period of P seconds, threads on c cores use up a quota of q CPUs after q·P/c seconds.
        Then c queues are stopped for the rest: their sum S, in CPUs, is c - q. So the wall time
        stopped is the share 1 - q/c = S / (q + S) of such a period.
        """
        found = []
        for folder, end in now.items():
            begin = before.get(folder)
            if begin is None:
                continue
            n = max(end.n_throttled - begin.n_throttled, 0)
            summed_s = max(end.throttled_s - begin.throttled_s, 0.0)
            whole_s = n * end.period_s
            if end.cpus and whole_s:
                per_period = summed_s / whole_s
                stopped_s = whole_s * per_period / (end.cpus + per_period)
            else:  # of one core or of several: at most this
                stopped_s = summed_s if not whole_s else min(summed_s, whole_s)
            n_periods = max(end.n_periods - begin.n_periods, 0)
            found.append(cls(stopped_s, end.cpus, n_periods, n))
        return max(found, key=lambda t: t.stopped_s, default=None)


def read_quota(root: Path = _ROOT) -> dict[Path, QuotaCounters]:
    """The counters of this process's control groups, by folder; empty if there are none."""
    folders = dict.fromkeys(
        # in a container whose own path is not visible, the mount point is its group
        (*cgroup_folders(root, "cpu"), root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu")
    )
    found = {}
    for folder in folders:
        counters = _read(folder)
        if counters is not None:
            found[folder] = counters
    return found


def _read(folder: Path) -> QuotaCounters | None:
    try:
        text = (folder / "cpu.stat").read_text()
    except OSError:
        return None
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            values[name] = int(value)
    if "throttled_usec" in values:  # cgroup v2
        throttled_s = values["throttled_usec"] * 1e-6
    elif "throttled_time" in values:  # v1, in ns
        throttled_s = values["throttled_time"] * 1e-9
    else:
        return None
    quota, period_s = cpu_quota(folder)
    return QuotaCounters(
        quota, period_s, values.get("nr_periods", 0), values.get("nr_throttled", 0), throttled_s
    )
