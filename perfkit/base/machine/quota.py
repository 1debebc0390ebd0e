"""How long a control group's CPU quota stopped its processes.

The kernel gives a group so much CPU time in each period (100 ms unless set otherwise) and stops all
of its threads once that is used up. It counts the periods in which that happened, and adds up the
time for which each *core's* queue was stopped
(https://docs.kernel.org/scheduler/sched-bwc.html, https://docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfkit.base.machine._host import _cgroup_folders, _words

_ROOT = Path("/")
# the kernel's default, where cpu.max does not say
_PERIOD_S = 0.1


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
        (*_cgroup_folders(root, "cpu"), root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu")
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
    quota, period_s = _limit(folder)
    return QuotaCounters(
        quota, period_s, values.get("nr_periods", 0), values.get("nr_throttled", 0), throttled_s
    )


def _limit(folder: Path) -> tuple[float | None, float]:
    """The quota in CPUs, and the length of a period in seconds."""
    v1 = [
        *_words(folder / "cpu.cfs_quota_us"),
        *_words(folder / "cpu.cfs_period_us"),
    ]
    for words in (_words(folder / "cpu.max"), v1):
        if len(words) == 2 and words[1].isdigit() and int(words[1]):
            period_s = int(words[1]) * 1e-6
            cpus = int(words[0]) / int(words[1]) if words[0].isdigit() else None
            return cpus or None, period_s
    return None, _PERIOD_S
