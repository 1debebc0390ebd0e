"""Lesson 13: the exercise and its puzzles, the counters, the picture, and its claim."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_13_allocator.lesson import (
    batches_of_like_length,
    can_serve,
    first_segment,
    padding_share,
    texts,
)
from perfkit.course.lessons.lesson_13_allocator.measured import (
    AllocatorCounts,
    counts_here,
    counts_of,
    table_of,
)
from perfkit.course.lessons.lesson_13_allocator.pictures import draw_reserved
from perfkit.memory.replay import replay
from perfkit.memory.requests import Request, Requests

MIB = 2**20


def _cut(order: Any, size: int) -> list[list[int]]:
    order = list(order)
    return [order[k : k + size] for k in range(0, len(order), size)]


# ---- right answers


def _pools(lengths: Any, size: int, seed: int) -> Any:
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for begin in range(0, len(order), 20 * size):
        found += _cut(sorted(order[begin : begin + 20 * size], key=lengths.__getitem__), size)
    draw.shuffle(found)
    return found


def _jitter(lengths: Any, size: int, seed: int) -> Any:
    """One sorted list, by a length that is blurred anew."""
    draw = random.Random(seed)
    key = [n * draw.uniform(0.8, 1.25) for n in lengths]
    found = _cut(sorted(range(len(lengths)), key=key.__getitem__), size)
    draw.shuffle(found)
    return tuple(map(tuple, found))


def _by_tensors(lengths: Any, size: int, seed: int) -> Any:
    """The same with torch: tensors of numbers, from pools of ten batches."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    order: Any = torch.randperm(len(lengths), generator=draw)
    found: list[Any] = []
    for pool in order.split(10 * size):
        found += pool[lengths[pool].argsort()].split(size)
    return [found[k] for k in torch.randperm(len(found), generator=draw).tolist()]


def _buckets(lengths: Any, size: int, seed: int) -> Any:
    """Borders between lengths: each bucket is mixed by itself; what is left over meets."""
    draw = random.Random(seed)
    borders = [60, 80, 100, 120, 140, 160, 190, 220, 260, 320, 400, 550, 10**6]
    buckets: dict[int, list[int]] = {}
    for k, n in enumerate(lengths):
        buckets.setdefault(next(b for b in borders if n <= b), []).append(k)
    found, left = [], []
    for bucket in sorted(buckets):
        inside = buckets[bucket]
        draw.shuffle(inside)
        whole = len(inside) // size * size
        found += _cut(inside[:whole], size)
        left += inside[whole:]
    found += _cut(left, size)
    draw.shuffle(found)
    return found


def _by_numpy(lengths: Any, size: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    order = draw.permutation(len(lengths))
    found: list[Any] = []
    for begin in range(0, len(order), 16 * size):
        pool = order[begin : begin + 16 * size]
        pool = pool[np.argsort(lengths[pool])]
        found += [pool[k : k + size] for k in range(0, len(pool), size)]
    return [found[k] for k in draw.permutation(len(found))]


def _one_by_one(lengths: Any, size: int, seed: int) -> Any:
    """A generator."""
    yield from _pools(lengths, size, seed)


def _by_steps_of_length(lengths: Any, size: int, seed: int) -> Any:
    """Mixed, and then sorted by the length in steps of 16: equal ones stay mixed."""
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = _cut(sorted(order, key=lambda k: lengths[k] // 16), size)
    draw.shuffle(found)
    return found


# ---- wrong ones


def _mixed_inside(lengths: Any, size: int, seed: int) -> Any:
    """The order within a batch changes, and who is in it does not."""
    draw = random.Random(seed)
    found = _sorted_once(lengths, size, seed)
    for batch in found:
        draw.shuffle(batch)
    return found


def _lengths_of_texts(lengths: Any, size: int, seed: int) -> Any:
    found = _cut(sorted(lengths), size)
    random.Random(seed).shuffle(found)
    return found


def _pools_of_neighbours(lengths: Any, size: int, seed: int) -> Any:
    """The texts are not mixed before they go into pools."""
    found = []
    for pool in _cut(range(len(lengths)), 20 * size):
        found += _cut(sorted(pool, key=lengths.__getitem__), size)
    random.Random(seed).shuffle(found)
    return found


def _small_pools(lengths: Any, size: int, seed: int) -> Any:
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for pool in _cut(order, 2 * size):
        found += _cut(sorted(pool, key=lengths.__getitem__), size)
    draw.shuffle(found)
    return found


def _pools_in_order(lengths: Any, size: int, seed: int) -> Any:
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for pool in _cut(order, 20 * size):
        found += _cut(sorted(pool, key=lengths.__getitem__), size)
    return found


def _up_and_down(lengths: Any, size: int, seed: int) -> Any:
    """One pool from short to long, the next from long to short."""
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for k, pool in enumerate(_cut(order, 20 * size)):
        found += _cut(sorted(pool, key=lengths.__getitem__, reverse=k % 2 == 1), size)
    return found


def _short_ones_first(lengths: Any, size: int, seed: int) -> Any:
    """Mixed, but the shorter half of the batches before the longer one."""
    found = _pools(lengths, size, seed)
    longest = [max(lengths[k] for k in batch) for batch in found]
    middle = sorted(longest)[len(longest) // 2]
    return [
        batch
        for _, batch in sorted(
            zip([n >= middle for n in longest], found, strict=True), key=lambda one: one[0]
        )
    ]


def _the_rest_in_a_larger_batch(lengths: Any, size: int, seed: int) -> Any:
    found = sorted(_pools(lengths, size, seed), key=len)
    if len(found) > 1 and len(found[0]) < size:
        rest = found.pop(0)
        found[0] = found[0] + rest
    random.Random(seed).shuffle(found)
    return found


def _random(lengths: Any, size: int, seed: int) -> Any:
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    return _cut(order, size)


def _sorted_once(lengths: Any, size: int, seed: int) -> Any:
    found = _cut(sorted(range(len(lengths)), key=lengths.__getitem__), size)
    random.Random(seed).shuffle(found)
    return found


def _not_mixed(lengths: Any, size: int, seed: int) -> Any:
    return sorted(_jitter(lengths, size, seed), key=lambda b: max(lengths[k] for k in b))


def _drops_the_last(lengths: Any, size: int, seed: int) -> Any:
    return [batch for batch in _pools(lengths, size, seed) if len(batch) == size]


def _ragged_pools(lengths: Any, size: int, seed: int) -> Any:
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for begin in range(0, len(order), 300):
        found += _cut(sorted(order[begin : begin + 300], key=lengths.__getitem__), size)
    draw.shuffle(found)
    return found


def _not_seeded(lengths: Any, size: int, seed: int) -> Any:
    return _pools(lengths, size, random.SystemRandom().randrange(10**9))


def _sorts_in_place(lengths: Any, size: int, seed: int) -> Any:
    found = _pools(lengths, size, seed)
    lengths.sort()
    return found


def _twice(lengths: Any, size: int, seed: int) -> Any:
    found = _pools(lengths, size, seed)
    return [*found[:-1], [*found[-1][:-1], found[0][0]]] if len(found) > 1 else found


@pytest.mark.parametrize(
    "answer",
    [_pools, _jitter, _by_tensors, _buckets, _by_numpy, _one_by_one, _by_steps_of_length],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(batches_of_like_length.check(answer))
    assert said.startswith("Done"), said
    assert "different texts meet in another epoch" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda lengths, size, seed: list(range(len(lengths))), "a list of batches"),
        (lambda lengths, size, seed: [[10**6]], "a batch has another one"),
        (_random, "of the positions are padding; at most 30%"),
        (_sorted_once, "of all pairs meet again"),
        (_not_mixed, "mix the batches, too"),
        (_drops_the_last, "of them are in no batch"),
        (_ragged_pools, "all batches but one have 16 texts"),
        (_not_seeded, "the same seed gives different batches"),
        (_sorts_in_place, "changes the list of lengths"),
        (_twice, "more than once"),
        (lambda lengths, size, seed: [[k] for k in range(len(lengths))], "yours have 1"),
        (_mixed_inside, "with another seed 100% of all pairs meet again"),
        (_lengths_of_texts, "your batches list the lengths of texts"),
        (_pools_of_neighbours, "with another seed 100% of all pairs meet again"),
        (lambda lengths, size, seed: _pools(lengths, size, 0), "of all pairs meet again"),
        (_small_pools, "of the positions are padding; at most 30%"),
        (_pools_in_order, "mix the batches, too"),
        (_up_and_down, "mix the batches, too"),
        (_short_ones_first, "mix the batches, too"),
        (_the_rest_in_a_larger_batch, "all batches but one have 16 texts, yours have 16, 21"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(batches_of_like_length.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_tells_the_padding_of_each_answer() -> None:
    said = repr(batches_of_like_length.show(_pools))
    assert "192 texts in 12 batches" in said
    assert "% padding" in said
    assert "Nothing to see yet" in repr(batches_of_like_length.show(lambda *_: None))
    assert "no text in your batches" in repr(batches_of_like_length.show(lambda *_: []))


def _segment(nbytes: int) -> int:
    own = -(-nbytes // (2 * MIB)) * 2 * MIB
    return 2 * MIB if nbytes <= MIB else 20 * MIB if nbytes < 10 * MIB else own


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (padding_share, lambda n: 1 - sum(n) / (len(n) * max(n)), "Done"),
        (padding_share, lambda n: sum(max(n) - k for k in n) / (len(n) * max(n)), "Done"),
        (padding_share, lambda n: 1 - (sum(n) / len(n)) / max(n), "Done"),
        (padding_share, lambda n: float(1 - np.mean(n) / np.max(n)), "Done"),
        (padding_share, lambda *_: None, "returns nothing yet"),
        (padding_share, lambda n: sum(n) / (len(n) * max(n)), "is not the share of padding"),
        (padding_share, lambda n: 1 - sum(n) / max(n), "is not the share of padding"),
        (padding_share, lambda n: 1 - min(n) / max(n), "is not the share of padding"),
        (padding_share, lambda n: max(n) - sum(n) / len(n), "is not the share of padding"),
        (padding_share, lambda n: "half", "got str"),
        (first_segment, _segment, "Done"),
        (
            first_segment,
            lambda n: max(
                (n > MIB) * 20 * MIB if n < 10 * MIB else 0, -(-n // (2 * MIB)) * 2 * MIB
            ),
            "Done",
        ),
        (
            first_segment,
            lambda n: (2 if n <= MIB else 20 if n < 10 * MIB else 2 * math.ceil(n / 2 / MIB)) * MIB,
            "Done",
        ),
        (
            first_segment,
            lambda n: n + -n % (2 * MIB) if not MIB < n < 10 * MIB else 20 * MIB,
            "Done",
        ),
        (first_segment, lambda *_: None, "returns nothing yet"),
        (first_segment, lambda n: n, "does not take"),
        (first_segment, lambda n: 2 * MIB if n <= MIB else 20 * MIB, "does not take"),
        (first_segment, lambda n: -(-n // (2 * MIB)) * 2 * MIB, "does not take"),
        (first_segment, lambda n: 20 * MIB if n <= 10 * MIB else n, "does not take"),
        (first_segment, lambda n: _segment(n) if n != MIB else 20 * MIB, "does not take"),
        (can_serve, lambda free, n: any(p >= n for s in free for p in s), "Done"),
        (can_serve, lambda free, n: max((p for s in free for p in s), default=0) >= n, "Done"),
        (can_serve, lambda free, n: max(max(s, default=0) for s in free) >= n, "Done"),
        (can_serve, lambda free, n: not all(p < n for s in free for p in s), "Done"),
        (can_serve, lambda *_: None, "returns nothing yet"),
        (can_serve, lambda free, n: sum(map(sum, free)) >= n, "cannot be served"),
        (can_serve, lambda free, n: max(map(sum, free)) >= n, "cannot be served"),
        (can_serve, lambda free, n: any(p > n for s in free for p in s), "can be served"),
        (can_serve, lambda free, n: all(p >= n for s in free for p in s), "can be served"),
        (can_serve, lambda free, n: True, "cannot be served"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(padding_share.show(lambda *_: 1))


def test_texts_are_the_same_each_time_and_vary_in_length() -> None:
    some = texts(200)
    lengths = [len(text) for text in some]
    assert 16 <= min(lengths) < 100 < 400 < max(lengths) <= 1000
    assert all(torch.equal(a, b) for a, b in zip(some, texts(200), strict=True))
    assert [len(text) for text in texts(200, seed=1)] != lengths
    assert {len(text) for text in texts(5, length=7)} == {7}
    assert min(int(text.min()) for text in some) >= 1


# ---- the allocator


def _rising(sizes: list[int]) -> Requests:
    entries = [
        entry
        for n, size in enumerate(sizes)
        for entry in (Request("alloc", n, size * MIB), Request("free", n), Request("mark", n))
    ]
    return Requests(tuple(entries), "cpu", "shapes")


def test_counts_of_a_replay_leave_the_first_steps_out() -> None:
    found = counts_of(replay(_rising([30, 40, 50, 50])))
    assert (found.device_allocs, found.late_allocs, found.kind) == (3, 1, "simulated")
    assert found.reserved_bytes == 120 * MIB
    assert found.ratio == pytest.approx(2.4)
    assert not found.out_of_memory
    assert counts_of(replay(_rising([30, 90]), limit_bytes=50 * MIB)).out_of_memory


def test_a_table_says_where_a_limit_ends_it() -> None:
    said = table_of({"rising": _rising([30, 40, 90, 90])}, limit_bytes=80 * MIB).splitlines()
    assert said[0].startswith("default ")
    assert said[0].endswith("after step 2  with 0.08 GiB at most")
    row = " ".join(said[1].split())
    assert row == "rising 0.16 GiB 3 1 out of memory in step 3, 1 retry"
    assert "runs through, 0 retries" in table_of({"even": _rising([9] * 3)}, limit_bytes=80 * MIB)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_counts_of_a_gpu_are_those_of_its_steps_and_the_limit_is_lifted() -> None:
    def steps(after: Callable[[], None]) -> None:
        for size in (30, 40, 50, 50):
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            after()

    found = counts_here(steps)
    assert (found.device_allocs, found.late_allocs, found.kind) == (3, 1, "exact")
    assert found.reserved_bytes == 120 * MIB
    assert found.allocated_bytes == 50 * MIB
    limited = counts_here(steps, limit_bytes=45 * MIB)
    assert limited.out_of_memory
    assert limited.retries == 2
    assert not counts_here(steps).out_of_memory


def test_the_picture_says_what_it_shows() -> None:
    run = replay(_rising([100, 200, 300]))
    figure, words = draw_reserved({"random": run, "again": run})
    assert len(figure.axes) == 2
    assert "Memory over 3 steps, simulated" in words
    assert "random: tensors hold at most 0.29 GiB in a step and at least 0.10" in words
    assert "reserved rises from 0.10 GiB to 0.59" in words


# ---- the claim


def _counts(ratio: float, late: int, kind: str = "simulated") -> AllocatorCounts:
    return AllocatorCounts(10**9, round(ratio * 10**9), 40, late, 0, False, kind)


@pytest.mark.parametrize(
    ("at_random", "padded", "expandable", "verdict"),
    [
        (_counts(1.7, 4), _counts(1.2, 0), _counts(1.02, 2), "holds here"),
        (_counts(1.1, 4), _counts(1.2, 0), _counts(1.02, 2), "does not hold here"),
        (_counts(1.7, 0), _counts(1.2, 0), _counts(1.02, 2), "does not hold here"),
        (_counts(1.7, 4), _counts(1.2, 3), _counts(1.02, 2), "does not hold here"),
        (_counts(1.7, 4), _counts(1.2, 0), _counts(1.5, 2), "does not hold here"),
    ],
)
def test_d7_needs_fragments_that_expandable_segments_avoid(
    at_random: AllocatorCounts, padded: AllocatorCounts, expandable: AllocatorCounts, verdict: str
) -> None:
    arms = {"random": at_random, "padded": padded, "bucketed": _counts(1.4, 9)}
    timed: Any = SimpleNamespace(ratio=2.0, low=1.8, high=2.2)
    settled = claim("D7").settle(arms, expandable, timed)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["reserved_ratio"].kind == "simulated"
    assert "(simulated)" in settled.outcome.sentence


def test_d7_on_a_gpu_is_counted() -> None:
    arms = {name: _counts(1.5, 0, "exact") for name in ("random", "padded", "bucketed")}
    timed: Any = SimpleNamespace(ratio=2.0, low=1.8, high=2.2)
    settled = claim("D7").settle(arms, _counts(1.02, 2), timed)
    assert settled.outcome is not None
    assert settled.outcome.figures["reserved_ratio"].kind == "exact"
    assert settled.outcome.figures["reserved_ratio_expandable"].kind == "simulated"


@pytest.mark.parametrize(
    ("late", "late_padded", "verdict"),
    [(0, 0, "holds"), (4, 0, "does not hold"), (0, 3, "does not hold")],
)
def test_d8_asks_for_every_length(late: int, late_padded: int, verdict: str) -> None:
    arms = {"random": _counts(1.5, late), "padded": _counts(1.0, late_padded)}
    settled = claim("D8").settle(arms)
    assert verdict in settled.verdict
    assert settled.outcome is not None
    assert f"with random lengths, {late} (simulated)" in settled.outcome.sentence
