"""Lesson 13: the counters of a real GPU, and of a replay, beside one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from perfkit.base.words import plural
from perfkit.memory.replay import Replayed, replay
from perfkit.memory.requests import Requests


@dataclass(frozen=True)
class AllocatorCounts:
    """What an allocator needed for some steps.

    Attributes:
        allocated_bytes: the most that tensors held at once.
        reserved_bytes: the most that was taken from the device.
        device_allocs: calls of cudaMalloc, or their likes.
        late_allocs: those after the first steps.
        retries: times that the cache was emptied for a request.
        out_of_memory: whether a request failed.
        kind: ``"simulated"`` or ``"exact"``.
    """

    allocated_bytes: int
    reserved_bytes: int
    device_allocs: int
    late_allocs: int
    retries: int
    out_of_memory: bool
    kind: str

    @property
    def ratio(self) -> float:
        """Reserved for each byte that tensors held."""
        return self.reserved_bytes / self.allocated_bytes


def counts_of(found: Replayed, *, first: int = 2) -> AllocatorCounts:
    """Of a replay with a mark for each step; ``first`` steps do not count as late."""
    reached = min(first, len(found.marks))
    return AllocatorCounts(
        allocated_bytes=found.peak_allocated_bytes,
        reserved_bytes=found.peak_reserved_bytes,
        device_allocs=found.n_device_allocs,
        late_allocs=found.n_device_allocs_after(reached) if reached else 0,
        retries=found.n_retries,
        out_of_memory=found.n_ooms > 0,
        kind="simulated",
    )


def table_of(
    requests: Mapping[str, Requests], settings: str = "default", *, limit_bytes: int, first: int = 2
) -> str:
    """What a simulated allocator needs for each, without a limit and with one, as a table.

    Args:
        requests: name → requests with a mark for each step.
        settings: as in ``PYTORCH_ALLOC_CONF``.
        limit_bytes: what it may reserve in the last column.
        first: so many steps do not count as late.
    """
    header = f"{settings:<26} reserved  cudaMalloc  after step {first}  with {{:.2f}} GiB at most"
    lines = [header.format(limit_bytes / 2**30)]
    for name, asked in requests.items():
        free, tight = (replay(asked, settings, limit_bytes=limit) for limit in (None, limit_bytes))
        end = "runs through"
        if tight.failed_at_mark is not None:
            end = f"out of memory in step {tight.failed_at_mark + 1}"
        lines.append(
            f"{name:<26} {free.peak_reserved_bytes / 2**30:4.2f} GiB  {free.n_device_allocs:10}"
            f"  {free.n_device_allocs_after(first):12}  {end}, "
            f"{plural(tight.n_retries, 'retry', 'retries')}"
        )
    return "\n".join(lines)


def counts_here(
    steps: Callable[[Callable[[], None]], object], *, limit_bytes: int | None = None, first: int = 2
) -> AllocatorCounts:
    """Run steps on the GPU, from an empty cache, and read torch's counters.

    Args:
        steps: runs them; calls what it is given after each.
        limit_bytes: what the allocator may reserve meanwhile; lifted afterwards.
        first: so many steps do not count as late.
    """
    device = torch.cuda.current_device()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()
    held = torch.cuda.memory_allocated()
    kept = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    if limit_bytes is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min((kept + limit_bytes) / total, 1.0))
    after_step: list[int] = []
    failed = False
    try:
        steps(lambda: after_step.append(torch.cuda.memory_stats()["num_device_alloc"]))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        failed = True
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    after = torch.cuda.memory_stats()
    allocs = after["num_device_alloc"]
    early = after_step[min(first, len(after_step)) - 1] if after_step else allocs
    return AllocatorCounts(
        allocated_bytes=after["allocated_bytes.all.peak"] - held,
        reserved_bytes=after["reserved_bytes.all.peak"] - kept,
        device_allocs=allocs - before["num_device_alloc"],
        late_allocs=allocs - early,
        retries=after["num_alloc_retries"] - before["num_alloc_retries"],
        out_of_memory=failed,
        kind="exact",
    )
