"""Did the machine itself run slowly during a measurement: clocks, memory, disks, the GPU?

:mod:`~perfkit.base.machine.busy` knows what *others* took away. This module knows what made the
processor, the memory or the GPU slower than they are. Counters are read before and after; nothing
runs in between. A sentence is said only for what explains lost time; each threshold says why.

What the system does not report stays None: a virtual machine shows no clocks, and only Linux shows
most of the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.machine._host import _words
from perfkit.base.plain import fields
from perfkit.base.words import fmt_bytes, fmt_number, fmt_s, fmt_share, plural

_ROOT = Path("/")
# Shorter measurements are dominated by single events.
_SHORTEST_S = 0.2
# Clocks of cores that have little to do are low on purpose.
_WORKS_FROM = 0.5
# A processor with all its cores at work runs below its highest clock, which is that of a single
# core: commonly at 70 to 80 % of it. Below its base clock it is held back, whatever runs; where
# the base clock is unknown, so it is below this share of the highest.
_SLOW_CLOCK = 0.6
# Cores that were throttled for heat for this share of the time ran measurably slower.
_HOT_FROM = 0.02
# One page from an NVMe SSD takes 0.1 ms (4 KiB at random, queue depth 1); from other disks longer.
_PAGE_READ_S = 1e-4
_FAULTS_FROM = 0.02
# If a tenth of the faults are the machine's swap-ins, memory was short; else files were read.
_SWAP_SHARE = 0.1
# The kernel's own account of waits for memory: share of the time in which some thread waited.
_STALLED_FROM = 0.05


@dataclass(frozen=True)
class HostReading:
    """Counters and clocks at one moment; None for what the system does not report.

    Attributes:
        clock_mhz: of the fastest core that this process may use.
        base_mhz, max_mhz: that core's base clock and its highest one.
        governor: what chooses that core's clock, e.g. ``"powersave"``.
        hot_s: time for which each core was throttled for heat, since boot.
        n_hot: how often any core was.
        major_faults: of this process and its ended children: pages that had to come from a disk.
        swapped_in_bytes, swapped_out_bytes: of the whole machine.
        memory_stalled_s: time in which some thread waited for memory
            (https://docs.kernel.org/accounting/psi.html).
    """

    clock_mhz: float | None = None
    base_mhz: float | None = None
    max_mhz: float | None = None
    governor: str = ""
    hot_s: tuple[float, ...] = ()
    n_hot: int | None = None
    major_faults: int | None = None
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    memory_stalled_s: float | None = None

    @classmethod
    def read(cls, root: Path = _ROOT) -> HostReading:
        """Read them now; takes 0.1 ms and some 10 µs for each core."""
        cores = _cores(root)
        clock_mhz, base_mhz, max_mhz, governor = _clocks(cores)
        hot_s, n_hot = _heat(cores)
        swapped_in, swapped_out = _swapped(root)
        return cls(
            clock_mhz,
            base_mhz,
            max_mhz,
            governor,
            hot_s,
            n_hot,
            _major_faults(root),
            swapped_in,
            swapped_out,
            stalled_s(root, "memory"),
        )


@dataclass(frozen=True)
class HeldBack:
    """What held the machine back during a measurement; None for what the system does not report.

    Attributes:
        wall_s: wall time of the measurement.
        process_s: CPU time of this process and its children in it.
        clock_mhz, base_mhz, max_mhz, governor: at its end; see :class:`HostReading`.
        hot_s: for how long the hottest core was throttled for heat.
        n_hot: how often any core was.
        major_faults: pages of this process that had to come from a disk.
        swapped_in_bytes, swapped_out_bytes: of the whole machine.
        memory_stalled_s: time in which some thread of the machine waited for memory.
    """

    wall_s: float
    process_s: float = 0.0
    clock_mhz: float | None = None
    base_mhz: float | None = None
    max_mhz: float | None = None
    governor: str = ""
    hot_s: float | None = None
    n_hot: int | None = None
    major_faults: int | None = None
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    memory_stalled_s: float | None = None

    @classmethod
    def between(
        cls, before: HostReading, now: HostReading, *, wall_s: float, process_s: float
    ) -> HeldBack:
        """The difference of two readings; clocks are those of the second one."""
        return cls(
            wall_s=wall_s,
            process_s=process_s,
            clock_mhz=now.clock_mhz,
            base_mhz=now.base_mhz,
            max_mhz=now.max_mhz,
            governor=now.governor,
            hot_s=_hottest_s(before.hot_s, now.hot_s),
            n_hot=_count_since(before.n_hot, now.n_hot),
            major_faults=_count_since(before.major_faults, now.major_faults),
            swapped_in_bytes=_count_since(before.swapped_in_bytes, now.swapped_in_bytes),
            swapped_out_bytes=_count_since(before.swapped_out_bytes, now.swapped_out_bytes),
            memory_stalled_s=_since(before.memory_stalled_s, now.memory_stalled_s),
        )

    def sentences(self) -> tuple[str, ...]:
        """What explains lost time, in words, one sentence each; empty if nothing does."""
        if self.wall_s < _SHORTEST_S:
            return ()
        return tuple(filter(None, (self._heat(), self._clock(), self._memory())))

    def to_dict(self) -> dict[str, Any]:
        """These facts as plain JSON types."""
        return fields(self, sentences=self.sentences())

    def _share(self, seconds: float | None) -> float:
        return 0.0 if seconds is None else seconds / max(self.wall_s, 1e-9)

    def _heat(self) -> str:
        hot = self._share(self.hot_s)
        if hot < _HOT_FROM:
            return ""
        times = "" if not self.n_hot else f", {plural(self.n_hot, 'time')}"
        return (
            f"The processor throttled itself for heat for {fmt_share(min(hot, 1.0))} of the "
            f"time{times}: it needs better cooling, or less work at once."
        )

    def _clock(self) -> str:
        clock, highest = self.clock_mhz, self.max_mhz
        if not clock or not highest or self._share(self.process_s) < _WORKS_FROM:
            return ""
        base = self.base_mhz
        if clock >= (base if base else _SLOW_CLOCK * highest):
            return ""
        below = f", below its base clock of {_ghz(base)}" if base else ""
        why = f" (governor: {self.governor})" if self.governor else ""
        return (
            f"The fastest core ran at {_ghz(clock)} of at most {_ghz(highest)} when this "
            f"ended{below}: a power limit, heat or a power-saving mode{why} slows everything "
            "the host does."
        )

    def _memory(self) -> str:
        faults = self.major_faults or 0
        read_s = faults * _PAGE_READ_S
        came_back = self.swapped_in_bytes or 0
        pages = plural(faults, "page")
        if self._share(read_s) >= _FAULTS_FROM:
            waited = f"at least {fmt_s(read_s)}, at 0.1 ms a page from an SSD"
            if came_back >= _SWAP_SHARE * faults * _page_bytes():
                return (
                    f"Memory was short: {pages} of this process had to be read from the disk "
                    f"again ({waited}), and the machine swapped {fmt_bytes(came_back)} in and "
                    f"{fmt_bytes(self.swapped_out_bytes or 0)} out. Use less memory, or end other "
                    "programs."
                )
            return (
                f"{pages} of mapped files came from the disk ({waited}): the first look at a "
                "memory-mapped data set or library, or memory too short to keep them. A second "
                "run shows which."
            )
        stalled = self._share(self.memory_stalled_s)
        if stalled < _STALLED_FROM:
            return ""
        return (
            f"Memory was short: programs waited for it for {fmt_share(min(stalled, 1.0))} of the "
            "time. Use less memory, or end other programs."
        )


def stalled_s(root: Path, what: str) -> float | None:
    """Seconds since boot in which some thread waited for ``"memory"``, ``"io"`` or ``"cpu"``."""
    try:
        text = (root / "proc/pressure" / what).read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / 1e6 if total.isdigit() else None
    return None


def _cores(root: Path) -> list[Path]:
    """The folders of the cores that this process may use."""
    folder = root / "sys/devices/system/cpu"
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return [folder / f"cpu{index}" for index in sorted(allowed)]


def _clocks(cores: list[Path]) -> tuple[float | None, float | None, float | None, str]:
    """Clock, base clock and highest clock of the fastest core in MHz, and its governor."""
    fastest: tuple[float, Path] | None = None
    for core in cores:
        clock = _number(core / "cpufreq/scaling_cur_freq")  # kHz
        if clock and (fastest is None or clock > fastest[0]):
            fastest = clock, core / "cpufreq"
    if fastest is None:
        return None, None, None, ""
    khz, folder = fastest
    base, highest = _number(folder / "base_frequency"), _number(folder / "cpuinfo_max_freq")
    words = _words(folder / "scaling_governor")
    return khz / 1e3, _mhz(base), _mhz(highest), words[0] if words else ""


def _hottest_s(before: tuple[float, ...], now: tuple[float, ...]) -> float | None:
    """The longest that a core was throttled between two readings of the same cores."""
    if not now or len(before) != len(now):
        return None
    return max(max(n - b, 0.0) for b, n in zip(before, now, strict=True))


def _heat(cores: list[Path]) -> tuple[tuple[float, ...], int | None]:
    """Seconds for which each core was throttled, and how often all of them were."""
    times_ms = [_number(c / "thermal_throttle/core_throttle_total_time_ms") for c in cores]
    counts = [_number(c / "thermal_throttle/core_throttle_count") for c in cores]
    known = [int(n) for n in counts if n is not None]
    return tuple(t / 1e3 for t in times_ms if t is not None), (sum(known) if known else None)


def _major_faults(root: Path) -> int | None:
    """Major faults of this process and its children that have ended: proc_pid_stat(5), 12, 13."""
    try:
        # the name in parentheses may contain spaces
        fields = (root / "proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[9]) + int(fields[10])
    except (OSError, ValueError, IndexError):
        return None


def _swapped(root: Path) -> tuple[int | None, int | None]:
    """Bytes that the machine has swapped in and out."""
    try:
        text = (root / "proc/vmstat").read_text()
    except OSError:
        return None, None
    pages = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("pswpin", "pswpout") and value.isdigit():
            pages[name] = int(value) * _page_bytes()
    return pages.get("pswpin"), pages.get("pswpout")


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _number(path: Path) -> float | None:
    words = _words(path)
    return float(words[0]) if words and words[0].isdigit() else None


def _mhz(khz: float | None) -> float | None:
    return None if khz is None else khz / 1e3


def _ghz(mhz: float) -> str:
    return f"{fmt_number(mhz / 1e3)} GHz"


def _since(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(now - before, 0.0)


def _count_since(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(now - before, 0)
