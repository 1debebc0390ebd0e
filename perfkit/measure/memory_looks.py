"""How much memory a run holds, and whether that grows all along it.

Counters that do not disturb the run are read between steps, at looks that are ever further apart.

A cache fills, a heap finds its size: then the growth from one look to the next, over twice as many
steps, ends. What each step adds to goes on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfkit.base.device import in_use
from perfkit.base.process_memory import heap_bytes, heap_use, private_bytes, resident_bytes

# Memory of a process comes and goes by some MiB: what counts, in so many intervals in a row. Two
# are a suspicion; of four a heap that finds its size has no more, of five not even one of which
# nothing but its pages is known.
_LEAST_BYTES = {2: 8 * 2**20, 3: 32 * 2**20, 4: 64 * 2**20, 5: 256 * 2**20}
# Until so many steps are over, what grows is the set-up.
_FROM_STEP = 4
# Any heap with large blocks keeps some hundred MiB.
_LEAST_FREE_BYTES = 2**28
# Each of them grows by so much of what all of it would have it grow.
_OF_THE_RATE = 0.125

Kind = Literal["allocated", "resident"]

_LABELS: dict[Kind, str] = {
    "allocated": "allocated on the GPU (torch's caching allocator, all devices of this process)",
    "resident": "resident size of this process (without loader workers)",
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """One reading.

    Attributes:
        kind: ``"allocated"``: tensors on all GPUs that this process uses;
            ``"resident"``: RAM pages of this process, which shrink late or never when memory is
            freed.
        in_use_bytes: beside a resident size, what malloc has handed out and not got back: exact
            where the resident size is not. None where nobody counted it.
    """

    n_bytes: int
    kind: Kind
    in_use_bytes: int | None = None

    @property
    def label(self) -> str:
        return _LABELS[self.kind]


def footprint() -> Footprint:
    """Read it now: the GPU's allocator where one is in use (0.1 ms a device), else 0.1 ms.

    Never imports torch, never initialises a device, never synchronises.
    """
    # a process may have used the GPU and train on the CPU now: then 0 B there say nothing
    if held := _device_bytes():
        return Footprint(held, "allocated")
    return Footprint(resident_bytes(), "resident", heap_bytes())


def _device_bytes() -> int:
    """What tensors hold on all GPUs that this process uses."""
    device = in_use()
    return 0 if device.is_cpu else sum(map(device.allocated, device.devices()))


@dataclass(frozen=True)
class MemoryLook:
    """Memory between two steps.

    Attributes:
        own_bytes: private pages of this process.
        heap_bytes: what malloc has handed out and not got back; None where that is not known.
        free_bytes: what malloc has got back and keeps, in memory or not.
        worker_bytes: private pages of each worker of its DataLoaders; empty where none was asked.
        heap_ms: that malloc took to answer.
    """

    step: int
    own_bytes: int
    heap_bytes: int | None = None
    free_bytes: int = 0
    device_bytes: int = 0
    worker_bytes: tuple[int, ...] = ()
    heap_ms: float = 0.0


@dataclass(frozen=True)
class Rise:
    """Memory that grew from look to look; and the steps (or batches) before the first and last."""

    first: int
    last: int
    before_bytes: int
    after_bytes: int

    @property
    def per_step(self) -> float:
        """Bytes a step."""
        return (self.after_bytes - self.before_bytes) / (self.last - self.first)


def rise(
    looks: Sequence[tuple[int, int]], *, intervals: int = 3, least_bytes: int | None = None
) -> Rise | None:
    """By how much memory grew, if it did to the end; None where it did not.

    Args:
        intervals: it must have grown in so many of the last ones, 2 to 5.
        least_bytes: by so much; by default by what comes and goes in a process.
    """
    if len(looks) <= intervals:
        return None
    (first, before), (last, after) = looks[0], looks[-1]
    if after - before < (_LEAST_BYTES[intervals] if least_bytes is None else least_bytes):
        return None
    found = Rise(first, last, before, after)
    least = _OF_THE_RATE * found.per_step
    pairs = itertools.pairwise(looks[-intervals - 1 :])
    return found if all(y - x >= least * (b - a) for (a, x), (b, y) in pairs) else None


def look(step: int, *, workers: bool = False, heap: bool = True) -> MemoryLook:
    """Look at memory now: workers take some ms each, and malloc on a heap with many holes."""
    began_s = time.perf_counter()
    used, free = (heap_use() if heap else None) or (None, 0)
    heap_ms = (time.perf_counter() - began_s) * 1e3
    of_workers: Sequence[int] = ()
    if workers:
        from perfkit.base.machine.worker_memory import private_bytes_of_workers

        of_workers = private_bytes_of_workers()
    return MemoryLook(
        step, private_bytes(), used, free, _device_bytes(), tuple(of_workers), heap_ms
    )


def own_rise(
    looks: Sequence[MemoryLook], *, intervals: int = 3, first: int = _FROM_STEP
) -> tuple[Rise | None, str]:
    """By how much the memory of this process grows, or of its GPUs; and whose that is.

    What malloc has handed out is exact. Other memory counts only beyond all that malloc keeps
    free: pages of that come and go.
    """
    later = [one for one in looks if one.step >= first]
    on_device = rise([(x.step, x.device_bytes) for x in later], intervals=intervals)
    if on_device is not None:
        return on_device, "the GPU"
    heap = [(x.step, x.heap_bytes) for x in later if x.heap_bytes is not None]
    found = rise(heap, intervals=intervals)
    if found is None:
        found = rise([(x.step, x.own_bytes - x.free_bytes) for x in later], intervals=intervals)
        if found and found.after_bytes < later[0].own_bytes + _LEAST_BYTES[intervals]:
            found = None
    return found, "this process"


def free_rise(looks: Sequence[MemoryLook]) -> Rise | None:
    """By how much what malloc keeps of freed memory grows."""
    later = [(x.step, x.free_bytes) for x in looks if x.step >= _FROM_STEP]
    found = rise(later, intervals=4)
    enough = found is not None and found.after_bytes - found.before_bytes >= _LEAST_FREE_BYTES
    return found if enough else None


def of_workers(looks: Sequence[MemoryLook]) -> list[tuple[int, int]]:
    """Steps and bytes of all workers, where they were asked."""
    return [(x.step, sum(x.worker_bytes)) for x in looks if x.worker_bytes]


def may_grow(looks: Sequence[MemoryLook]) -> bool:
    own, _ = own_rise(looks, intervals=2)
    return bool(own or free_rise(looks) or rise(of_workers(looks)))


def tree_rise(looks: Sequence[MemoryLook]) -> tuple[Rise | None, int]:
    """From what this process and its loaders' workers grew to what, and how many these are."""
    n = max((len(x.worker_bytes) for x in looks), default=0)
    alike = [x for x in looks if x.step >= _FROM_STEP and len(x.worker_bytes) == n]
    if len(alike) < 2:
        return None, n
    before, after = (x.own_bytes + sum(x.worker_bytes) for x in (alike[0], alike[-1]))
    return Rise(alike[0].step, alike[-1].step, before, after), n
