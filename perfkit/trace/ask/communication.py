"""Collectives: time, bytes where recorded, bandwidth, and how much computing hides.

Bus bandwidth follows nccl-tests (``doc/PERFORMANCE.md``): bytes over time, times 2(n-1)/n for an
all-reduce and (n-1)/n for all-gather, reduce-scatter and all-to-all among n ranks, so that it can
be held against the links' own speed. A collective's time contains the wait for the slowest rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import Category, Collective, Trace
from perfkit.trace.read.events import device_rows, is_communication, together
from perfkit.trace.read.intervals import covered_ns, union
from perfkit.trace.read.steps import Steps, find_steps

_ITEM_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "short": 2, "half": 2, "bfloat16": 2, "float16": 2, "int": 4, "float": 4, "int32": 4,
    "float32": 4, "long": 8, "double": 8, "int64": 8, "float64": 8,
}  # fmt: skip
_KIND = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CollectiveTime:
    """All collectives of one kind, type and size.

    Attributes:
        name: ``allreduce``, ``allgather``, …; else the kernel's name.
        dtype: type of the elements; empty if not recorded.
        message_bytes: bytes of one collective, the larger of in and out; None if not recorded.
        group_size: ranks that take part; None if not recorded.
        count: all steps together.
        total_us: time on the device in µs, all steps together.
        overlapped_us: of this, the time in which the device computed too, in µs.
        bus_gb_per_s: bus bandwidth in 10⁹ bytes per second; None where not recorded.
    """

    name: str
    dtype: str
    message_bytes: int | None
    group_size: int | None
    count: int
    total_us: float
    overlapped_us: float
    bus_gb_per_s: float | None

    @property
    def exposed_us(self) -> float:
        """Time in µs that no computing hid."""
        return self.total_us - self.overlapped_us


@dataclass(frozen=True)
class Communication(Shown):
    """The collectives of the steps, the longest first.

    Attributes:
        collectives: one entry per kind, type and size.
        busy_us: time in µs in which any collective ran, all steps together.
        overlapped_us: of this, the time in which the device computed too, in µs.
        wall_us: length of all steps in µs.
    """

    collectives: tuple[CollectiveTime, ...]
    busy_us: float
    overlapped_us: float
    wall_us: float
    n_steps: int
    warnings: tuple[str, ...] = ()

    @property
    def overlapped_share(self) -> float:
        """Share of the communication that computing hid; 0.0 without communication."""
        return self.overlapped_us / self.busy_us if self.busy_us else 0.0


def message_bytes(c: Collective) -> int | None:
    """Bytes of a collective: the larger of what goes in and what comes out; None if unknown."""
    size = _ITEM_BYTES.get(c.dtype.lower())
    elements = max(c.n_in, c.n_out)
    return size * elements if size and elements >= 0 else None


def bus_factor(name: str, group_size: int) -> float | None:
    """nccl-tests' factor from bytes over time to bus bandwidth; None for other collectives."""
    if group_size < 1:
        return None
    found = _KIND.search(name)
    kind = found.group(1).lower().replace("_", "") if found else ""
    n = group_size
    if kind == "allreduce":
        return 2 * (n - 1) / n
    if kind in ("allgather", "reducescatter", "alltoall"):
        return (n - 1) / n
    return 1.0 if kind else None


@question("communication", "What do collectives cost, and does computing hide them?")
def communication(trace: Trace, steps: Steps | None = None) -> Communication:
    """The collectives that the steps launched, and how much of them computing hid."""
    steps = find_steps(trace) if steps is None else steps
    rows, _ = device_rows(trace, steps, Category.KERNEL)
    rows = rows[trace.name_table(is_communication)[trace.name_id[rows]]]
    start, end = trace.start_ns, trace.end_ns
    compute = trace.is_a(Category.KERNEL) & ~trace.named(is_communication)
    hidden = np.zeros(len(rows), dtype=np.int64)
    busy_ns = hidden_ns = 0
    for device in np.unique(trace.device[rows]):
        at = rows[trace.device[rows] == device]
        busy = compute & (trace.device == device)
        cover = union(start[busy], end[busy])
        hidden[trace.device[rows] == device] = covered_ns(cover, start[at], end[at])
        talk = union(start[at], end[at])
        busy_ns += talk.total_ns
        hidden_ns += int(covered_ns(cover, talk.start, talk.end).sum())
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for i, (cid, name_id) in enumerate(
        zip(trace.collective_id[rows].tolist(), trace.name_id[rows].tolist(), strict=True)
    ):
        groups[cid, "" if cid >= 0 else _plain_name(trace.names[name_id])].append(i)
    found = []
    for (cid, name), members in groups.items():
        what = trace.collectives[cid] if cid >= 0 else Collective(name)
        dur = int((end - start)[rows[members]].sum())
        size = message_bytes(what)
        factor = bus_factor(what.name, what.group_size)
        found.append(
            CollectiveTime(
                name=what.name,
                dtype=what.dtype,
                message_bytes=size,
                group_size=what.group_size if what.group_size > 0 else None,
                count=len(members),
                total_us=dur / 1e3,
                overlapped_us=int(hidden[members].sum()) / 1e3,
                bus_gb_per_s=(
                    size * len(members) * factor / dur
                    if size is not None and factor is not None and dur
                    else None
                ),
            )
        )
    doubts = [] if found else ["no collective was recorded on a device"]
    if any(c.message_bytes is None for c in found):
        doubts.append("the trace does not say how large some collectives are")
    return Communication(
        collectives=tuple(sorted(found, key=lambda c: (-c.total_us, c.name))),
        busy_us=busy_ns / 1e3,
        overlapped_us=hidden_ns / 1e3,
        wall_us=steps.total_ns / 1e3,
        n_steps=len(steps),
        warnings=together(steps.warnings, doubts),
    )


def _plain_name(kernel: str) -> str:
    found = _KIND.search(kernel)
    return found.group(1).lower().replace("_", "") if found else kernel
