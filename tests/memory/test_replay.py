"""The simulated caching allocator, rule by rule, and the requests that it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from perfkit.base.errors import UsageError
from perfkit.memory.caching_allocator import AllocatorSettings, CachingAllocator, OutOfReserveError
from perfkit.memory.replay import replay
from perfkit.memory.requests import (
    Request,
    Requests,
    predict_requests,
    record_requests,
    requests_of,
)

MIB = 2**20


def _requests(*moves: int | str | tuple[int, int]) -> Requests:
    """``(n, bytes)`` asks for block n, a number gives it back, ``"|"`` is a mark."""
    entries: list[Request] = []
    for move in moves:
        if isinstance(move, tuple):
            entries.append(Request("alloc", *move))
        elif isinstance(move, int):
            entries.append(Request("free", move))
        else:
            entries.append(Request("mark", sum(e.what == "mark" for e in entries)))
    return Requests(tuple(entries), "cuda:0", "allocator")


# ---- sizes


@pytest.mark.parametrize(
    ("requested", "reserved", "allocated"),
    [
        (1, 2 * MIB, 512),
        (513, 2 * MIB, 1024),
        (MIB, 2 * MIB, MIB),
        (MIB + 1, 20 * MIB, MIB + 512),
        (10 * MIB - 512, 20 * MIB, 10 * MIB - 512),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # what is left over is at most 1 MiB and stays with the block
        (10 * MIB + 1, 12 * MIB, 10 * MIB + 512),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),
    ],
)
def test_a_first_request_takes_a_segment_of_its_size_class(
    requested: int, reserved: int, allocated: int
) -> None:
    allocator = CachingAllocator()
    allocator.malloc(requested)
    assert allocator.reserved_bytes == reserved
    assert allocator.allocated_bytes == allocated
    assert allocator.requested_bytes == requested
    assert (allocator.n_segments, allocator.n_device_allocs) == (1, 1)


@pytest.mark.parametrize(
    ("requested", "divisions", "rounded"),
    [(1200, 1, 1536), (2100, 4, 2560), (3000, 4, 3072), (4096, 4, 4096), (5 * MIB, 2, 6 * MIB)],
)
def test_rounding_up_between_powers_of_two(requested: int, divisions: int, rounded: int) -> None:
    allocator = CachingAllocator(AllocatorSettings(roundup_power2_divisions=divisions))
    assert allocator.rounded(requested) == rounded


# ---- blocks


def test_the_smallest_block_that_is_large_enough_is_taken_and_split() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MIB) for size in (60, 20, 40)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(30 * MIB)
    assert allocator.inactive_split_bytes == 10 * MIB  # the rest of the 40
    assert allocator.n_device_allocs == 3


def test_freed_neighbours_join() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(40 * MIB))
    parts = [allocator.malloc(10 * MIB) for _ in range(4)]
    assert allocator.n_device_allocs == 1
    for part in (parts[0], parts[2], parts[1], parts[3]):
        allocator.free(part)
    allocator.malloc(40 * MIB)
    assert allocator.n_device_allocs == 1
    assert allocator.inactive_split_bytes == 0


def test_memory_is_there_and_no_block_is_large_enough() -> None:
    """Fragmentation: two free halves of segments that are partly in use."""
    first, second = (1, 20 * MIB), (2, 20 * MIB)
    kept = ((3, 12 * MIB), (4, 12 * MIB))
    found = replay(_requests(first, second, 1, 2, *kept, (5, 10 * MIB)))
    assert found.reserved_bytes - found.allocated_bytes == 16 * MIB
    assert found.n_device_allocs == 3
    limited = replay(
        _requests(first, second, 1, 2, *kept, "|", (5, 10 * MIB)), limit_bytes=45 * MIB
    )
    assert (limited.n_retries, limited.n_ooms) == (1, 1)
    assert (limited.failed_at_mark, limited.failed_bytes) == (1, 10 * MIB)
    grows = replay(
        _requests(first, second, 1, 2, *kept, (5, 10 * MIB)),
        "expandable_segments:True",
        limit_bytes=45 * MIB,
    )
    assert (grows.n_retries, grows.n_ooms) == (0, 0)
    assert grows.peak_reserved_bytes == 40 * MIB


def test_a_retry_empties_the_cache_and_goes_on() -> None:
    found = replay(_requests((1, 30 * MIB), 1, "|", (2, 40 * MIB), "|"), limit_bytes=50 * MIB)
    assert (found.n_retries, found.n_ooms, found.n_device_frees) == (1, 0, 1)
    assert [mark.reserved_bytes for mark in found.marks] == [30 * MIB, 40 * MIB]
    assert found.marks[1].lowest_reserved_bytes == 40 * MIB
    assert found.n_device_allocs_after(1) == 1


def test_small_and_large_and_streams_have_blocks_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(1000)
    allocator.malloc(30 * MIB, stream=7)
    assert allocator.n_device_allocs == 3


def test_blocks_above_the_split_size_stay_whole_and_serve_only_requests_of_their_kind() -> None:
    settings = AllocatorSettings(max_split_size_bytes=32 * MIB)
    allocator = CachingAllocator(settings)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(10 * MIB)  # not from the 60
    assert allocator.n_device_allocs == 2
    block = allocator.malloc(41 * MIB)  # less than 20 MiB too large: the whole block
    assert allocator.n_device_allocs == 2
    assert block.size == 60 * MIB
    allocator.free(block)
    allocator.malloc(40 * MIB)
    assert allocator.n_device_allocs == 3


@pytest.mark.parametrize(
    ("cached", "requested", "size", "n_device_allocs"),
    [
        # of 32 MiB on, a block is not split, and is for requests of 32 MiB on
        (32 * MIB, 10 * MIB, 10 * MIB, 2),
        (40 * MIB, 32 * MIB, 40 * MIB, 1),
        (52 * MIB, 32 * MIB, 32 * MIB, 2),  # 20 MiB too large
        (30 * MIB, 29 * MIB, 30 * MIB, 1),  # what is left over is at most 1 MiB
        (30 * MIB, 29 * MIB - 512, 29 * MIB - 512, 1),
    ],
)
def test_sizes_at_which_a_cached_block_is_taken_and_split(
    cached: int, requested: int, size: int, n_device_allocs: int
) -> None:
    allocator = CachingAllocator(AllocatorSettings(max_split_size_bytes=32 * MIB))
    allocator.free(allocator.malloc(cached))
    assert allocator.malloc(requested).size == size
    assert allocator.n_device_allocs == n_device_allocs


def test_unsplittable_blocks_are_returned_before_the_whole_cache() -> None:
    settings = AllocatorSettings(max_split_size_bytes=32 * MIB)
    allocator = CachingAllocator(settings, limit_bytes=101 * MIB)
    allocator.free(allocator.malloc(80 * MIB))
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(50 * MIB)
    assert (allocator.n_retries, allocator.n_device_frees) == (0, 1)


@pytest.mark.parametrize(
    ("requested", "n_retries", "n_device_frees", "reserved"),
    [
        (80 * MIB, 0, 2, (20 + 40 + 80) * MIB),  # two of them are as much as is asked for
        (130 * MIB, 1, 4, 130 * MIB),  # all of them are not
    ],
)
def test_several_unsplittable_blocks_are_returned_where_one_is_too_small(
    requested: int, n_retries: int, n_device_frees: int, reserved: int
) -> None:
    settings = AllocatorSettings(max_split_size_bytes=40 * MIB)
    allocator = CachingAllocator(settings, limit_bytes=210 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (20, 40, 40, 40)]:
        allocator.free(block)
    allocator.malloc(requested)
    assert (allocator.n_retries, allocator.n_device_frees) == (n_retries, n_device_frees)
    assert allocator.reserved_bytes == reserved


# ---- expandable segments


def test_an_expandable_segment_grows_by_pages_and_gives_whole_pages_back() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    first = allocator.malloc(30 * MIB)
    second = allocator.malloc(15 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    assert (allocator.n_segments, allocator.n_device_allocs) == (0, 2)
    allocator.free(first)
    allocator.malloc(10 * MIB)
    allocator.empty_cache()  # 10 to 30 is free: the page from 20 on is still used in part
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.n_device_frees == 0
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB
    allocator.malloc(25 * MIB)  # from 10 on, in pages that come back
    assert allocator.reserved_bytes == 40 * MIB


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pages_that_went_back_are_one_gap_again(order: tuple[int, int]) -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    blocks = [allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)]
    for each in order:
        allocator.free(blocks[each])
        allocator.empty_cache()
    allocator.malloc(60 * MIB)
    assert (allocator.n_device_allocs, allocator.n_device_frees) == (3, 2)


def test_a_gap_is_filled_and_its_neighbours_join() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    first, gap, last = (allocator.malloc(20 * MIB) for _ in range(3))
    at = gap.address
    allocator.free(gap)
    allocator.empty_cache()
    again = allocator.malloc(20 * MIB)
    assert again.address == at
    for block in (first, again, last):
        allocator.free(block)
    allocator.malloc(60 * MIB)
    assert (allocator.reserved_bytes, allocator.n_device_allocs) == (60 * MIB, 4)


def test_the_end_of_an_expandable_segment_is_taken_last() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    blocks = [allocator.malloc(size * MIB) for size in (20, 40, 20, 21, 10)]  # 9 are left
    at = blocks[0].address
    for block in (blocks[0], blocks[2]):
        allocator.free(block)
    # neither what lies behind counts, nor is a later one of the same size better
    assert allocator.malloc(5 * MIB).address == at


def test_pages_do_not_go_back_one_by_one_as_unsplittable_blocks_do() -> None:
    settings = AllocatorSettings(expandable_segments=True, max_split_size_bytes=32 * MIB)
    allocator = CachingAllocator(settings, limit_bytes=200 * MIB)
    allocator.free(allocator.malloc(100 * MIB))
    allocator.malloc(150 * MIB)
    assert (allocator.reserved_bytes, allocator.n_segments) == (160 * MIB, 0)
    assert (allocator.n_retries, allocator.n_device_frees) == (1, 1)


def test_small_pages_are_smaller() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True))
    for _ in range(5):
        allocator.malloc(MIB)
    assert allocator.reserved_bytes == 6 * MIB
    assert allocator.n_device_allocs == 3
    assert allocator.malloc(MIB - 512).size == MIB - 512  # what is left over is a block


def test_out_of_reserve_leaves_the_rest_intact() -> None:
    allocator = CachingAllocator(limit_bytes=30 * MIB)
    block = allocator.malloc(20 * MIB)
    with pytest.raises(OutOfReserveError):
        allocator.malloc(20 * MIB)
    allocator.free(block)
    allocator.malloc(20 * MIB)
    assert allocator.n_device_allocs == 1
    allocator.malloc(10 * MIB)  # all of it
    assert allocator.reserved_bytes == 30 * MIB


# ---- settings


def test_settings_are_read_as_torch_writes_them() -> None:
    text = "expandable_segments:True, max_split_size_mb:64,roundup_power2_divisions:8"
    settings = AllocatorSettings.parse(text)
    assert settings == AllocatorSettings(True, 64 * MIB, 8)
    assert AllocatorSettings.parse(str(settings)) == settings
    assert str(AllocatorSettings.parse("default")) == "default"


@pytest.mark.parametrize(
    "text",
    [
        "backend:cudaMallocAsync",
        "garbage_collection_threshold:0.8",
        "expandable_segments:yes",
        "max_split_size_mb:20",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[256:1]",
        "pinned_num_register_threads:8",
        "nonsense",
    ],
)
def test_what_is_not_simulated_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        replay(_requests((1, 1)), text)


# ---- requests


def test_emptying_the_cache_at_each_mark_asks_the_device_again() -> None:
    steps = _requests((1, 30 * MIB), 1, "|", (2, 30 * MIB), 2, "|", (3, 30 * MIB), 3, "|")
    assert replay(steps).n_device_allocs == 1
    emptied = replay(steps, empty_cache=True)
    assert (emptied.n_device_allocs, emptied.n_device_frees) == (3, 3)
    assert [mark.reserved_bytes for mark in emptied.marks] == [0, 0, 0]
    assert emptied.peak_reserved_bytes == 30 * MIB


def test_a_mark_that_is_not_there_is_an_error() -> None:
    replayed = replay(_requests((1, 1), "|", (2, 30 * MIB)))
    assert replayed.n_device_allocs_after(1) == 1
    for mark in (0, 2):
        with pytest.raises(UsageError, match="there are 1 marks"):
            replayed.n_device_allocs_after(mark)


def test_a_snapshot_becomes_requests_with_what_was_there_before() -> None:
    def entry(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "stream": 0}

    blocks = [
        {"size": 4096, "requested_size": 4000, "state": "active_allocated", "address": 0},
        {"size": 512, "requested_size": 0, "state": "inactive", "address": 4096},
        {"size": 512, "requested_size": 77, "state": "active_allocated", "address": 4608},
    ]
    snapshot = {
        "segments": [{"device": 0, "address": 0, "stream": 0, "blocks": blocks}],
        "device_traces": [
            [
                entry("alloc", 8000, 33),
                entry("free_completed", 8000, 33),
                entry("alloc", 4608, 77),
                entry("free_requested", 9000, 200),
                entry("free_completed", 9000, 200),
                {"action": "oom", "size": 10**9, "stream": 0, "device_free": 5},
                entry("snapshot", 0, 0),
            ]
        ],
    }
    found = requests_of(snapshot)
    asked = [(e.what, e.nbytes) for e in found.entries]
    assert asked == [
        ("alloc", 4000),
        ("alloc", 200),
        ("alloc", 33),
        ("free", 0),
        ("alloc", 77),
        ("free", 0),
        ("alloc", 10**9),
        ("free", 0),
    ]
    assert found.entries[3].block == found.entries[2].block
    assert found.entries[5].block == found.entries[1].block
    assert requests_of(snapshot, 1).entries == ()  # of a device that has no trace
    assert replay(found, limit_bytes=10**6 * 3).n_ooms == 1


def test_operators_requests_are_those_of_the_step() -> None:
    model = nn.Linear(64, 256, bias=False)
    elsewhere = torch.ones(1000)
    with record_requests(model=model) as recorded:
        for n in (10, 20):
            x = torch.zeros(n, 64)
            model(x).sum().backward()
            model.zero_grad()
            recorded.mark()
    found = recorded.requests
    assert found is not None
    assert recorded.warnings == ()
    assert (found.device, found.source) == ("cpu", "operators")
    assert [e.what for e in found.entries].count("mark") == 2
    assert elsewhere.nbytes not in [e.nbytes for e in found.entries]
    sizes = [e.nbytes for e in found.entries if e.what == "alloc"]
    assert sizes[0] == 64 * 256 * 4  # the weights, there before
    for n in (10, 20):
        assert sizes.count(n * 64 * 4) == 1
        assert n * 256 * 4 in sizes
    replayed = replay(found)
    marks = replayed.marks
    # x lives on until the next one is made
    assert marks[1].allocated_bytes - marks[0].allocated_bytes == 10 * 64 * 4
    assert replayed.n_ooms == 0


def _two_steps(mark: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for n in (10, 20):
        optimizer.zero_grad()
        model(torch.ones(n, 32)).square().mean().backward()
        optimizer.step()
        mark()


def test_requests_predicted_from_shapes_are_those_of_operators_that_run() -> None:
    with record_requests() as really:
        _two_steps(really.mark)
    with predict_requests() as predicted:
        _two_steps(predicted.mark)
    assert predicted.requests is not None
    assert really.requests is not None
    assert predicted.warnings == ()
    assert (predicted.requests.source, predicted.requests.device) == ("shapes", "cpu")

    # numbers of 4 bytes that the optimizer counts its steps with are not made alike
    def large(found: Requests) -> list[int]:
        return [e.nbytes for e in found.entries if e.what == "alloc" and e.nbytes > 8]

    assert large(predicted.requests) == large(really.requests)
    peaks = [replay(found).peak_allocated_bytes for found in (predicted.requests, really.requests)]
    assert peaks[0] == pytest.approx(peaks[1], abs=16 * 512)


def test_predicted_steps_need_no_memory() -> None:
    with predict_requests() as predicted:
        x = torch.ones(1 << 40)
        y = x + 1
        predicted.mark()
        del x, y
    assert predicted.requests is not None
    assert replay(predicted.requests).peak_allocated_bytes == 2 * 4 * 2**40


def test_what_is_freed_before_a_mark_stands_before_it() -> None:
    with record_requests() as recorded:
        kept = torch.zeros(1000)
        del kept  # and no operator runs until the mark
        recorded.mark()
    assert recorded.requests is not None
    assert [entry.what for entry in recorded.requests.entries][-3:] == ["alloc", "free", "mark"]


def test_nothing_recorded_is_nothing() -> None:
    with record_requests() as recorded:
        recorded.mark()
    assert recorded.requests is None or recorded.requests.n_allocs == 0


def test_a_replay_says_what_it_is() -> None:
    found = replay(_requests((1, 30 * MIB), 1, "|", (2, 90 * MIB)), limit_bytes=60 * MIB)
    said = " ".join(found.to_text().split())
    assert "Simulated (default, 60.0 MiB at most): at most 30.0 MiB reserved" in said
    assert "1 × cudaMalloc, 1 × cudaFree, 1 retry" in said
    assert "Out of memory after 1 mark: 90.0 MiB asked for" in said
    assert found.provenance.kind == "simulated"
    assert found.to_dict()["n_retries"] == 1
