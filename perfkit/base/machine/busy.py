"""Was the machine busy with something else during a measurement?

A preempted step looks slow, and a trace does not show why. The operating system does: how long the
measured thread was ready but had no core, how much of the allowed cores other programs used, how
long the container's quota stopped everything, how much time the hypervisor stole. Take a
:class:`BusyMark` before a measurement and query it afterwards; it costs a few milliseconds.

A fact is None if the system does not report it (macOS and Windows report few).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfkit.base.machine import _host
from perfkit.base.machine.gpu_state import GpuHeldBack, GpuReading, read_gpus
from perfkit.base.machine.held_back import HeldBack, HostReading
from perfkit.base.machine.quota import QuotaCounters, Throttled, read_quota
from perfkit.base.plain import fields
from perfkit.base.words import fmt_count, fmt_number, fmt_share, plural

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
class Busy:
    """What else the machine did during a measurement; None for what the system does not report.

    Attributes:
        wall_s: wall time of the measurement.
        n_cores: cores that this process may use.
        process_s: CPU time of this process, its children and, under torchrun, its other ranks.
        waited_s: how long the most delayed thread was ready but not running.
        others_s: CPU time of other programs on the cores that this process may use.
        involuntary_switches: how often this process was preempted.
        stolen_s: time on those cores that the hypervisor gave to other machines.
        throttled_s: time for which the container's quota stopped this process.
        load: mean number of runnable threads of the whole machine over the last minute.
        throttled: that quota, and in how many of its periods it was used up.
        held_back: what made the machine itself slow; not part of :attr:`lost`.
        gpus: the same of the GPUs on which this process has a context.
    """

    wall_s: float
    n_cores: int
    process_s: float
    waited_s: float | None = None
    others_s: float | None = None
    involuntary_switches: int | None = None
    stolen_s: float | None = None
    throttled_s: float | None = None
    load: float | None = None
    throttled: Throttled | None = None
    held_back: HeldBack | None = None
    gpus: tuple[GpuHeldBack, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether something outside this process slowed the measured code down."""
        return bool(self._reasons())

    def and_then(self, later: Busy) -> Busy:
        """Both measurements as one; what held the machine back is that of the longer one."""
        longer = self if self.wall_s >= later.wall_s else later
        sums = {
            name: _sum(getattr(self, name), getattr(later, name))
            for name in ("waited_s", "others_s", "involuntary_switches", "stolen_s", "throttled_s")
        }
        return replace(
            longer,
            wall_s=self.wall_s + later.wall_s,
            process_s=self.process_s + later.process_s,
            load=later.load,
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
                f"the container's CPU quota stopped it for {_percent(min(throttled, 1.0))} of the "
                f"time{self._quota_words()}"
            )
        stolen = self._share(self.stolen_s) / self.n_cores
        if stolen >= _STOLEN_FROM:
            reasons.append(f"the hypervisor took {_percent(stolen)} of the cores' time away")
        if self._is_held_up:
            waited = self._share(self.waited_s)
            had_none = (
                ", and your code was ready but had no core for "
                f"{_percent(min(waited, 1.0))} of the time"
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
        host = () if self.held_back is None else self.held_back.sentences()
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
            f"{_percent(longer)} too long."
        )

    def to_dict(self) -> dict[str, Any]:
        """These facts as plain JSON types."""
        return fields(self, "is_busy", "lost")


class BusyMark:
    """The counters at its creation; :meth:`until_now` compares them with the current ones.

    Args:
        thread_id: native id (``threading.get_native_id()``) of the measured thread, whose waiting
            counts; by default all threads of the process.
    """

    def __init__(self, thread_id: int | None = None) -> None:
        self._thread_id = thread_id
        self._began_s = time.monotonic()
        self._counters = _Counters.read(thread_id)

    def until_now(self) -> Busy:
        """What else the machine has done since this mark was created."""
        wall_s = time.monotonic() - self._began_s
        before, now = self._counters, _Counters.read(self._thread_id)
        process_s = _since(before.process_s, now.process_s) or 0.0
        machine_s = _since(before.machine_s, now.machine_s)
        waits = [
            waited - before.waited_s.get(thread, 0.0) for thread, waited in now.waited_s.items()
        ]
        switches = _since(before.switches, now.switches)
        throttled = Throttled.between(before.quota, now.quota)
        gpus_before = {gpu.index: gpu for gpu in before.gpus}
        return Busy(
            wall_s=wall_s,
            n_cores=_host.usable_cpus(),
            process_s=process_s,
            waited_s=max(waits) if waits else None,
            others_s=None if machine_s is None else max(machine_s - process_s, 0.0),
            involuntary_switches=None if switches is None else int(switches),
            stolen_s=_since(before.stolen_s, now.stolen_s),
            throttled_s=None if throttled is None else throttled.stopped_s,
            load=_load(),
            throttled=throttled,
            held_back=HeldBack.between(before.host, now.host, wall_s=wall_s, process_s=process_s),
            gpus=tuple(
                GpuHeldBack.between(gpus_before.get(gpu.index), gpu, wall_s) for gpu in now.gpus
            ),
        )


@dataclass(frozen=True)
class _Counters:
    process_s: float
    machine_s: float | None
    stolen_s: float | None
    quota: dict[Path, QuotaCounters]
    switches: float | None
    waited_s: dict[int, float]
    host: HostReading
    gpus: tuple[GpuReading, ...] = ()

    @staticmethod
    def read(thread_id: int | None) -> _Counters:
        process_s, switches = _process()
        machine_s, stolen_s = cores_busy_s()
        return _Counters(
            process_s,
            machine_s,
            stolen_s,
            read_quota(),
            switches,
            _waited_s(thread_id),
            HostReading.read(),
            read_gpus(),
        )


def _sum(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one + other


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(now - before, 0.0)


def _process() -> tuple[float, float | None]:
    """CPU seconds of this process and its children, and how often it lost its core."""
    import psutil

    process = psutil.Process()
    total_s = 0.0
    times = process.cpu_times()
    # ended children are counted here, live ones below
    total_s += times.user + times.system
    total_s += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    try:
        # the other ranks of a torchrun are not other programs
        parent = process.parent() if "LOCAL_RANK" in os.environ else None
        children = (parent or process).children(recursive=True)
    except psutil.Error:
        children = []
    children = [child for child in children if child.pid != process.pid]
    for child in children:
        try:
            spent = child.cpu_times()
            total_s += spent.user + spent.system
            total_s += getattr(spent, "children_user", 0.0) + getattr(spent, "children_system", 0.0)
        except psutil.Error:  # it has just ended
            continue
    try:
        switches: float | None = float(process.num_ctx_switches().involuntary)
    except (psutil.Error, NotImplementedError, AttributeError):
        switches = None
    return total_s, switches


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
    folder = Path("/proc/self/task")
    try:
        ids = [thread_id] if thread_id is not None else [int(p.name) for p in folder.iterdir()]
    except OSError:
        return {}
    found = {}
    for one in ids:
        try:
            found[one] = int((folder / str(one) / "schedstat").read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            continue
    return found


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _percent(share: float) -> str:
    return fmt_share(share)


def this_thread() -> BusyMark:
    """A mark for the calling thread."""
    return BusyMark(threading.get_native_id())
