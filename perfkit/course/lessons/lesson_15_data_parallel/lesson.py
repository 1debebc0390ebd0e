"""Lesson 15: three puzzles, and the exercise on buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, something

if TYPE_CHECKING:
    import torch

# ---- three puzzles of one line -----------------------------------------------------------


def _check_ring(answer: Answer) -> list[str]:
    for nbytes, ranks in ((8_000, 2), (8_000, 8), (100_000_000, 4), (12, 3), (5_000, 1)):
        given, wanted = number(answer(nbytes, ranks)), 2 * (ranks - 1) / ranks * nbytes
        if not math.isclose(given, wanted, rel_tol=1e-9):
            raise NotYet(
                f"{nbytes:,} B among {ranks} ranks: {given:,.0f} B are "
                f"{'too few' if given < wanted else 'too many'}. A rank passes a piece of "
                f"{nbytes / ranks:,.0f} B on {2 * (ranks - 1)} times"
            )
    return ["two rounds of the ring, in five cases", "never twice the gradients, with any ranks"]


def _check_share(answer: Answer) -> list[str]:
    for n, ranks in ((10, 4), (12, 4), (3, 4), (7, 2), (5, 1)):
        shares = [something(answer(n, rank, ranks)) for rank in range(ranks)]
        try:
            seen = [int(k) for share in shares for k in share]
        except TypeError:
            raise NotYet("return the numbers of the samples, as a range or a list") from None
        where = f"{n} samples among {ranks} ranks"
        twice = sorted({k for k in seen if seen.count(k) > 1})
        if twice:
            raise NotYet(f"{where}: sample {twice[0]} is predicted more than once")
        left = sorted(set(range(n)) - set(seen))
        if left:
            raise NotYet(f"{where}: nobody predicts sample {left[0]}")
        if set(seen) != set(range(n)):
            raise NotYet(f"{where}: there is no sample {max(seen)}")
        lengths = [len(list(share)) for share in shares]
        if max(lengths) - min(lengths) > 1:
            raise NotYet(f"{where}: one rank has {max(lengths)} and another {min(lengths)}")
    return ["each sample once, also where the ranks do not divide them", "nobody has two more"]


def _check_speed(answer: Answer) -> list[str]:
    for gpus, compute_ms, exchange_ms, hidden_ms in (
        (4, 100.0, 0.0, 0.0),
        (4, 100.0, 208.0, 0.0),
        (4, 100.0, 208.0, 60.0),
        (8, 50.0, 20.0, 30.0),
        (1, 10.0, 0.0, 0.0),
    ):
        given = number(answer(gpus, compute_ms, exchange_ms, hidden_ms))
        wanted = gpus * compute_ms / (compute_ms + max(exchange_ms - hidden_ms, 0.0))
        if not math.isclose(given, wanted, rel_tol=1e-9):
            raise NotYet(
                f"{gpus} GPUs, {compute_ms:g} ms of computing, {exchange_ms:g} ms of exchange of "
                f"which {hidden_ms:g} ms may hide: {wanted:.2f} times one GPU, not {given:.2f}"
            )
    return ["five cases", "4 GPUs with 208 ms of exchange for 100 ms of computing: 1.30×"]


#: The first puzzle: what a rank sends in an all-reduce.
ring_sends = puzzle(
    "what a rank sends",
    hints=(
        "Cut the gradients into as many pieces as there are ranks. How large is a piece?",
        "ranks - 1 times a piece is passed on and added to, and ranks - 1 times one that is "
        "finished.",
        "2 * (ranks - 1) / ranks * nbytes",
    ),
    check=_check_ring,
)
#: The second puzzle: which samples a rank predicts.
share_of_rank = puzzle(
    "each sample once",
    hints=("range takes a start, an end and a step.", "Start at rank, and go on by ranks."),
    check=_check_share,
)
#: The third puzzle: how fast many GPUs are.
speed_of_many = puzzle(
    "how fast many are",
    hints=(
        "One GPU makes a batch in compute_ms. Many make gpus batches in that, and in what does "
        "not hide of the exchange.",
        "gpus * compute_ms / (compute_ms + max(exchange_ms - hidden_ms, 0))",
    ),
    check=_check_speed,
)

# ---- the exercise ------------------------------------------------------------------------

_LIMIT = 600  # bytes of a bucket in the check
_RANKS = 4
# The other ranks' gradients are so many times one's own, so that any order in a bucket is right.
_OTHERS = (0.5, 2.0, -1.0)


def _gradients(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> list[torch.Tensor]:
    import torch

    random = torch.Generator().manual_seed(len(shapes))
    found = [torch.randint(-8, 9, shape, generator=random).float() for shape in shapes]
    return [x.to(getattr(torch, dtype)) for x, dtype in zip(found, dtypes, strict=True)]


def _cases() -> dict[str, list[torch.Tensor]]:
    f32 = "float32"
    small = _gradients([(10, 4), (4,), (60,), (6, 5), (100,), (7,), (3, 3)], [f32] * 7)
    large = _gradients([(9,), (40, 20), (11,), (12,)], [f32] * 4)
    turned = [x.t() for x in _gradients([(6, 9), (5, 20), (8, 8)], [f32] * 3)]
    mixed = _gradients([(30,), (50,), (20,), (60,)], [f32, f32, "bfloat16", "bfloat16"])
    full = _gradients([(75,), (75,), (100,), (50,)], [f32] * 4)  # 600 B twice
    return {
        "small gradients": small,
        "one larger than a bucket": large,
        "gradients of a transposed weight": turned,
        "two dtypes": mixed,
        "buckets that are just full": full,
        "no gradients": [],
    }


class _Others:
    """``all_reduce`` among ranks of which one is here; keeps what it was given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def all_reduce(self, tensor: Any) -> None:
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise NotYet(f"all_reduce takes one tensor, got {type(tensor).__name__}")
        self.sizes.append(tensor.nbytes)
        with torch.no_grad():
            tensor.mul_(1 + sum(_OTHERS))


def _most_calls(gradients: Sequence[torch.Tensor], limit: int) -> int:
    """Calls of somebody who fills one bucket after the other, in one order or the other."""
    counts = []
    for order in (gradients, list(reversed(gradients))):
        calls, room, dtype = 0, 0, None
        for one in order:
            if one.nbytes > room or one.dtype is not dtype:
                calls, room, dtype = calls + 1, limit, one.dtype
            room -= one.nbytes
        counts.append(calls)
    return max(counts)


def _try(answer: Answer, gradients: list[torch.Tensor], limit: int) -> _Others:
    others = _Others()
    given = answer(gradients, limit, others.all_reduce, _RANKS)
    if not others.sizes and gradients and given is None:
        raise NotYet("your function never calls all_reduce")
    return others


def _check(answer: Answer) -> list[str]:
    import torch

    for name, own in _cases().items():
        gradients = [x.clone() if x.is_contiguous() else x.t().clone().t() for x in own]
        others = _try(answer, gradients, _LIMIT)
        sizes, total = others.sizes, sum(x.nbytes for x in own)
        alone = {x.nbytes for x in own}
        for size in sizes:
            if size > _LIMIT and size not in alone:
                raise NotYet(
                    f"{name}: a call with {size:,} B, and a bucket has {_LIMIT:,} B; only a "
                    "gradient that is larger by itself may have a larger one"
                )
        if sum(sizes) != total:
            less_or_more = "fewer" if sum(sizes) < total else "more"
            raise NotYet(
                f"{name}: {sum(sizes):,} B are sent, {less_or_more} than the {total:,} B of the "
                "gradients; is each sent once, in its own dtype?"
            )
        most = _most_calls(own, _LIMIT)
        if len(sizes) > most:
            raise NotYet(f"{name}: {len(sizes)} calls, and {most} are enough: fill the buckets")
        for k, (found, before) in enumerate(zip(gradients, own, strict=True)):
            if found.shape != before.shape or found.dtype is not before.dtype:
                raise NotYet(f"{name}: gradient {k} has another shape or dtype now")
            wanted = before.float() * (1 + sum(_OTHERS)) / _RANKS
            if torch.allclose(found.float(), wanted * _RANKS) and bool(wanted.any()):
                raise NotYet(f"{name}: gradient {k} is the sum over the ranks, not the mean")
            if torch.equal(found, before) and bool(wanted.any()):
                raise NotYet(
                    f"{name}: gradient {k} is what it was before: write the mean back, in place"
                )
            if not torch.allclose(found.float(), wanted, rtol=1e-2):
                raise NotYet(f"{name}: gradient {k} is not the mean over the ranks")
    return [
        "the mean over the ranks, in place, in six cases",
        "as many bytes as the gradients have, in buckets within the limit",
        "no more calls than full buckets need",
    ]


def _show(answer: Answer) -> Message:
    gradients = _cases()["small gradients"]
    total = sum(x.nbytes for x in gradients)
    sizes = _try(answer, gradients, _LIMIT).sizes
    said = ", ".join(f"{size:,}" for size in sizes) or "none"
    return Message(
        f"Seven gradients of {total:,} B, a limit of {_LIMIT:,} B",
        items=(f"calls of all_reduce, in bytes: {said}", f"sent: {sum(sizes):,} B"),
    )


in_buckets = Exercise(
    "an all-reduce in buckets",
    spec=(
        "average(gradients, limit, all_reduce, ranks) takes a list of tensors, and a function that "
        "adds up one tensor over all ranks, in place.",
        "After it, each gradient is the mean over the ranks, in the same tensor.",
        "all_reduce gets buckets: several gradients in one tensor, at most limit bytes, and no "
        "more calls than full buckets need. A gradient larger than the limit goes alone.",
        "All gradients are sent once, in their own dtype. Some are not contiguous.",
    ),
    hints=(
        "First make the buckets, as lists of gradients. A new one begins where the next gradient "
        "does not fit, or has another dtype.",
        "flat = torch.cat([g.flatten() for g in bucket]); all_reduce(flat); flat /= ranks.",
        "Back again: for g, part in zip(bucket, flat.split([g.numel() for g in bucket])): "
        "g.copy_(part.view(g.shape)).",
    ),
    show=_show,
    check=_check,
)
