"""Lesson 15: the exercise and its puzzles, pretended devices, the picture, and its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from perfkit.base.errors import UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.kit.collectives import CollectiveCount
from perfkit.course.lessons.lesson_15_data_parallel.criteria import Split
from perfkit.course.lessons.lesson_15_data_parallel.lesson import (
    in_buckets,
    ring_sends,
    share_of_rank,
    speed_of_many,
)
from perfkit.course.lessons.lesson_15_data_parallel.measured import Links, flat, held_bytes
from perfkit.course.lessons.lesson_15_data_parallel.pictures import draw_received

Reduce = Callable[[torch.Tensor], None]
Gradients = list[torch.Tensor]

# ---- right answers


def _buckets(gradients: Gradients, limit: int) -> Iterator[Gradients]:
    bucket: Gradients = []
    for one in gradients:
        full = bool(bucket) and sum(g.nbytes for g in bucket) + one.nbytes > limit
        if full or (bucket and one.dtype is not bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket


def _in_order(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.flatten() for g in bucket])
        all_reduce(flattened)
        parts = torch.split(flattened, [g.numel() for g in bucket])
        for one, part in zip(bucket, parts, strict=True):
            one.copy_(part.view(one.shape) / ranks)


def _from_the_end(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order(gradients[::-1], limit, all_reduce, ranks)


def _divides_first(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for one in gradients:
        one /= ranks
    _in_order(gradients, limit, all_reduce, 1)


def _packs(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> Gradients:
    """Largest first, each into the first bucket with room; by dtype. It returns them, too."""
    bins: list[Gradients] = []
    for one in sorted(gradients, key=lambda g: -g.nbytes):
        for found in bins:
            size = sum(g.nbytes for g in found) + one.nbytes
            if found[0].dtype is one.dtype and size <= limit:
                found.append(one)
                break
        else:
            bins.append([one])
    for found in bins:
        _in_order(found, 10**9, all_reduce, ranks)
    return gradients


def _by_hand(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    """One buffer for each bucket, filled by offsets."""
    for bucket in _buckets(gradients, limit):
        buffer = torch.empty(sum(g.numel() for g in bucket), dtype=bucket[0].dtype)
        for back in (False, True):
            at = 0
            for one in bucket:
                piece = buffer[at : at + one.numel()].view(one.shape)
                (one if back else piece).copy_(piece if back else one)
                at += one.numel()
            if not back:
                all_reduce(buffer)
                buffer.div_(ranks)


def _by_dtype(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    """First apart by dtype, then one bucket after the other."""
    groups: dict[torch.dtype, Gradients] = {}
    for one in gradients:
        groups.setdefault(one.dtype, []).append(one)
    for group in groups.values():
        _in_order(group, limit, all_reduce, ranks)


def _torchs_own(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    for bucket in _buckets(gradients, limit):
        flattened = _flatten_dense_tensors([g.contiguous() for g in bucket])
        all_reduce(flattened)
        for one, part in zip(bucket, _unflatten_dense_tensors(flattened, bucket), strict=True):
            one.copy_(part).div_(ranks)


def _by_index(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    """The mean is taken before the exchange; each gradient is written by its index."""
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.reshape(-1) for g in bucket]).div(ranks)
        all_reduce(flattened)
        at = 0
        for one in bucket:
            one[...] = flattened[at : at + one.numel()].reshape(one.shape)
            at += one.numel()


# ---- wrong ones


def _fills(
    fits: Callable[[Gradients, torch.Tensor, int], bool], *, any_dtype: bool = False
) -> Callable[..., None]:
    """Buckets that are full by another rule."""

    def average(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
        buckets: list[Gradients] = []
        for one in gradients:
            last = buckets[-1] if buckets else []
            alike = last and (any_dtype or last[0].dtype is one.dtype)
            if alike and fits(last, one, limit):
                last.append(one)
            else:
                buckets.append([one])
        for bucket in buckets:
            flattened = torch.cat([g.flatten() for g in bucket])
            all_reduce(flattened)
            parts = (flattened / ranks).split([g.numel() for g in bucket])
            for one, part in zip(bucket, parts, strict=True):
                one.copy_(part.view(one.shape))

    return average


def _nbytes(bucket: Gradients) -> int:
    return sum(g.nbytes for g in bucket)


def _bound_anew(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    """The name in the loop gets the mean; the gradient does not."""
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.flatten() for g in bucket])
        all_reduce(flattened)
        for one, part in zip(bucket, flattened.split([g.numel() for g in bucket]), strict=True):
            one = part.view(one.shape) / ranks


def _large_left_out(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order([g for g in gradients if g.nbytes <= limit], limit, all_reduce, ranks)


def _as_if_it_returned(gradients: Gradients, limit: int, all_reduce: Any, ranks: int) -> None:
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.flatten() for g in bucket])
        flattened = all_reduce(flattened) / ranks


def _one_each(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for one in gradients:
        flattened = one.flatten().clone()
        all_reduce(flattened)
        one.copy_(flattened.view(one.shape) / ranks)


def _all_at_once(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order(gradients, 10**9, all_reduce, ranks)


def _the_sum(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order(gradients, limit, all_reduce, 1)


def _not_written_back(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order([g.clone() for g in gradients], limit, all_reduce, ranks)


def _last_forgotten(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for bucket in list(_buckets(gradients, limit))[:-1]:
        _in_order(bucket, 10**9, all_reduce, ranks)


def _one_dtype(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    wide = [g.float() for g in gradients]
    _in_order(wide, limit, all_reduce, ranks)
    for one, other in zip(gradients, wide, strict=True):
        one.copy_(other)


def _views(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.view(-1) for g in bucket])
        all_reduce(flattened)
        parts = torch.split(flattened, [g.numel() for g in bucket])
        for one, part in zip(bucket, parts, strict=True):
            one.copy_(part.view(one.shape) / ranks)


def _mixed_up(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    for bucket in _buckets(gradients, limit):
        flattened = torch.cat([g.flatten() for g in bucket])
        all_reduce(flattened)
        at = 0
        for one in bucket[::-1]:
            one.copy_(flattened[at : at + one.numel()].view(one.shape) / ranks)
            at += one.numel()


def _twice(gradients: Gradients, limit: int, all_reduce: Reduce, ranks: int) -> None:
    _in_order(gradients, limit, all_reduce, ranks)
    _in_order(gradients, limit, all_reduce, ranks)


@pytest.mark.parametrize(
    "answer",
    [
        _in_order,
        _from_the_end,
        _divides_first,
        _packs,
        _by_hand,
        _by_dtype,
        _torchs_own,
        _by_index,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = repr(in_buckets.check(answer))
    assert said.startswith("Done"), said
    assert "no more calls than full buckets need" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "never calls all_reduce"),
        (_one_each, "small gradients: 7 calls, and 2 are enough"),
        (_all_at_once, "a call with 1,000 B, and a bucket has 600 B"),
        (_the_sum, "is the sum over the ranks, not the mean"),
        (_not_written_back, "is what it was before: write the mean back"),
        (_last_forgotten, "536 B are sent, fewer than the 1,000 B"),
        (_one_dtype, "two dtypes: 640 B are sent, more than the 480 B"),
        (_views, "view size is not compatible"),
        (_mixed_up, "is not the mean over the ranks"),
        (_twice, "2,000 B are sent, more than"),
        (lambda g, limit, all_reduce, ranks: all_reduce(g), "takes one tensor, got list"),
        (7, "pass your function itself"),
        (
            _fills(lambda b, g, limit: _nbytes(b) + g.nbytes < limit),
            "buckets that are just full: 4 calls, and 2 are enough",
        ),
        (
            _fills(lambda b, g, limit: sum(x.numel() for x in b) + g.numel() <= limit),
            "a call with 1,000 B",  # elements taken for bytes
        ),
        (_fills(lambda b, g, limit: _nbytes(b) < limit), "a call with 936 B"),
        (
            _fills(lambda b, g, limit: _nbytes(b) + g.nbytes <= limit, any_dtype=True),
            "two dtypes: a call with 640 B",
        ),
        (_bound_anew, "is what it was before: write the mean back, in place"),
        (_large_left_out, "one larger than a bucket: 128 B are sent, fewer than the 3,328 B"),
        (_as_if_it_returned, "unsupported operand"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Any, reason: str) -> None:
    said = " ".join(repr(in_buckets.check(answer)).split())
    assert not said.startswith("Done"), said
    assert reason in said, said


def test_show_lists_the_calls() -> None:
    said = " ".join(repr(in_buckets.show(_in_order)).split())
    assert "calls of all_reduce, in bytes: 536, 464" in said
    assert "sent: 1,000 B" in said
    assert "never calls all_reduce" in repr(in_buckets.show(lambda *_: None))


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (ring_sends, lambda nbytes, ranks: 2 * (ranks - 1) / ranks * nbytes, "Done"),
        (ring_sends, lambda nbytes, ranks: 2 * nbytes - 2 * nbytes / ranks, "Done"),
        (ring_sends, lambda nbytes, ranks: nbytes / ranks * (2 * ranks - 2), "Done"),
        (ring_sends, lambda *_: None, "returns nothing yet"),
        (ring_sends, lambda nbytes, ranks: nbytes, "8 ranks: 8,000 B are too few"),
        (ring_sends, lambda nbytes, ranks: (ranks - 1) * nbytes, "8 ranks: 56,000 B are too many"),
        (ring_sends, lambda nbytes, ranks: 2 * nbytes, "2 ranks: 16,000 B are too many"),
        (ring_sends, lambda nbytes, ranks: (ranks - 1) / ranks * nbytes, "4,000 B are too few"),
        (ring_sends, lambda *_: "8", "return a number, got str"),
        (share_of_rank, lambda n, rank, ranks: range(rank, n, ranks), "Done"),
        (share_of_rank, lambda n, rank, ranks: list(range(n))[rank::ranks], "Done"),
        (
            share_of_rank,
            lambda n, rank, ranks: range(n * rank // ranks, n * (rank + 1) // ranks),
            "Done",
        ),
        (share_of_rank, lambda *_: None, "returns nothing yet"),
        (share_of_rank, lambda n, rank, ranks: range(n), "sample 0 is predicted more than once"),
        (
            share_of_rank,
            lambda n, rank, ranks: [k % n for k in range(rank, -(-n // ranks) * ranks, ranks)],
            "10 samples among 4 ranks: sample 0 is predicted more than once",
        ),
        (
            share_of_rank,
            lambda n, rank, ranks: range(n // ranks * rank, n // ranks * (rank + 1)),
            "nobody predicts sample 8",
        ),
        (share_of_rank, lambda n, rank, ranks: range(rank, n + ranks, ranks), "no sample"),
        (share_of_rank, lambda n, rank, ranks: 3, "as a range or a list"),
        (
            share_of_rank,
            lambda n, rank, ranks: range(n) if rank == 0 else [],
            "one rank has 10 and another 0",
        ),
        (speed_of_many, lambda n, c, e, h: n * c / (c + max(e - h, 0)), "Done"),
        (speed_of_many, lambda n, c, e, h: n / (1 + max(0, e - h) / c), "Done"),
        (speed_of_many, lambda n, c, e, h: n * c / max(c, c + e - h), "Done"),
        (speed_of_many, lambda *_: None, "returns nothing yet"),
        (speed_of_many, lambda n, c, e, h: n, "1.30 times one GPU, not 4.00"),
        (speed_of_many, lambda n, c, e, h: n * c / (c + e), "1.61 times one GPU, not 1.30"),
        (speed_of_many, lambda n, c, e, h: n * c / (c + e - h), "8.00 times one GPU, not 10.00"),
        (speed_of_many, lambda n, c, e, h: c / (c + max(e - h, 0)), "4.00 times one GPU, not 1.00"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(ring_sends.show(lambda *_: 1))


# ---- pretended devices


def test_what_is_sent_is_counted_and_its_gradient_on_the_way_back() -> None:
    links, weight = Links(3), torch.ones(4, requires_grad=True)
    out = links.send(links.send(weight, 2) * 3, 0, source=2)
    assert dict(links.sent) == {(0, 2): 16, (2, 0): 16}
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(weight.grad, torch.full((4,), 3.0))  # type: ignore[arg-type]
    assert dict(links.sent) == {(0, 2): 32, (2, 0): 32}
    links.send(torch.ones(2), 1)  # no gradient comes back
    assert (links.received(0), links.received(1), links.received(2)) == (32, 8, 32)
    assert links.total == 72
    assert links.busiest == pytest.approx(32 / 24)
    assert links.send(weight, 0) is weight
    assert links.total == 72


def test_no_bytes_no_busiest_and_no_device_no_links() -> None:
    assert Links(2).busiest == 0
    with pytest.raises(UsageError, match="at least one"):
        Links(0)


def test_operators_are_noted_on_the_device_that_is_named() -> None:
    links, model = Links(3), nn.Conv2d(1, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.rand(1, 1, 2, 2))  # nobody watches yet
    with links.watching():
        with links.on(1):
            scores = model(torch.rand(1, 1, 2, 2))
        cross_entropy(scores, torch.zeros(1, 2, 2, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert [links.did(k) for k in range(3)] == [["loss", "update"], ["forward"], []]


def test_a_plain_model_holds_its_parameters() -> None:
    model = nn.Linear(3, 2)
    assert held_bytes(model) == 32
    assert flat(model.parameters()).shape == (8,)
    assert not flat(model.parameters()).requires_grad


# ---- the picture


def test_the_picture_says_what_it_shows() -> None:
    figure, words = draw_received({"DP": [3000, 1000], "DDP": [2000, 2000]}, source="counted")
    assert len(figure.axes) == 1
    assert words == (
        "Bars: kB that each of 2 devices receives in a step (counted). DP: 3, 1; DDP: 2, 2."
    )


# ---- the claims


def _links(*received: int) -> Links:
    """Device 0 sends to the others, and the first of them to device 0."""
    links = Links(len(received))
    for device, count in enumerate(received):
        links.sent[0 if device else 1, device] = count
    return links


def _count(sent: int, **by_name: int) -> CollectiveCount:
    names = {f"c10d::{name}_": n for name, n in by_name.items()}
    return CollectiveCount(sum(by_name.values()), sent, MappingProxyType(names), sent)


WAYS = {
    "DDP": Split(1, 2000, 800),
    "tensor parallel": Split(15, 900, 100),
    "pipeline": Split(16, 60, 100),
    "both": Split(39, 1300, 100),
}
STILL = Split(1, 2000, 800)
PLAIN, NORMED = _count(100, allreduce=1), _count(110, allreduce=1, broadcast=2)
ELEVEN = {"samples": 11, "sharded": 11, "sampler": 12}
TWELVE = {**ELEVEN, "sharded": 12}
OUTSIDE = {0: ["forward", "loss", "update"], 1: ["forward"]}
INSIDE = {0: ["forward", "loss", "update"], 1: ["forward", "loss"]}


@pytest.mark.parametrize(
    ("name", "given", "verdict", "says"),
    [
        ("A11", (_links(900, 300, 300), 600), "holds here", "first receives 900 B, 400 B of them"),
        ("A11", (_links(500, 500, 500), 600), "does not hold here", "each other at most 500 B"),
        ("A11", (_links(900, 300, 300), 6000), "does not hold here", "4,000 B of them outputs"),
        ("A18", (OUTSIDE, INSIDE), "holds here", "1 compute the loss and 1 the update"),
        ("A18", (INSIDE, INSIDE), "does not hold here", "2 compute the loss"),
        ("A13", (_links(900, 300, 300), [50, 50]), "holds here", "1.80 times"),
        ("A13", (_links(900, 300, 300), [90, 10]), "does not hold here", "1.80 times the mean"),
        ("A13", (_links(300, 300, 300), [50, 50]), "does not hold here", "it is 1.00 times"),
        ("B10", (1e-7, 1e-5), "not decided", "needs several GPUs"),
        ("B10", (1e-3, 1e-5), "does not hold here", "1.0e-03 of their length"),
        ("C11", (1e-7, 1e-5, PLAIN, 60), "holds here", "each rank sends 100 B for 60 B"),
        ("C11", (1e-3, 1e-5, PLAIN, 60), "does not hold here", "1.0e-03"),
        ("C11", (1e-7, 1e-5, PLAIN, 40), "does not hold here", "for 40 B"),
        ("C11", (1e-7, 1e-5, NORMED, 60), "does not hold here", "3 collectives"),
        ("B13", ([1, 2], [1, 1], [3, 3]), "does not hold here", "draw 2 sets of weights"),
        ("B13", ([1, 2], [1, 2], [3, 4]), "holds here", "after the first updates 2"),
        ("B13", ([1, 1], [1, 1], [3, 3]), "not decided", "draw 1 sets"),
        ("B14", (PLAIN, NORMED), "does not hold here", "also for 2 × broadcast"),
        ("B14", (PLAIN, PLAIN), "holds here", "nothing else"),
        ("A14", (0.0, ELEVEN, 1e-5), "holds here", "makes 12"),
        ("A14", (0.1, ELEVEN, 1e-5), "does not hold here", ""),
        ("A14", (0.0, TWELVE, 1e-5), "does not hold here", ""),
        ("B8", (WAYS,), "holds here", "pipeline: holds 100 B, sends 60 B"),
        ("B8", ({**WAYS, "both": STILL},), "does not hold here", "both: holds 800 B"),
        (
            "B9",
            ({0: 8, 1: 0}, _links(9, 3), _links(9, 3), WAYS),
            "holds here",
            "12 B cross when the batch begins on the first device, and as many when",
        ),
        ("B9", ({0: 8, 1: 8}, _links(9, 3), _links(9, 9), WAYS), "does not hold here", "18 B when"),
    ],
)  # fmt: skip
def test_when_a_claim_holds(name: str, given: tuple[Any, ...], verdict: str, says: str) -> None:
    settled = claim(name, lesson="15").settle(*given)
    assert settled.outcome is not None, settled.why
    assert settled.verdict == verdict, settled.outcome.sentence
    assert says in settled.outcome.sentence


@pytest.mark.parametrize(
    ("same", "after", "verdict"),
    [
        (True, 30, "holds here"),
        (False, 30, "does not hold here"),
        (True, 900, "does not hold here"),
    ],
)
def test_a12_needs_fewer_bytes_and_the_same_gradients(same: bool, after: int, verdict: str) -> None:
    settled = claim("A12").settle(_links(900, 300), _links(after, 100), same=same)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["bytes_ratio"].value == 900 / after
