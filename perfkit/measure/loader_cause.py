"""Why a DataLoader's workers are slow: the disk, their code, too few of them, or another wait.

A step that waits for data waits for its workers, which then are always at work on a batch. So the
share of a worker's time that goes into one thing is the share of the loader's time that it takes.
With the whole step as 1, waiting for data a share ``lost`` of it, a loader that takes ``left`` of
its time brings at most ``1 / max(left, 1 - lost)``: the rest of the step does not change. These are
bounds, not promises (Amdahl 1967).

Thresholds are shares of the workers' time at which a remedy is worth its work; they leave gaps on
purpose, in which no cause is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfkit.base.machine.dataloader_stats import DataLoaderStats
from perfkit.base.words import fmt_bound, fmt_bytes, fmt_share, plural

# Below a fifth of the step other things are better worth the work (as in the verdict).
_LEAST_LOST = 0.2
# With fewer seconds of workers' time, ticks of 10 ms and single events decide.
_LEAST_SEEN_S = 0.5
_BLOCKED_FROM, _ELSEWHERE_FROM = 0.3, 0.5
_AT_WORK_FROM = 0.7
_NO_CORE_FROM = 0.2
_SPARE_FROM = 1.0
# A disk gives at least this much in the time for which a reader is blocked by it: 100 random reads
# of 4 KiB a second from a hard disk. Whoever gets less is blocked by something else.
_SLOWEST_DISK = 0.4e6
_MOST_GAIN = 10.0

Kind = Literal["disk", "code", "workers", "elsewhere"]


@dataclass(frozen=True)
class LoaderCause:
    """Why a loader is slow.

    Attributes:
        kind: ``"disk"``, ``"code"`` (its own CPU time, and no core is free), ``"workers"`` (too few
            for the cores) or ``"elsewhere"`` (neither a core nor the disk: a network, a lock, a
            sleep).
    """

    kind: Kind
    title: str
    evidence: tuple[str, ...]
    what_to_do: str
    gain_at_most: float
    formula: str
    doubts: tuple[str, ...] = ()


def loader_cause(
    stats: DataLoaderStats | None, *, lost: float, loads: float = 1.0
) -> LoaderCause | None:
    """Name the cause; None if there is none to name, or the evidence is too thin.

    Args:
        lost: share of the step that waiting for data costs.
        loads: share of the workers' time in which they were seen at work on a batch; else they
            wait to be asked for one.
    """
    if stats is None or lost < _LEAST_LOST:
        return None
    if sum(worker.seen_s for worker in stats.workers) < _LEAST_SEEN_S:
        return None
    cpu = stats.mean(lambda worker: worker.cpu_s)
    waited = stats.mean(lambda worker: worker.waited_s)
    disk = stats.mean(lambda worker: worker.disk_bytes)
    if cpu is None or waited is None:
        return None
    blocked = min(max(1 - cpu - waited, 0.0), loads)
    n, spare = len(stats.workers), stats.spare_cores
    who = "the worker" if n == 1 else f"each of {n} workers"
    computes = f"{who} computes for {fmt_share(min(cpu, 1.0))} of the time"
    is_blocked = f"{who} is blocked for {fmt_share(blocked)} of the time"

    def cause(
        kind: Kind, title: str, evidence: tuple[str, ...], what_to_do: str, left: float, if_: str
    ) -> LoaderCause:
        gain = min(1 / max(left, 1 - lost, 1e-3), _MOST_GAIN)
        least = f"{fmt_bound(gain)} at most"
        bound = least if gain < _MOST_GAIN else f"over {_MOST_GAIN:.0f}× at best"
        formula = f"{bound}: 1 / max({left:.2f}, {1 - lost:.2f}), {if_}"
        return LoaderCause(kind, title, evidence, what_to_do, gain, formula, stats.doubts)

    if disk is not None and blocked >= _BLOCKED_FROM and disk >= _SLOWEST_DISK * blocked:
        return cause(
            "disk",
            "The workers wait for the disk",
            (f"{is_blocked}, and together they read {fmt_bytes(disk * n)}/s from it", computes),
            _FROM_DISK,
            1 - blocked,
            "if all files came from memory and the workers' other time stayed",
        )
    if disk is not None and blocked >= _ELSEWHERE_FROM:
        return cause(
            "elsewhere",
            "The workers wait, and neither for a core nor for this machine's disk",
            (
                f"{is_blocked}, while they read {fmt_bytes(disk * n)}/s from the disk: a network, "
                "a lock or a sleep",
                computes,
            ),
            "# such waits overlap: more workers than cores help, or many requests at a time\n"
            f"loader = DataLoader(dataset, ..., num_workers={4 * n}, persistent_workers=True)",
            0.25,
            f"with {4 * n} workers that wait at the same time",
        )
    if cpu + waited < _AT_WORK_FROM or spare is None:
        return None
    cores = f"{spare:.1f} of {plural(stats.n_cores, 'core')} have nothing to do"
    if spare >= _SPARE_FROM and waited < _NO_CORE_FROM:
        more = n + int(spare)
        return cause(
            "workers",
            "There are too few workers",
            (f"{computes}, and {cores}",),
            f"loader = DataLoader(dataset, ..., num_workers={more}, persistent_workers=True)",
            n / more,
            f"with {plural(more, 'worker')}",
        )
    no_core = f"{who} is ready without a core for {fmt_share(waited)} of the time"
    return cause(
        "code",
        "The workers' own code is slow, and no core is free for more workers"
        if waited <= cpu
        else "The workers have no core to run on",
        (f"{computes}, and {cores}", *((no_core,) if waited >= _NO_CORE_FROM else ())),
        _LESS_WORK,
        0.0,
        "if loading took no time",
    )


_FROM_DISK = (
    "# read less, or from a faster place: a local SSD, the memory (RAM or /dev/shm), fewer and\n"
    "# larger files read in order (shards), smaller images stored once; and read ahead:\n"
    "loader = DataLoader(dataset, ..., num_workers=8, prefetch_factor=4, persistent_workers=True)"
)
_LESS_WORK = (
    "# less work for each sample: prepare once and store the result (smaller images, arrays),\n"
    "# move augmentation to the device, replace Python loops in __getitem__ by array code;\n"
    "# its lines:  for i in range(200): dataset[i]   under %%torchprof;\n"
    "# and let no other program hold the cores"
)
