"""Copies and memsets of the device: direction, memory, bytes, rate, hidden under compute or not."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import device_rows, is_communication, together
from perfkit.trace.read.intervals import covered_ns, union
from perfkit.trace.read.steps import Steps, find_steps

_KIND = re.compile(r"\b(HtoD|DtoH|DtoD|PtoP|HtoH)\b(?: \((\w+) -> (\w+)\))?")
_DIRECTIONS = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "within the device",
    "PtoP": "device to device",
    "HtoH": "host to host",
}


@dataclass(frozen=True)
class Copy:
    """All copies of one kind inside the steps.

    Attributes:
        direction: ``host to device``, ``device to host``, ``within the device``, ``device to
            device``, ``host to host``, ``memset`` or ``unknown``.
        memory: of the host's side: ``pageable``, ``pinned``, or ``not recorded`` (ROCm);
            empty where no host memory takes part.
        count: copies, all steps together.
        n_bytes: bytes of those whose size was recorded; None where none was.
        busy_us: time on the device, in µs, all steps together.
        overlapped_us: of this, the time in which the same device computed, in µs.
        rate_gb_per_s: 10⁹ bytes per second while copying; None without sizes.
    """

    direction: str
    memory: str
    count: int
    n_bytes: int | None
    busy_us: float
    overlapped_us: float
    rate_gb_per_s: float | None

    @property
    def overlapped_share(self) -> float:
        """Share of the copies' time that computing hid."""
        return self.overlapped_us / self.busy_us if self.busy_us else 0.0


@dataclass(frozen=True)
class Copies(Shown):
    """The device's copies, the longest kind first.

    Attributes:
        kinds: one entry per kind.
    """

    kinds: tuple[Copy, ...]
    n_steps: int
    warnings: tuple[str, ...] = ()


def copy_kind(name: str) -> tuple[str, str]:
    """Direction and host memory of a copy with this name, as in :class:`Copy`."""
    if name.startswith("Memset"):
        return "memset", ""
    found = _KIND.search(name)
    if not found:
        return "unknown", "not recorded"
    kind, source, target = found.groups()
    host = {"HtoD": source, "DtoH": target}.get(kind)
    if kind not in ("HtoD", "DtoH"):
        return _DIRECTIONS[kind], ""
    memory = (host or "").lower()
    return _DIRECTIONS[kind], memory if memory in ("pageable", "pinned") else "not recorded"


@question("copies", "What was copied, how fast, and was it hidden behind computing?")
def copies(trace: Trace, steps: Steps | None = None) -> Copies:
    """The copies that the steps launched, by direction and memory."""
    steps = find_steps(trace) if steps is None else steps
    rows, _ = device_rows(trace, steps, Category.MEMCPY, Category.MEMSET)
    start, end = trace.start_ns, trace.end_ns
    compute = trace.is_a(Category.KERNEL) & ~trace.named(is_communication)
    hidden = np.zeros(len(rows), dtype=np.int64)
    for device in np.unique(trace.device[rows]):
        here = trace.device[rows] == device
        busy = compute & (trace.device == device)
        at = rows[here]
        hidden[here] = covered_ns(union(start[busy], end[busy]), start[at], end[at])
    by_name = {int(i): copy_kind(trace.names[i]) for i in np.unique(trace.name_id[rows])}
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name_id, kind in by_name.items():
        groups[kind].append(name_id)
    found = []
    for (direction, memory), ids in groups.items():
        chosen = np.isin(trace.name_id[rows], ids)
        at = rows[chosen]
        dur = end[at] - start[at]
        sized = trace.n_bytes[at] >= 0
        n_bytes, sized_ns = int(trace.n_bytes[at][sized].sum()), int(dur[sized].sum())
        found.append(
            Copy(
                direction=direction,
                memory=memory,
                count=len(at),
                n_bytes=n_bytes if sized.any() else None,
                busy_us=int(dur.sum()) / 1e3,
                overlapped_us=int(hidden[chosen].sum()) / 1e3,
                rate_gb_per_s=n_bytes / sized_ns if sized_ns else None,
            )
        )
    doubts = [] if found else ["no copy was recorded"]
    if any(c.n_bytes is None for c in found):
        doubts.append("the trace does not say how many bytes some kinds of copies moved")
    return Copies(
        tuple(sorted(found, key=lambda c: (-c.busy_us, c.direction))),
        len(steps),
        together(steps.warnings, doubts),
    )
