"""What the CUDA caching allocator did: allocated against reserved, cudaMalloc, segments.

torch's snapshot is turned into plain numbers in the process that recorded it; what is written
to a file is JSON of these numbers, and no pickle is ever read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfkit.base import torch_compat
from perfkit.base.device import here
from perfkit.base.display import Shown
from perfkit.base.errors import MissingError, UsageError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.plain import fields
from perfkit.base.structs import misfit
from perfkit.memory.requests import Requests, requests_of

#: Entries that the allocator keeps; older ones are dropped. One takes some hundred bytes.
MAX_ENTRIES = 100_000
#: Points of the curve, at most.
MAX_POINTS = 400
_FORMAT = 1


@dataclass(frozen=True)
class Segment:
    """One piece of memory taken from the device by cudaMalloc. Sizes in bytes.

    Attributes:
        total_bytes: its size.
        allocated_bytes: in use by tensors.
        largest_free_bytes: the largest single piece of it that is free.
        n_blocks: pieces that it is split into.
        kind: ``small`` or ``large``, the allocator's pool.
    """

    total_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    n_blocks: int
    kind: str


@dataclass(frozen=True)
class AllocatorHistory(Shown):
    """The allocator of one device over a region. Sizes in bytes.

    Attributes:
        device: ``cuda:0``.
        index: number of the entry of each point, rising.
        allocated_bytes, reserved_bytes: requested by tensors (the allocator rounds it up), and
            taken from the device, at each point; of a stretch the entries with the most of each
            are shown.
        n_allocs, n_frees: requests of tensors.
        n_cuda_mallocs, n_cuda_frees: calls to the device, each of which may wait for it.
        n_retries: times that the cache was emptied to satisfy a request; None if not told.
        n_ooms: requests that failed.
        segments: at the end, largest first.
        complete: no older entries were dropped.
        provenance: where and when this was recorded.
    """

    device: str
    index: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    n_allocs: int
    n_frees: int
    n_cuda_mallocs: int
    n_cuda_frees: int
    n_retries: int | None
    n_ooms: int
    segments: tuple[Segment, ...]
    complete: bool
    warnings: tuple[str, ...]
    provenance: Provenance

    @property
    def fragmented_bytes(self) -> int:
        """Free at the end in segments that are partly in use: no other segment can have it."""
        return sum(s.total_bytes - s.allocated_bytes for s in self.segments if s.allocated_bytes)

    @property
    def peak_reserved_bytes(self) -> int:
        """The most reserved at once."""
        return max(self.reserved_bytes, default=0)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most held by tensors at once."""
        return max(self.allocated_bytes, default=0)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, "fragmented_bytes", type="allocator history", format=_FORMAT)


class _Head(Struct):
    """What tells the file of a history from any other."""

    type: Literal["allocator history"]
    format: Literal[1]


def load(path: str | Path) -> AllocatorHistory:
    """Read what ``AllocatorHistory.save("x.json")`` wrote.

    Raises:
        UsageError: the file cannot be read, or is something else.
    """
    try:
        data = Path(path).read_bytes()
        msgspec.json.decode(data, type=_Head)
        found = msgspec.json.decode(data, type=AllocatorHistory)
    except msgspec.DecodeError as error:
        why = misfit(error)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
    else:
        if len(found.index) == len(found.allocated_bytes) == len(found.reserved_bytes):
            return found
        why = "index, allocated_bytes and reserved_bytes are not of one length"
    raise UsageError(
        f"{path} is not an allocator history: {why}; give a file that perfkit's "
        'history.save("x.json") wrote'
    )


class Recorded:
    """What :func:`record` fills when its block ends.

    Attributes:
        history: what the allocator did.
        requests: what tensors asked it for, to be replayed (:mod:`perfkit.memory.replay`).
    """

    def __init__(self) -> None:
        self.history: AllocatorHistory | None = None
        self.requests: Requests | None = None


@contextmanager
def record(device: int | None = None) -> Iterator[Recorded]:
    """Record the allocator of a CUDA device while the ``with`` block runs.

    ``%%gpumem --history`` does this for a cell.

    Args:
        device: its index. By default the one that did most in the block, which need not be
            torch's current one.

    Raises:
        MissingError: there is no CUDA device (use ``%gpumem`` for the CPU's memory), or its
            allocator keeps no history, as cudaMallocAsync.
    """
    gpu = here()
    if not gpu.keeps_history:
        raise MissingError(
            "the allocator's history needs a CUDA device and there is none here; %gpumem alone "
            "counts tensors on a CPU, too"
        )
    current = gpu.current() if device is None else device
    before = {index: gpu.stats(index) for index in {current, *gpu.devices()}}
    recorded = Recorded()
    try:
        torch_compat.start_allocator_history(MAX_ENTRIES)
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        raise MissingError(
            f"the allocator in use here keeps no history ({first}); torch's own does: start "
            "Python without backend:cudaMallocAsync in PYTORCH_ALLOC_CONF"
        ) from error
    try:
        yield recorded
    finally:
        try:
            snapshot = torch_compat.allocator_snapshot()
        finally:
            torch_compat.stop_allocator_history()
        index = _busiest(snapshot, current) if device is None else device
        key = "num_alloc_retries"
        recorded.history = history_of(
            snapshot,
            index,
            n_retries=gpu.stats(index).get(key, 0) - before.get(index, {}).get(key, 0),
            provenance=stamp(device=gpu.name(index)),
        )
        recorded.requests = requests_of(snapshot, index)


def _busiest(snapshot: Mapping[str, Any], current: int) -> int:
    """The device with the most entries; the current one where no other has more."""
    n_entries = dict(enumerate(map(len, snapshot.get("device_traces", ()))))
    return max((current, *n_entries), key=lambda index: n_entries.get(index, 0))


def history_of(
    snapshot: Mapping[str, Any],
    device: int = 0,
    *,
    n_retries: int | None = None,
    provenance: Provenance | None = None,
) -> AllocatorHistory:
    """The numbers of a snapshot as ``torch.cuda.memory`` documents it.

    Args:
        snapshot: ``segments`` and ``device_traces``.
        device: index of the device.
        n_retries: from ``torch.cuda.memory_stats``; a snapshot does not tell.
        provenance: of the recording; measured here and now if left out.
    """
    segments = [s for s in snapshot.get("segments", ()) if s.get("device", device) == device]
    traces: Sequence[Any] = snapshot.get("device_traces", ())
    entries = traces[device] if device < len(traces) else ()
    counts = dict.fromkeys(_EFFECTS, 0)
    moves = []
    for entry in entries:
        action = entry["action"]
        if action in counts:
            counts[action] += 1
            sign_allocated, sign_reserved = _EFFECTS[action]
            moves.append((sign_allocated * entry["size"], sign_reserved * entry["size"]))
    # What was there before the first entry follows from what is there now. Entries tell what was
    # requested, and the end of a block when the device is done with it, so the same is taken of
    # the segments: not their allocated_size, which is rounded and knows nothing of the device.
    allocated = sum(map(_requested_bytes, segments)) - sum(a for a, _ in moves)
    reserved = sum(s["total_size"] for s in segments) - sum(r for _, r in moves)
    states = [(allocated, reserved)]
    for more_allocated, more_reserved in moves:
        allocated, reserved = allocated + more_allocated, reserved + more_reserved
        states.append((allocated, reserved))
    points = _thinned(states)
    warnings = []
    if any(a < 0 or r < 0 for a, r in states):
        warnings.append("entries and segments do not add up: the history may have been cut")
    complete = len(entries) < MAX_ENTRIES
    if not complete:
        warnings.append(f"only the last {MAX_ENTRIES} entries were kept")
    return AllocatorHistory(
        device=f"cuda:{device}",
        index=tuple(points),
        allocated_bytes=tuple(states[i][0] for i in points),
        reserved_bytes=tuple(states[i][1] for i in points),
        n_allocs=counts["alloc"],
        n_frees=counts["free_completed"],
        n_cuda_mallocs=counts["segment_alloc"] + counts["segment_map"],
        n_cuda_frees=counts["segment_free"] + counts["segment_unmap"],
        n_retries=n_retries,
        n_ooms=counts["oom"],
        segments=tuple(sorted(map(_segment, segments), key=lambda s: -s.total_bytes)),
        complete=complete,
        warnings=tuple(warnings),
        provenance=provenance or stamp(),
    )


# What an entry does to (allocated, reserved). map and unmap are what expandable segments do in
# place of cudaMalloc and cudaFree.
_EFFECTS = {
    "alloc": (1, 0),
    "free_completed": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_map": (0, 1),
    "segment_free": (0, -1),
    "segment_unmap": (0, -1),
    "oom": (0, 0),
}


def _requested_bytes(segment: Mapping[str, Any]) -> int:
    """Requested in the blocks of a segment that tensors hold, or the device still works on."""
    if "requested_size" in segment:
        return int(segment["requested_size"])
    blocks = segment.get("blocks", ())
    return sum(b["requested_size"] for b in blocks if b["state"] != "inactive")


def _segment(segment: Mapping[str, Any]) -> Segment:
    blocks = segment.get("blocks", ())
    free = (block["size"] for block in blocks if block["state"] == "inactive")
    return Segment(
        total_bytes=segment["total_size"],
        allocated_bytes=segment["allocated_size"],
        largest_free_bytes=max(free, default=0),
        n_blocks=len(blocks),
        kind=str(segment.get("segment_type", "")),
    )


def _thinned(states: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of at most so many states: the ends, and the highest two of each stretch."""
    inner = range(1, len(states) - 1)
    width = max(-(-len(inner) // ((MAX_POINTS - 2) // 2)), 1)
    stretches = [inner[i : i + width] for i in range(0, len(inner), width)]
    # the most reserved and the most allocated need not be there at once
    highest = [max(each, key=lambda k: (states[k][1], states[k][0])) for each in stretches]
    highest += [max(each, key=lambda k: states[k]) for each in stretches]
    return sorted({0, *highest, len(states) - 1})
