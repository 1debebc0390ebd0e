"""Was the machine busy with something else during a measurement?

A preempted step looks slow, and a trace does not show why. The operating system does: how long the
measured thread was ready but had no core, how much of the allowed cores other programs used, how
long the container's quota stopped everything, how much time the hypervisor stole. Take a
:class:`ContentionMark` before a measurement and query it afterwards; it costs a few milliseconds.

A fact is None if the system does not report it (macOS and Windows report few).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.base.device import in_use
from perfkit.base.machine import _host
from perfkit.base.machine.throttling import (
    HostThrottling,
    PagesRead,
    QuotaCounters,
    Throttled,
    read_quota,
    since,
)
from perfkit.base.plain import fields
from perfkit.base.words import fmt_count, fmt_number, fmt_share, plural

if TYPE_CHECKING:
    from perfkit.base.machine.gpu_state import GpuReading, GpuThrottling

_PROC = Path("/proc")
# A thread without a core for a tenth of the time is measurably delayed.
_WAITED_FROM = 0.10
# The least that other programs must use to be blamed: a quarter of a core.
_OTHERS_FROM = 0.25
_STOLEN_FROM = 0.05
_THROTTLED_FROM = 0.05
# Shorter measurements are dominated by /proc's 10 ms ticks and scheduler noise.
_SHORTEST_S = 0.2
# Without the scheduler's own account: others fill the cores.
_FULL = 0.95
#: If a fifth of the time is lost, the largest class may not be the true largest. Below that, times
#: are too long by a known bound, and shares still show where the time goes.
SPOILS_FROM = 0.2


@dataclass(frozen=True)
class CpuContention:
    """What else the machine did during a measurement; None for what the system does not report.

    Attributes:
        process_s: CPU time of this process, its children and, under torchrun, its other ranks.
        waited_s: how long the most delayed thread was ready but not running.
        others_s: CPU time of other programs on the cores that this process may use.
        stolen_s: time on those cores that the hypervisor gave to other machines.
        throttled_s: time for which the container's quota stopped this process.
        throttled: that quota, and in how many of its periods it was used up.
        host: what made the machine itself slow; not part of :attr:`lost`.
        gpus: the same of the GPUs on which this process has a context.
    """

    wall_s: float
    n_cores: int
    process_s: float
    waited_s: float | None = None
    others_s: float | None = None
    stolen_s: float | None = None
    throttled_s: float | None = None
    throttled: Throttled | None = None
    host: HostThrottling | None = None
    gpus: tuple[GpuThrottling, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether something outside this process slowed the measured code down."""
        return bool(self._reasons())

    def and_then(self, later: CpuContention) -> CpuContention:
        """Both measurements as one; what held the machine back is that of the longer one."""
        longer = self if self.wall_s >= later.wall_s else later
        sums = {
            name: _sum(getattr(self, name), getattr(later, name))
            for name in ("waited_s", "others_s", "stolen_s", "throttled_s")
        }
        return replace(
            longer,
            wall_s=self.wall_s + later.wall_s,
            process_s=self.process_s + later.process_s,
            **sums,
        )

    def _share(self, seconds: float | None) -> float:
        return 0.0 if seconds is None else seconds / max(self.wall_s, 1e-9)

    @property
    def lost(self) -> float:
        """An upper bound of the share of time that the measured code lost to all this."""
        if not self.is_busy:
            return 0.0
        # an idle core loses nothing, so all the stolen time may have hit ours
        lost = self._share(self.throttled_s) + self._share(self.stolen_s)
        if self._is_held_up and self.waited_s is not None:
            lost += self._share(self.waited_s)
        elif self._is_held_up:
            lost += self._share(self.others_s) / self.n_cores
        return min(lost, 1.0)

    @property
    def spoils(self) -> bool:
        """Whether so much time was lost that the figures say little about the code."""
        return self.lost >= SPOILS_FROM

    @property
    def _is_held_up(self) -> bool:
        """Whether other programs used a core that this process needed."""
        others = self._share(self.others_s)
        if self.waited_s is not None:
            held_up = self._share(self.waited_s) >= _WAITED_FROM
        else:
            used = others + self._share(self.process_s)
            held_up = self.others_s is not None and used >= _FULL * self.n_cores
        return held_up and others >= _OTHERS_FROM

    def _reasons(self) -> list[str]:
        if self.wall_s < _SHORTEST_S:
            return []
        reasons = []
        others = self._share(self.others_s)
        throttled = self._share(self.throttled_s)
        if throttled >= _THROTTLED_FROM:
            reasons.append(
                f"the container's CPU quota stopped it for {fmt_share(min(throttled, 1.0))} of the "
                f"time{self._quota_words()}"
            )
        stolen = self._share(self.stolen_s) / self.n_cores
        if stolen >= _STOLEN_FROM:
            reasons.append(f"the hypervisor took {fmt_share(stolen)} of the cores' time away")
        if self._is_held_up:
            waited = self._share(self.waited_s)
            had_none = (
                ", and your code was ready but had no core for "
                f"{fmt_share(min(waited, 1.0))} of the time"
                if self.waited_s is not None
                else ""
            )
            cores = "core" if self.n_cores == 1 else "cores"
            reasons.append(f"other programs used {others:.1f} of {self.n_cores} {cores}{had_none}")
        return reasons

    def _quota_words(self) -> str:
        quota = self.throttled
        if quota is None or not quota.n_periods:
            return ""
        cpus = "" if quota.cpus is None else f" of {fmt_number(quota.cpus)} CPUs"
        return (
            f" (the quota{cpus} was used up in {fmt_count(quota.n_throttled)} of "
            f"{plural(quota.n_periods, 'period')})"
        )

    def held_back_by(
        self,
        *,
        copies: float | None = None,
        computing: float | None = None,
        queued: float | None = None,
    ) -> tuple[str, ...]:
        """What made the machine itself slow, one sentence each; empty if nothing explains much.

        Args:
            copies: share of the step in copies between host and GPU; None if unknown.
            computing: share of the step in which the GPU computes for it; None if unknown.
            queued: share of it in which the GPU idles with work queued; None if unknown.
        """
        if self.wall_s < _SHORTEST_S:
            return ()
        host = () if self.host is None else self.host.sentences()
        of_gpus = (gpu.sentences(copies, computing, queued) for gpu in self.gpus)
        return (*host, *(said for sentences in of_gpus for said in sentences))

    def sentence(self) -> str:
        """What was busy, in words; empty if nothing outside slowed the code down."""
        reasons = self._reasons()
        if not reasons:
            return ""
        if self.spoils:
            return f"The machine was busy: {'; '.join(reasons)}."
        longer = self.lost / (1 - self.lost)
        return (
            f"The machine was a little busy: {'; '.join(reasons)}, so times are up to "
            f"{fmt_share(longer)} too long."
        )

    def to_dict(self) -> dict[str, Any]:
        """These facts as plain JSON types."""
        return fields(self, "is_busy", "lost")


class ContentionMark:
    """The counters at its creation; :meth:`until_now` compares them with the current ones.

    Args:
        thread_id: native id (``threading.get_native_id()``) of the measured thread, whose waiting
            counts; by default all threads of the process.
    """

    def __init__(self, thread_id: int | None = None) -> None:
        self._thread_id = thread_id
        self._began_s = time.monotonic()
        self._counters = _Counters.read(thread_id)

    def until_now(self) -> CpuContention:
        """What else the machine has done since this mark was created."""
        wall_s = time.monotonic() - self._began_s
        before, now = self._counters, _Counters.read(self._thread_id)
        process_s = since(before.process_s, now.process_s) or 0.0
        machine_s = since(before.machine_s, now.machine_s)
        waits = [
            waited - before.waited_s.get(thread, 0.0) for thread, waited in now.waited_s.items()
        ]
        throttled = Throttled.between(before.quota, now.quota)
        return CpuContention(
            wall_s=wall_s,
            n_cores=_host.usable_cpus(),
            process_s=process_s,
            waited_s=max(waits) if waits else None,
            others_s=None if machine_s is None else max(machine_s - process_s, 0.0),
            stolen_s=since(before.stolen_s, now.stolen_s),
            throttled_s=None if throttled is None else throttled.stopped_s,
            throttled=throttled,
            host=HostThrottling.between(
                before.pages, now.pages, wall_s=wall_s, process_s=process_s
            ),
            gpus=_throttled(before.gpus, now.gpus, wall_s),
        )


# children that have ended are counted in these, live ones by themselves
_SPENT = ("user", "system", "children_user", "children_system")


@dataclass(frozen=True)
class _Counters:
    process_s: float
    machine_s: float | None
    stolen_s: float | None
    quota: dict[Path, QuotaCounters]
    waited_s: dict[int, float]
    pages: PagesRead
    gpus: tuple[GpuReading, ...] = ()

    @staticmethod
    def read(thread_id: int | None) -> _Counters:
        process_s = _process_s()
        machine_s, stolen_s = cores_busy_s()
        waited_s = _waited_s(thread_id)
        return _Counters(
            process_s, machine_s, stolen_s, read_quota(), waited_s, PagesRead.read(), _gpus()
        )


def _gpus() -> tuple[GpuReading, ...]:
    if in_use().is_cpu:
        return ()
    from perfkit.base.machine.gpu_state import read_gpus

    return read_gpus()


def _throttled(
    before: tuple[GpuReading, ...], now: tuple[GpuReading, ...], wall_s: float
) -> tuple[GpuThrottling, ...]:
    if not now:
        return ()
    from perfkit.base.machine.gpu_state import GpuThrottling

    known = {gpu.index: gpu for gpu in before}
    return tuple(GpuThrottling.between(known.get(gpu.index), gpu, wall_s) for gpu in now)


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


def _process_s() -> float:
    """CPU seconds of this process and its children and, under torchrun, of its other ranks."""
    import psutil

    process = psutil.Process()
    try:
        # the other ranks of a torchrun are not other programs
        parent = process.parent() if "LOCAL_RANK" in os.environ else None
        children = (parent or process).children(recursive=True)
    except psutil.Error:
        children = []
    total_s = 0.0
    for one in (process, *(child for child in children if child.pid != process.pid)):
        try:
            total_s += sum(getattr(one.cpu_times(), name, 0.0) for name in _SPENT)
        except psutil.Error:  # it has just ended
            continue
    return total_s


def cores_busy_s() -> tuple[float | None, float | None]:
    """Seconds that the cores this process may use were busy, and those stolen from them."""
    import psutil

    try:
        per_cpu = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError, NotImplementedError):
        return None, None
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    chosen = [t for i, t in enumerate(per_cpu) if allowed is None or i in allowed] or per_cpu
    if not chosen:
        return None, None
    # user time already includes guest time
    busy = ("user", "nice", "system", "irq", "softirq")
    busy_s = sum(getattr(t, name, 0.0) for t in chosen for name in busy)
    stolen_s = sum(t.steal for t in chosen) if hasattr(chosen[0], "steal") else None
    return busy_s, stolen_s


def _waited_s(thread_id: int | None) -> dict[int, float]:
    """Thread → seconds in which it was ready but not running (Linux)."""
    if not sys.platform.startswith("linux"):
        return {}
    try:
        folders = (_PROC / "self/task").iterdir()
        ids = [int(folder.name) for folder in folders] if thread_id is None else [thread_id]
    except OSError:
        return {}
    waits = {one: run_delay_s(f"self/task/{one}") for one in ids}
    return {one: wait for one, wait in waits.items() if wait is not None}


def run_delay_s(task: str) -> float | None:
    """Seconds for which a task, a folder of ``/proc``, was ready but had no core; None if unknown.

    https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        return int((_PROC / task / "schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # it has ended, or another system
        return None


def this_thread() -> ContentionMark:
    """A mark for the calling thread."""
    return ContentionMark(threading.get_native_id())
