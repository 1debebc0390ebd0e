"""torch's caching allocator of GPU memory, simulated: it hands out addresses and no memory.

A small rewrite of the rules of ``c10/cuda/CUDACachingAllocator.cpp`` and the constants of
``c10/core/AllocatorConfig.h`` (torch 2.11 to 2.13), each named where it is applied. Tests compare
its counters with ``torch.cuda.memory_stats`` for the same requests.

What it does not know: graphs' private pools, blocks that another stream still uses (give the free
where it was completed), and at which addresses cudaMalloc puts segments. Among free blocks of one
size the lowest address is taken, so another order of segments may choose another block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from perfkit.base.errors import UsageError

_MIB = 1 << 20
#: kMinBlockSize: sizes are rounded up to this.
_MIN_BLOCK = 512
#: kSmallSize: the largest request of the small pool.
_SMALL = _MIB
#: kSmallBuffer: the size of a segment of the small pool, and of its pages when expandable.
_SMALL_BUFFER = 2 * _MIB
#: kLargeBuffer, large_segment_size: a request between small and kMinLargeAlloc gets a segment of
#: this size; it is the size of the large pool's pages when expandable, and by how much an
#: unsplittable block may be too large for a request.
_LARGE_BUFFER = 20 * _MIB
#: kMinLargeAlloc: from here on, a request gets a segment of its own size …
_MIN_LARGE = 10 * _MIB
#: … rounded up to kRoundLarge.
_ROUND_LARGE = 2 * _MIB
#: Addresses of one expandable segment; torch takes 1 1/8 of the device's memory.
_ADDRESSES = 1 << 44


@dataclass(frozen=True)
class AllocatorSettings:
    """What of ``PYTORCH_ALLOC_CONF`` is simulated.

    Attributes:
        expandable_segments: one segment a pool and stream that grows by pages.
        max_split_size_bytes: blocks of at least so much are never split; None for no limit.
        roundup_power2_divisions: sizes are rounded up to one of so many steps between powers of
            two; 1 for none.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    roundup_power2_divisions: int = 1

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read ``"default"`` or options as in ``PYTORCH_ALLOC_CONF``: ``"name:value,name:value"``.

        Raises:
            UsageError: an option is unknown or not simulated, or its value is none of torch's.
        """
        found: dict[str, bool | int] = {}
        for part in text.split(",") if text.strip() not in ("", "default") else ():
            name, _, value = (word.strip() for word in part.partition(":"))
            if name == "expandable_segments" and value in ("True", "False"):
                found["expandable_segments"] = value == "True"
            elif name == "max_split_size_mb" and value.isdecimal():
                # torch refuses what is not larger than kLargeBuffer
                if int(value) * _MIB <= _LARGE_BUFFER:
                    raise UsageError(f"max_split_size_mb is above 20, not {value}")
                found["max_split_size_bytes"] = int(value) * _MIB
            elif name == "roundup_power2_divisions" and value.isdecimal():
                if int(value).bit_count() != 1:
                    raise UsageError(f"roundup_power2_divisions is a power of two, not {value}")
                found["roundup_power2_divisions"] = int(value)
            else:
                raise UsageError(
                    f"{part.strip()!r} is not simulated; give expandable_segments:True or False, "
                    "max_split_size_mb:N, roundup_power2_divisions:N, or default"
                )
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        told = []
        if self.expandable_segments:
            told.append("expandable_segments:True")
        if self.max_split_size_bytes is not None:
            told.append(f"max_split_size_mb:{self.max_split_size_bytes // _MIB}")
        if self.roundup_power2_divisions > 1:
            told.append(f"roundup_power2_divisions:{self.roundup_power2_divisions}")
        return ",".join(told) or "default"


class OutOfReserveError(Exception):
    """No block for a request, also after the cache was emptied: torch raises OutOfMemoryError."""


@dataclass(eq=False, slots=True)
class _Block:
    """A piece of a segment, in use, free, or (of an expandable segment) without memory."""

    address: int
    size: int
    pool: _Pool
    segment: int  # where the segment begins
    expandable: bool = False
    mapped: bool = True
    allocated: bool = False
    requested: int = 0
    before: _Block | None = None
    after: _Block | None = None

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None

    @property
    def key(self) -> tuple[int, int]:
        return (self.size, self.address)


@dataclass(eq=False, slots=True)
class _Pool:
    """Free blocks of one stream, small or large, by size and then address."""

    is_small: bool
    keys: list[tuple[int, int]] = field(default_factory=list)
    free: dict[int, _Block] = field(default_factory=dict)
    unmapped: dict[int, _Block] = field(default_factory=dict)

    @property
    def page(self) -> int:
        return _SMALL_BUFFER if self.is_small else _LARGE_BUFFER

    def add(self, block: _Block) -> None:
        insort(self.keys, block.key)
        self.free[block.address] = block

    def remove(self, block: _Block) -> None:
        del self.keys[bisect_left(self.keys, block.key)]
        del self.free[block.address]

    def at(self, index: int) -> _Block:
        return self.free[self.keys[index][1]]


class CachingAllocator:
    """One device's allocator. All sizes in bytes; counters have the names of torch's.

    Attributes:
        allocated_bytes, reserved_bytes: held by blocks in use (rounded up), and by segments.
        requested_bytes: held by blocks in use, as requested.
        peak_allocated_bytes, peak_reserved_bytes: the most of each.
        n_segments: segments now; those that are expandable do not count, as in torch.
        n_device_allocs, n_device_frees: calls of cudaMalloc and cudaFree, or their likes.
        n_retries: times that the cache was emptied for a request.
        n_ooms: requests that failed all the same.
    """

    def __init__(
        self, settings: AllocatorSettings | None = None, *, limit_bytes: int | None = None
    ) -> None:
        """An empty allocator.

        Args:
            settings: torch's defaults if left out.
            limit_bytes: what it may reserve, as ``torch.cuda.set_per_process_memory_fraction``.
        """
        self._settings = settings or AllocatorSettings()
        self._limit = limit_bytes
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = _ROUND_LARGE
        self.allocated_bytes = self.reserved_bytes = self.requested_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.n_segments = self.n_device_allocs = self.n_device_frees = 0
        self.n_retries = self.n_ooms = 0

    @property
    def inactive_split_bytes(self) -> int:
        """Free in segments that are partly in use; expandable ones do not count, as in torch."""
        return sum(
            block.size
            for pool in self._pools.values()
            for block in pool.free.values()
            if block.is_split and not block.expandable
        )

    def malloc(self, requested: int, stream: int = 0) -> _Block:
        """A block of at least so many bytes.

        Raises:
            OutOfReserveError: the limit leaves no room for it.
        """
        size = self.rounded(requested)
        pool = self._pool(stream, size <= _SMALL)
        block = self._from_cache(pool, size)
        if block is None:
            block = self._from_device(pool, size)
            if block is None and self._release_oversize(pool, size):
                block = self._from_device(pool, size)
            if block is None:
                self.empty_cache()
                self.n_retries += 1
                block = self._from_device(pool, size)
            if block is None:
                self.n_ooms += 1
                raise OutOfReserveError(f"{requested} bytes")
        if self._splits(block, size):
            block = self._split(block, size)
        block.allocated, block.requested = True, requested
        self.allocated_bytes += block.size
        self.requested_bytes += requested
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: _Block) -> None:
        """Give a block back to the cache, joined with free neighbours (free_block)."""
        block.allocated = False
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        self._join(block, block.before)
        self._join(block, block.after)
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Return all segments that hold nothing, and unused pages (release_cached_blocks)."""
        for pool in sorted(self._pools.values(), key=lambda pool: pool.is_small):
            free = list(pool.free.values())
            for block in free:
                if not block.expandable and not block.is_split:
                    self._release(block)
            for block in free:
                if block.expandable:
                    self._unmap(block)

    def rounded(self, requested: int) -> int:
        """The size of the block for a request (round_size)."""
        divisions = self._settings.roundup_power2_divisions
        if requested < _MIN_BLOCK:
            return _MIN_BLOCK
        if divisions > 1 and requested > _MIN_BLOCK * divisions:
            if requested.bit_count() == 1:
                return requested
            floor = 1 << (requested.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1)
            return 2 * floor if step == 0 else -(-requested // step) * step
        return -(-requested // _MIN_BLOCK) * _MIN_BLOCK

    # --- from the cache -----------------------------------------------------------------

    def _pool(self, stream: int, is_small: bool) -> _Pool:
        return self._pools.setdefault((stream, is_small), _Pool(is_small))

    def _from_cache(self, pool: _Pool, size: int) -> _Block | None:
        """The smallest free block that is large enough (get_free_block)."""
        at = bisect_left(pool.keys, (size, 0))
        if at == len(pool.keys):
            return None
        block = pool.at(at)
        if block.expandable:
            # the size that it can grow to counts, so that the end of the segment is taken last
            while at + 1 < len(pool.keys):
                other = pool.at(at + 1)
                if not block.expandable or _could_be(other) >= _could_be(block):
                    break
                at, block = at + 1, other
        limit = self._settings.max_split_size_bytes
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + _LARGE_BUFFER:
                return None
        pool.remove(block)
        return block

    def _splits(self, block: _Block, size: int) -> bool:
        """Whether what is left over becomes a block of its own (should_split)."""
        left = block.size - size
        if block.pool.is_small or self._settings.expandable_segments:
            return left >= _MIN_BLOCK
        limit = self._settings.max_split_size_bytes
        return (limit is None or size < limit) and left > _SMALL

    def _split(self, rest: _Block, size: int) -> _Block:
        """The first part of a block; the rest is free."""
        first = _Block(rest.address, size, rest.pool, rest.segment, rest.expandable)
        first.before, first.after = rest.before, rest
        if first.before is not None:
            first.before.after = first
        rest.before = first
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return first

    def _join(self, block: _Block, other: _Block | None) -> None:
        """Take in a free neighbour (try_merge_blocks)."""
        if other is None or other.allocated or other.mapped != block.mapped:
            return
        if other.mapped:
            other.pool.remove(other)
        else:
            del other.pool.unmapped[other.address]
        if block.before is other:
            block.address = other.address
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.size += other.size

    # --- from the device ----------------------------------------------------------------

    def _from_device(self, pool: _Pool, size: int) -> _Block | None:
        """New memory, if the limit leaves room (alloc_block)."""
        # get_allocation_size
        if size <= _SMALL:
            wanted = _SMALL_BUFFER
        elif size < _MIN_LARGE:
            wanted = _LARGE_BUFFER
        else:
            wanted = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        if self._limit is not None and self.reserved_bytes + wanted > self._limit:
            return None
        if self._settings.expandable_segments:
            return self._grown(pool, size)
        block = _Block(self._next_address, wanted, pool, self._next_address)
        self._next_address += wanted
        self.n_segments += 1
        self.n_device_allocs += 1
        self._reserve(wanted)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _release(self, block: _Block) -> None:
        block.pool.remove(block)
        self.reserved_bytes -= block.size
        self.n_segments -= 1
        self.n_device_frees += 1

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Return unsplittable free blocks, enough for the request if there are so many.

        As release_available_cached_blocks, which does it only with a max_split_size.
        """
        limit = self._settings.max_split_size_bytes
        if limit is None or self._settings.expandable_segments:
            return False  # pages of an expandable segment go back with the whole cache
        wanted = max(size, limit)
        at = bisect_left(pool.keys, (wanted, 0))
        if at < len(pool.keys):
            self._release(pool.at(at))
            return True
        released = 0
        while pool.keys and released < wanted and pool.keys[-1][0] >= limit:
            released += pool.keys[-1][0]
            self._release(pool.at(-1))
        return released >= wanted

    # --- expandable segments ------------------------------------------------------------

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Free and unmapped neighbours of the lowest address that suffice, given pages."""
        block = self._room(pool, size)
        if not block.mapped:
            self._map(block, min(block.size, size))
        while block.size < size:
            unmapped = block.after
            assert unmapped is not None
            # mapping joins it with the free block before it
            self._map(unmapped, min(size - block.size, unmapped.size))
            block = unmapped
        pool.remove(block)
        return block

    def _room(self, pool: _Pool, size: int) -> _Block:
        """As find_expandable_block."""
        for address in sorted(pool.unmapped):
            block = pool.unmapped[address]
            if block.before is not None and not block.before.allocated:
                block = block.before
            found, at = 0, block
            while at is not None and found < size and not at.allocated:
                found += at.size
                at = at.after  # type: ignore[assignment]
            if found >= size:
                return block
        begin = self._next_address
        self._next_address += _ADDRESSES
        block = _Block(begin, _ADDRESSES, pool, begin, expandable=True, mapped=False)
        pool.unmapped[begin] = block
        return block

    def _map(self, block: _Block, size: int) -> None:
        """Give the first part of an unmapped block whole pages (map_block)."""
        pool = block.pool
        size = min(-(-size // pool.page) * pool.page, block.size)
        del pool.unmapped[block.address]
        block.mapped = True
        if size < block.size:
            rest = _Block(
                block.address + size, block.size - size, pool, block.segment, True, mapped=False
            )
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            pool.unmapped[rest.address] = rest
        self._join(block, block.before)
        self._join(block, block.after)
        pool.add(block)
        self.n_device_allocs += 1
        self._reserve(size)

    def _unmap(self, block: _Block) -> None:
        """Take the whole pages of a free block back (unmap_block)."""
        pool, page, begin = block.pool, block.pool.page, block.segment
        first = begin + -(-(block.address - begin) // page) * page
        end = begin + (block.address + block.size - begin) // page * page
        if end <= first:
            return
        pool.remove(block)
        if first > block.address:
            head = _Block(block.address, first - block.address, pool, begin, True)
            head.before, head.after = block.before, block
            if head.before is not None:
                head.before.after = head
            block.before = head
            pool.add(head)
        if block.address + block.size > end:
            tail = _Block(end, block.address + block.size - end, pool, begin, True)
            tail.before, tail.after = block, block.after
            if tail.after is not None:
                tail.after.before = tail
            block.after = tail
            pool.add(tail)
        block.address, block.size, block.mapped = first, end - first, False
        unmapped = block.size
        self._join(block, block.before)
        self._join(block, block.after)
        if block.before is not None or block.after is not None:
            pool.unmapped[block.address] = block
        self.reserved_bytes -= unmapped
        self.n_device_frees += 1


def _could_be(block: _Block) -> int:
    """How large a free block of an expandable segment can become."""
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
