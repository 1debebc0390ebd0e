"""Why a DataLoader is slow: the disk, the code, too few workers, large batches, or another wait.

A step that waits for data waits for its workers, which then are always at work on a batch. So the
share of a worker's time that goes into one thing is the share of the loader's time that it takes.
With the whole step as 1, waiting for data a share ``lost`` of it, the loader is the longer of two
things that run beside each other, and removing a part ``p`` of the workers' time brings at most::

    1 / max(1 - p, 1 - lost)

The rest of the step does not change, and the loader keeps what else it does. More workers bring at
most ``1 / max(now / more, 1 - lost)``. These are bounds, not promises (Amdahl 1967).

Thresholds are shares of the workers' time at which a cure is worth its work; they leave gaps on
purpose, in which no cause is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfkit.base.machine.loading import LoaderUse
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
# Where the kernel accounts for waits for disks, there must have been some.
_STALLED_FROM = 0.1
# A read call copies from the page cache at 2 GB/s or more; beyond that the kernel did other things.
_CACHE_COPY = 2e9
# New memory is the kernel's reason if it is so much for each second of CPU time: at 0.5 to 2 µs for
# a page of 4 KiB (clearing and mapping it), 0.25 GB take 3 to 12 % of that second, and without
# other work of the kernel beside it, 1 GB and more are touched.
_FRESH_FROM = 0.25e9
# At a larger multiple of the batches' own bytes, most new memory is not the batches.
_MOSTLY_BATCHES = 2.5
_MOST_GAIN = 10.0

Kind = Literal["disk", "code", "workers", "batches", "memory", "elsewhere", "cores"]


@dataclass(frozen=True)
class LoaderCause:
    """Why a loader is slow.

    Attributes:
        kind: ``"disk"``, ``"code"`` (its own CPU time, and no core is free), ``"workers"`` (too few
            for the cores), ``"batches"`` (large ones through shared memory), ``"memory"`` (new
            memory for each batch: handed over, or for intermediate results), ``"cores"`` (they are
            ready, but others hold the cores) or ``"elsewhere"`` (neither a core nor the disk: a
            network, a lock, a sleep).
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
    use: LoaderUse | None,
    *,
    lost: float,
    batch_bytes: int | None = None,
    batches_per_s: float | None = None,
) -> LoaderCause | None:
    """Name the cause; None if there is none to name, or the evidence is too thin.

    Args:
        use: what the workers and the training thread did.
        lost: share of the step that waiting for data costs.
        batch_bytes: size of a batch; None if unknown.
        batches_per_s: how many the step got; None if unknown.
    """
    if use is None or lost < _LEAST_LOST:
        return None
    if not use.workers:
        return _of_main(use, lost)
    return _of_workers(use, lost, batch_bytes, batches_per_s)


def _of_main(use: LoaderUse, lost: float) -> LoaderCause | None:
    """Without workers only the disk stands out: all else is the code that waits."""
    main = use.main
    if main is None or main.seen_s < _LEAST_SEEN_S or main.waited_s is None:
        return None
    blocked = max(1 - (main.cpu_s + main.waited_s) / main.seen_s, 0.0)
    part = min(blocked, lost)
    if part < _LEAST_LOST or not _by_disk(use, main.disk_bytes, blocked * main.seen_s):
        return None
    gain = min(1 / max(1 - part, 1e-3), _MOST_GAIN)
    return LoaderCause(
        "disk",
        "The step waits for the disk",
        (
            f"the training thread is blocked for {fmt_share(blocked)} of the time, and "
            + _reading(main.disk_bytes, main.asked_bytes, main.seen_s, "this process reads"),
            *_stalled(use),
        ),
        _FROM_DISK,
        gain,
        f"at most 1 / (1 - {part:.2f}) = {fmt_bound(gain)}, if all files came from memory",
        use.doubts,
    )


def _of_workers(
    use: LoaderUse, lost: float, batch_bytes: int | None, batches_per_s: float | None
) -> LoaderCause | None:
    seen_s = sum(worker.seen_s for worker in use.workers)
    cpu = use.mean(lambda worker: worker.cpu_s)
    system = use.mean(lambda worker: worker.system_s)
    waited = use.mean(lambda worker: worker.waited_s)
    if seen_s < _LEAST_SEEN_S or cpu is None or system is None or waited is None:
        return None
    blocked = max(1 - cpu - waited, 0.0)
    disk = use.mean(lambda worker: worker.disk_bytes)
    asked = use.mean(lambda worker: worker.asked_bytes)
    n = len(use.workers)
    who = "the worker" if n == 1 else f"each of {n} workers"
    on_cpu = f"{who} computes for {fmt_share(min(cpu, 1.0))} of the time"
    no_core = (
        f"{who} is ready without a core for {fmt_share(waited)} of the time"
        if waited >= _NO_CORE_FROM
        else ""
    )

    def cause(
        kind: Kind,
        title: str,
        evidence: tuple[str, ...],
        cure: str,
        loader_part: float,
        how: str,
        if_: str,
        doubts: tuple[str, ...] = (),
    ) -> LoaderCause:
        gain = min(1 / max(loader_part, 1 - lost, 1e-3), _MOST_GAIN)
        return LoaderCause(
            kind,
            title,
            tuple(filter(None, evidence)),
            cure,
            gain,
            f"at most {how} = {fmt_bound(gain)}, {if_}"
            if gain < _MOST_GAIN
            else f"over {_MOST_GAIN:.0f}× at best: {how}, {if_}",
            (*use.doubts, *doubts),
        )

    rest = f"{1 - lost:.2f}"
    if blocked >= _BLOCKED_FROM and _by_disk(use, disk, blocked):
        assert disk is not None
        return cause(
            "disk",
            "The workers wait for the disk",
            (
                f"{who} is blocked for {fmt_share(blocked)} of the time, and "
                + _reading(
                    disk * n, None if asked is None else asked * n, 1.0, "together they read"
                ),
                *_stalled(use),
                on_cpu,
            ),
            _FROM_DISK,
            1 - blocked,
            f"1 / max({1 - blocked:.2f}, {rest})",
            "if all files came from memory and the workers' other time stayed",
        )
    if blocked >= _ELSEWHERE_FROM and disk is not None:
        return cause(
            "elsewhere",
            "The workers wait, and neither for a core nor for this machine's disk",
            (
                f"{who} is blocked for {fmt_share(blocked)} of the time, while they read "
                f"{fmt_bytes(disk * n)}/s from the disk: a network, a lock or a sleep",
                on_cpu,
            ),
            "# such waits overlap: more workers than cores help, or many requests at a time\n"
            f"loader = DataLoader(dataset, ..., num_workers={4 * n}, persistent_workers=True)",
            0.25,
            f"1 / max({n} / {4 * n}, {rest})",
            f"with {4 * n} workers that wait at the same time",
        )
    if cpu + waited < _AT_WORK_FROM:
        return None
    fresh = use.mean(lambda worker: worker.fresh_bytes) or 0.0
    kernel = max(system - (asked or 0.0) / _CACHE_COPY, 0.0)
    if kernel >= _KERNEL_FROM * cpu and fresh >= _FRESH_FROM * cpu:
        # waiting for a core is spread over all that it does
        part = kernel / cpu * (cpu + waited)
        seen = (
            f"the kernel takes {fmt_share(kernel / cpu)} of the workers' CPU time, while they "
            f"touch {fmt_bytes(fresh / cpu)} of new memory for each second of it"
        )
        handed = (batch_bytes or 0) * (batches_per_s or 0.0) / n
        if handed and fresh <= _MOSTLY_BATCHES * handed:
            return cause(
                "batches",
                "The workers spend their time handing over large batches through shared memory",
                (
                    f"{fmt_bytes(batch_bytes)} a batch, {fmt_bytes(handed * n)}/s; {seen}",
                    no_core,
                ),
                _SMALLER,
                1 - part,
                f"1 / max({1 - part:.2f}, {rest})",
                "if handing over took no time",
            )
        return cause(
            "memory",
            "The workers spend their time on new memory for each batch",
            (
                seen,
                "large batches handed over through shared memory do that, and so do large "
                "intermediate results",
                no_core,
            ),
            _SMALLER,
            1 - part,
            f"1 / max({1 - part:.2f}, {rest})",
            "if new memory took no time",
        )
    if waited > cpu:
        return cause(
            "cores",
            "The workers have no core to run on",
            (no_core, on_cpu),
            "# end other programs, or let fewer threads and workers share the cores:\n"
            "torch.set_num_threads(...)  # cores minus workers",
            1 - waited,
            f"1 / max({1 - waited:.2f}, {rest})",
            "if they always had one",
        )
    spare = use.spare_cores
    if spare is not None and spare >= _SPARE_FROM and waited < _NO_CORE_FROM:
        more = n + int(spare)
        return cause(
            "workers",
            "There are too few workers",
            (f"{on_cpu}, and {spare:.1f} of {plural(use.n_cores, 'core')} have nothing to do",),
            f"loader = DataLoader(dataset, ..., num_workers={more}, persistent_workers=True)",
            n / more,
            f"1 / max({n} / {more}, {rest})",
            f"with {plural(more, 'worker')}",
        )
    if spare is None:
        return None
    return cause(
        "code",
        "The workers' own code is slow, and no core is free for more workers",
        (
            f"{on_cpu}, and {spare:.1f} of {plural(use.n_cores, 'core')} have nothing to do",
            no_core,
        ),
        "# less work for each sample: prepare once and store the result (smaller images, arrays),\n"
        "# move augmentation to the device, replace Python loops in __getitem__ by array code;\n"
        "# its lines:  for i in range(200): dataset[i]   under %%torchprof",
        1 - lost,
        f"1 / {rest}",
        "if loading took no time",
    )


def _by_disk(use: LoaderUse, disk_bytes: float | None, blocked_s: float) -> bool:
    """Whether a disk explains that a reader was blocked for so long."""
    if not disk_bytes or disk_bytes < _SLOWEST_DISK * blocked_s:
        return False
    stalled = use.io_stalled_s
    return stalled is None or stalled >= _STALLED_FROM * use.wall_s


def _reading(disk: float | None, asked: float | None, seconds: float, who: str) -> str:
    disk = disk or 0.0
    said = f"{who} {fmt_bytes(disk / seconds)}/s from the disk"
    # read-ahead and mapped files make a disk read more than was asked for
    if asked and asked > disk:
        said += f" ({fmt_share(disk / asked)} of what was asked for; the rest was in memory)"
    return said


def _stalled(use: LoaderUse) -> tuple[str, ...]:
    if use.io_stalled_s is None:
        return ()
    share = min(use.io_stalled_s / max(use.wall_s, 1e-9), 1.0)
    return (f"by the kernel's account something waited for a disk for {fmt_share(share)} of it",)


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
