"""Why a DataLoader is slow: the disk, the code, too few workers, large batches, or another wait.

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
from functools import partial
from typing import Literal

from perfkit.base.machine.dataloader_stats import DataLoaderStats
from perfkit.base.words import fmt_bound, fmt_bytes, fmt_share, plural

# Below a fifth of the step other things are better worth the work (as in the verdict).
_LEAST_LOST = 0.2
# With fewer seconds of workers' time, ticks of 10 ms and single events decide.
_LEAST_SEEN_S = 0.5
_BLOCKED_FROM = 0.3
_ELSEWHERE_FROM = 0.5
_AT_WORK_FROM = 0.7
_NO_CORE_FROM = 0.2
_SPARE_FROM = 1.0
_KERNEL_FROM = 0.4
# A disk gives at least this much in the time for which a reader is blocked by it: 100 random reads
# of 4 KiB a second from a hard disk. Whoever gets less is blocked by something else.
_SLOWEST_DISK = 0.4e6
# A read call copies from the page cache at 2 GB/s or more; beyond that the kernel did other things.
_CACHE_COPY = 2e9
_MOST_GAIN = 10.0

Kind = Literal["disk", "code", "workers", "batches", "elsewhere", "cores"]


@dataclass(frozen=True)
class LoaderCause:
    """Why a loader is slow.

    Attributes:
        kind: ``"disk"``, ``"code"`` (its own CPU time, and no core is free), ``"workers"`` (too few
            for the cores), ``"batches"`` (in the kernel: large ones handed over through shared
            memory, or large intermediate results), ``"cores"`` (they are ready, but others hold the
            cores) or ``"elsewhere"`` (neither a core nor the disk: a network, a lock, a sleep).
        title: the cause in a sentence, without the full stop.
        evidence: what was seen, with figures, one sentence each.
        what_to_do: code to change, as a snippet.
        gain_at_most: upper bound of a step's speed-up; 10 at most.
        formula: how it was computed, with its numbers.
        doubts: why it may be wrong.
    """

    kind: Kind
    title: str
    evidence: tuple[str, ...]
    what_to_do: str
    gain_at_most: float
    formula: str
    doubts: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The cause and its first evidence."""
        return f"{self.title}: {self.evidence[0]}."


def loader_cause(
    stats: DataLoaderStats | None,
    *,
    lost: float,
) -> LoaderCause | None:
    """Name the cause; None if there is none to name, or the evidence is too thin.

    Args:
        stats: what the workers and the training thread did.
        lost: share of the step that waiting for data costs.
    """
    if stats is None or lost < _LEAST_LOST:
        return None
    if not stats.workers:
        return _of_main(stats, lost)
    return _of_workers(stats, lost)


def _of_main(stats: DataLoaderStats, lost: float) -> LoaderCause | None:
    """Without workers only the disk stands out: all else is the code that waits."""
    main = stats.main
    if main is None or main.seen_s < _LEAST_SEEN_S or main.waited_s is None:
        return None
    blocked = max(1 - (main.cpu_s + main.waited_s) / main.seen_s, 0.0)
    part = min(blocked, lost)
    if part < _LEAST_LOST or not _by_disk(main.disk_bytes, blocked * main.seen_s):
        return None
    reads = _reading(main.disk_bytes, main.asked_bytes, main.seen_s, "this process reads")
    return _cause(
        stats,
        0.0,
        "disk",
        "The step waits for the disk",
        (f"the training thread is blocked for {fmt_share(blocked)} of the time, and {reads}",),
        _FROM_DISK,
        1 - part,
        "if all files came from memory",
    )


def _of_workers(stats: DataLoaderStats, lost: float) -> LoaderCause | None:
    seen_s = sum(worker.seen_s for worker in stats.workers)
    cpu = stats.mean(lambda worker: worker.cpu_s)
    system = stats.mean(lambda worker: worker.system_s)
    waited = stats.mean(lambda worker: worker.waited_s)
    if seen_s < _LEAST_SEEN_S or cpu is None or system is None or waited is None:
        return None
    blocked = max(1 - cpu - waited, 0.0)
    disk = stats.mean(lambda worker: worker.disk_bytes)
    asked = stats.mean(lambda worker: worker.asked_bytes)
    n, spare, rest = len(stats.workers), stats.spare_cores, 1 - lost
    who = "the worker" if n == 1 else f"each of {n} workers"
    on_cpu = f"{who} computes for {fmt_share(min(cpu, 1.0))} of the time"
    no_core = f"{who} is ready without a core for {fmt_share(waited)} of the time"
    without_core = (no_core,) if waited >= _NO_CORE_FROM else ()
    is_blocked = f"{who} is blocked for {fmt_share(blocked)} of the time"
    kernel = max(system - (asked or 0.0) / _CACHE_COPY, 0.0)
    cause = partial(_cause, stats, rest)
    if blocked >= _BLOCKED_FROM and _by_disk(disk, blocked):
        asked_by_all = None if asked is None else asked * n
        reads = _reading((disk or 0.0) * n, asked_by_all, 1.0, "together they read")
        return cause(
            "disk",
            "The workers wait for the disk",
            (f"{is_blocked}, and {reads}", on_cpu),
            _FROM_DISK,
            1 - blocked,
            "if all files came from memory and the workers' other time stayed",
        )
    if blocked >= _ELSEWHERE_FROM and disk is not None:
        return cause(
            "elsewhere",
            "The workers wait, and neither for a core nor for this machine's disk",
            (
                f"{is_blocked}, while they read {fmt_bytes(disk * n)}/s from the disk: a network, "
                "a lock or a sleep",
                on_cpu,
            ),
            "# such waits overlap: more workers than cores help, or many requests at a time\n"
            f"loader = DataLoader(dataset, ..., num_workers={4 * n}, persistent_workers=True)",
            0.25,
            f"with {4 * n} workers that wait at the same time",
        )
    if cpu + waited < _AT_WORK_FROM:
        return None
    if kernel >= _KERNEL_FROM * cpu:
        in_kernel = f"the kernel takes {fmt_share(kernel / cpu)} of the workers' CPU time"
        return cause(
            "batches",
            "The workers spend their time in the kernel: on large batches or intermediate results",
            (in_kernel, *without_core),
            _SMALLER,
            1 - kernel / cpu * (cpu + waited),  # waiting for a core is spread over all they do
            "if that took no time",
        )
    if waited > cpu:
        return cause(
            "cores",
            "The workers have no core to run on",
            (no_core, on_cpu),
            "# end other programs, or let fewer threads and workers share the cores:\n"
            "torch.set_num_threads(...)  # cores minus workers",
            1 - waited,
            "if they always had one",
        )
    if spare is None:
        return None
    cores = f"{spare:.1f} of {plural(stats.n_cores, 'core')} have nothing to do"
    if spare >= _SPARE_FROM and waited < _NO_CORE_FROM:
        more = n + int(spare)
        return cause(
            "workers",
            "There are too few workers",
            (f"{on_cpu}, and {cores}",),
            f"loader = DataLoader(dataset, ..., num_workers={more}, persistent_workers=True)",
            n / more,
            f"with {plural(more, 'worker')}",
        )
    return cause(
        "code",
        "The workers' own code is slow, and no core is free for more workers",
        (f"{on_cpu}, and {cores}", *without_core),
        "# less work for each sample: prepare once and store the result (smaller images, arrays),\n"
        "# move augmentation to the device, replace Python loops in __getitem__ by array code;\n"
        "# its lines:  for i in range(200): dataset[i]   under %%torchprof",
        0.0,
        "if loading took no time",
    )


def _cause(
    stats: DataLoaderStats,
    rest: float,
    kind: Kind,
    title: str,
    evidence: tuple[str, ...],
    what_to_do: str,
    left: float,
    if_: str,
) -> LoaderCause:
    """With the bound of a loader that takes ``left`` of its time, beside ``rest`` of the step."""
    gain = min(1 / max(left, rest, 1e-3), _MOST_GAIN)
    bound = f"{fmt_bound(gain)} at most" if gain < _MOST_GAIN else f"over {_MOST_GAIN:.0f}× at best"
    formula = f"{bound}: 1 / max({left:.2f}, {rest:.2f}), {if_}"
    return LoaderCause(kind, title, evidence, what_to_do, gain, formula, stats.doubts)


def _by_disk(disk_bytes: float | None, blocked_s: float) -> bool:
    """Whether a disk explains that a reader was blocked for so long."""
    return bool(disk_bytes) and (disk_bytes or 0.0) >= _SLOWEST_DISK * blocked_s


def _reading(disk: float | None, asked: float | None, seconds: float, who: str) -> str:
    disk = disk or 0.0
    sentence = f"{who} {fmt_bytes(disk / seconds)}/s from the disk"
    # read-ahead and mapped files make a disk read more than was asked for
    if asked and asked > disk:
        sentence += f" ({fmt_share(disk / asked)} of what was asked for; the rest was in memory)"
    return sentence


_FROM_DISK = (
    "# read less, or from a faster place: a local SSD, the memory (RAM or /dev/shm), fewer and\n"
    "# larger files read in order (shards), smaller images stored once; and read ahead:\n"
    "loader = DataLoader(dataset, ..., num_workers=8, prefetch_factor=4, persistent_workers=True)"
)
_SMALLER = (
    "# hand over fewer bytes: uint8 instead of float32, and convert on the device; crop and\n"
    "# resize before collating; no copies in __getitem__ (torch.from_numpy, not torch.tensor)\n"
    "x = x.to(device, non_blocking=True).float().div_(255)"
)
