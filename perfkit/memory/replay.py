"""What the caching allocator would do with recorded requests under other settings: *simulated*.

The history of one run, recorded on a GPU or counted on CPU tensors, answers several questions:
what fragments, what ``expandable_segments`` or a smaller GPU would change. Counts and bytes only;
times are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.machine import Provenance, stamp
from perfkit.memory.caching_allocator import AllocatorSettings, CachingAllocator, OutOfReserveError
from perfkit.memory.requests import Requests


@dataclass(frozen=True)
class Mark:
    """The allocator at a mark, usually the end of a step. Sizes in bytes.

    Attributes:
        allocated_bytes, reserved_bytes: then.
        highest_allocated_bytes: the most since the mark before.
        highest_reserved_bytes, lowest_reserved_bytes: the most and the least since then.
        n_device_allocs, n_device_frees: calls since the beginning.
        n_retries: since the beginning.
    """

    allocated_bytes: int
    reserved_bytes: int
    highest_allocated_bytes: int
    highest_reserved_bytes: int
    lowest_reserved_bytes: int
    n_device_allocs: int
    n_device_frees: int
    n_retries: int


@dataclass(frozen=True)
class Replayed(Shown):
    """What a simulated allocator did. Sizes in bytes; counters are those of torch.

    Attributes:
        settings: as in ``PYTORCH_ALLOC_CONF``; ``"default"`` if none.
        limit_bytes: what it could reserve; None for no limit.
        device, source: of the requests.
        n_allocs: requests that were satisfied.
        peak_allocated_bytes, peak_reserved_bytes: in blocks in use (rounded), and in segments.
        allocated_bytes, reserved_bytes, requested_bytes: at the end.
        inactive_split_bytes: at the end, free in segments that are partly in use.
        n_segments: at the end; those that are expandable do not count, as in torch.
        n_device_allocs, n_device_frees: calls of cudaMalloc and cudaFree, or their likes.
        n_retries: times that the cache was emptied for a request.
        n_ooms: 1 if a request failed; the replay ends there.
        marks: one for each mark that was reached.
        failed_at_mark: marks before the request that failed; None if none did.
        failed_bytes: what that request asked for.
        provenance: where and when this was simulated.
    """

    settings: str
    limit_bytes: int | None
    device: str
    source: str
    n_allocs: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    requested_bytes: int
    inactive_split_bytes: int
    n_segments: int
    n_device_allocs: int
    n_device_frees: int
    n_retries: int
    n_ooms: int
    marks: tuple[Mark, ...]
    failed_at_mark: int | None
    failed_bytes: int | None
    provenance: Provenance

    def n_device_allocs_after(self, mark: int) -> int:
        """Calls of cudaMalloc after so many marks."""
        if not 0 < mark <= len(self.marks):
            raise UsageError(f"there are {len(self.marks)} marks; give one of them, not {mark}")
        return self.n_device_allocs - self.marks[mark - 1].n_device_allocs


def replay(
    requests: Requests,
    settings: str | AllocatorSettings = "default",
    *,
    limit_bytes: int | None = None,
    empty_cache: bool = False,
) -> Replayed:
    """Give recorded requests to a simulated caching allocator.

    Args:
        requests: from :mod:`perfkit.memory.requests`.
        settings: ``"default"``, or options as in ``PYTORCH_ALLOC_CONF``.
        limit_bytes: what it may reserve, as ``torch.cuda.set_per_process_memory_fraction`` sets it.
        empty_cache: whether ``torch.cuda.empty_cache()`` is called at each mark.

    Raises:
        UsageError: a setting that is not simulated, or requests that do not fit together.
    """
    chosen = settings if isinstance(settings, AllocatorSettings) else None
    chosen = chosen or AllocatorSettings.parse(str(settings))
    allocator = CachingAllocator(chosen, limit_bytes=limit_bytes)
    living: dict[int, Any] = {}
    marks: list[Mark] = []
    highest_allocated = highest = 0
    lowest: int | None = None
    n_allocs = 0
    failed: int | None = None
    for entry in requests.entries:
        if entry.what == "alloc":
            if not entry.nbytes:
                continue
            try:
                living[entry.block] = allocator.malloc(entry.nbytes, entry.stream)
            except OutOfReserveError:
                failed = entry.nbytes
                break
            n_allocs += 1
        elif entry.what == "free":
            block = living.pop(entry.block, None)
            if block is not None:
                allocator.free(block)
        elif empty_cache:
            allocator.empty_cache()
        reserved = allocator.reserved_bytes
        highest = max(highest, reserved)
        highest_allocated = max(highest_allocated, allocator.allocated_bytes)
        lowest = reserved if lowest is None else min(lowest, reserved)
        if entry.what == "mark":
            marks.append(
                Mark(
                    allocator.allocated_bytes,
                    reserved,
                    highest_allocated,
                    highest,
                    lowest,
                    allocator.n_device_allocs,
                    allocator.n_device_frees,
                    allocator.n_retries,
                )
            )
            highest_allocated, highest, lowest = allocator.allocated_bytes, reserved, None
    return Replayed(
        settings=str(chosen),
        limit_bytes=limit_bytes,
        device=requests.device,
        source=requests.source,
        n_allocs=n_allocs,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        requested_bytes=allocator.requested_bytes,
        inactive_split_bytes=allocator.inactive_split_bytes,
        n_segments=allocator.n_segments,
        n_device_allocs=allocator.n_device_allocs,
        n_device_frees=allocator.n_device_frees,
        n_retries=allocator.n_retries,
        n_ooms=allocator.n_ooms,
        marks=tuple(marks),
        failed_at_mark=None if failed is None else len(marks),
        failed_bytes=failed,
        provenance=stamp("simulated"),
    )
