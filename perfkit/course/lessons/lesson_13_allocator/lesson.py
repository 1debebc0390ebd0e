"""Lesson 13: texts of many lengths, three puzzles, and the exercise on batches of like lengths."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, something

if TYPE_CHECKING:
    import torch

_MIB = 1 << 20
#: Lengths like those of comments: the median, the spread of the logarithm, and both ends.
_MEDIAN, _SPREAD, _SHORTEST, _LONGEST = 148, 0.6, 16, 1000


def texts(
    n: int, *, words: int = 8000, length: int | None = None, scale: float = 1.0, seed: int = 0
) -> list[torch.Tensor]:
    """Made-up texts, of lengths as people write them: many short ones, and a few very long.

    Args:
        n: number of texts.
        words: size of the vocabulary; 0 is for padding and in no text.
        length: the same for all; otherwise they vary.
        scale: multiplies lengths that vary.
        seed: seed of the random numbers.

    Returns:
        Of each text its words, int64 ``(length,)``, from 1 to ``words - 1``.
    """
    import torch

    draw = torch.Generator().manual_seed(seed)
    lengths = (torch.randn(n, generator=draw) * _SPREAD).exp() * _MEDIAN
    lengths = (lengths.clamp(_SHORTEST, _LONGEST) * scale).int()
    if length is not None:
        lengths = torch.full((n,), length)
    return [torch.randint(1, words, (k,), generator=draw) for k in lengths.tolist()]


# ---- three puzzles of one line -----------------------------------------------------------


def _check_padding(answer: Answer) -> list[str]:
    for lengths in ([10, 10], [10, 5], [100, 1, 1, 1], [7], [3, 9, 27]):
        share = number(answer(lengths))
        wanted = 1 - sum(lengths) / (len(lengths) * max(lengths))
        if abs(share - wanted) > 1e-9:
            raise NotYet(
                f"texts of {', '.join(map(str, lengths))} words, padded to {max(lengths)}: "
                f"{share:.4g} is not the share of padding"
            )
    return ["the share of padding, in five batches"]


def _check_segment(answer: Answer) -> list[str]:
    for nbytes, wanted in (
        (4, 2 * _MIB),
        (_MIB, 2 * _MIB),
        (_MIB + 512, 20 * _MIB),
        (9 * _MIB, 20 * _MIB),
        (10 * _MIB, 10 * _MIB),
        (11 * _MIB, 12 * _MIB),
        (500 * _MIB + 512, 502 * _MIB),
    ):
        found = something(answer(nbytes))
        if found != wanted:
            raise NotYet(f"a request of {nbytes:,} B does not take {found:,} B from the device")
    return ["small, medium and large requests, and both borders"]


def _check_serve(answer: Answer) -> list[str]:
    for free, request, wanted in (
        ([[20, 30], [40]], 40, True),
        ([[20, 30], [40]], 41, False),
        ([[20, 30], [40]], 50, False),  # neighbours would have been joined
        ([[90], []], 60, True),
        ([[], []], 1, False),
        ([[10, 10, 10], [10]], 20, False),
    ):
        found = something(answer(free, request))
        if bool(found) is not wanted:
            says = "can be served" if wanted else "cannot be served"
            raise NotYet(f"free pieces {free}: a request of {request} {says} from them")
    return ["one free piece must be large enough; their sum does not count"]


#: The first puzzle: what of a batch is padding.
padding_share = puzzle(
    "the share of padding",
    hints=(
        "A padded batch has as many positions as texts × the longest of them.",
        "1 - sum(lengths) / (len(lengths) * max(lengths))",
    ),
    check=_check_padding,
)
#: The second puzzle: what a first request takes from the device.
first_segment = puzzle(
    "what a first request takes",
    hints=(
        "Three cases, from small to large: a if … else b if … else c.",
        "Up to a multiple of m: -(-nbytes // m) * m.",
    ),
    check=_check_segment,
)
#: The third puzzle: whether free pieces can serve a request.
can_serve = puzzle(
    "free, and large enough",
    hints=(
        "A tensor's memory is in one piece.",
        "Is there any piece, in any segment, of at least `request`?",
    ),
    check=_check_serve,
)

# ---- the exercise ------------------------------------------------------------------------

_SIZE = 16
#: Random batches of these lengths are 60 % padding, those of one sorted list 5 %.
_MOST_PADDING = 0.3
#: Of neighbours in a batch under one seed, so many at most may meet again under another.
_MEET_AGAIN = 0.5


def _lengths(n: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    drawn = (_MEDIAN * 2.718281828 ** draw.gauss(0, _SPREAD) for _ in range(n))
    return [int(min(max(k, _SHORTEST), _LONGEST)) for k in drawn]


def _batches(given: Any, n: int) -> list[list[int]]:
    """The answer as lists of numbers, or why it cannot be read so."""
    if given is None:
        raise NotYet("your function returns nothing yet: return a list of batches")
    try:
        found = [[int(k) for k in batch] for batch in given]
    except TypeError:
        raise NotYet("return a list of batches, each a list of indices of texts") from None
    if any(not 0 <= k < n for batch in found for k in batch):
        raise NotYet(f"{n} texts have the numbers 0 to {n - 1}; a batch has another one")
    return found


def _padding(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    positions = sum(len(batch) * max(lengths[k] for k in batch) for batch in batches if batch)
    return 1 - sum(lengths) / positions


def _pairs(batches: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    return {(a, b) for batch in batches for a in batch for b in batch if a < b}


def _show(answer: Answer) -> Message:
    lengths = _lengths(12 * _SIZE, seed=1)
    found = _batches(answer(list(lengths), _SIZE, 0), len(lengths))
    if not any(found):
        raise NotYet("there is no text in your batches")
    return Message(
        f"{len(lengths)} texts in {len(found)} batches, {_padding(found, lengths):.0%} padding",
        items=tuple(
            f"{len(batch)} texts of {min(lengths[k] for k in batch)} to "
            f"{max(lengths[k] for k in batch)} words"
            for batch in found
            if batch
        ),
    )


def _check(answer: Answer) -> list[str]:
    for n in (100 * _SIZE, 100 * _SIZE + 5, _SIZE, 3):
        lengths = _lengths(n, seed=n)
        before = list(lengths)
        found = _batches(answer(lengths, _SIZE, 0), n)
        if lengths != before:
            raise NotYet("your function changes the list of lengths that it is given")
        counts = Counter(k for batch in found for k in batch)
        if counts == Counter(lengths):
            raise NotYet("your batches list the lengths of texts; return their indices")
        if max(counts.values(), default=0) > 1:
            twice = next(k for k, count in counts.items() if count > 1)
            raise NotYet(f"{n} texts: number {twice} is in your batches more than once")
        if len(counts) < n:
            raise NotYet(f"{n} texts: {n - len(counts)} of them are in no batch")
        sizes = sorted(map(len, found))
        if sizes[-1] > _SIZE or any(size != _SIZE for size in sizes[1:]) or sizes[0] == 0:
            raise NotYet(
                f"{n} texts: all batches but one have {_SIZE} texts, yours have "
                f"{', '.join(map(str, sorted(set(sizes))))}"
            )
    n = 100 * _SIZE
    lengths = _lengths(n, seed=n)
    first, again, other = (_batches(answer(list(lengths), _SIZE, seed), n) for seed in (0, 0, 1))
    padding = _padding(first, lengths)
    if padding > _MOST_PADDING:
        raise NotYet(
            f"{padding:.0%} of the positions are padding; at most {_MOST_PADDING:.0%} is asked "
            "for. Do texts of like length meet?"
        )
    if first != again:
        raise NotYet("the same seed gives different batches the second time")
    met = _pairs(first)
    meet_again = len(met & _pairs(other)) / len(met)
    if meet_again > _MEET_AGAIN:
        raise NotYet(
            f"with another seed {meet_again:.0%} of all pairs meet again: the same texts are "
            "together in every epoch"
        )
    longest = [max(lengths[k] for k in batch) for batch in first]
    up = [a < b for a, b in itertools.pairwise(longest)]
    # of random lengths half rise, and two of three turn: sorted pools, up and down, turn seldom
    turns = sum(a is not b for a, b in itertools.pairwise(up)) / (len(up) - 1)
    middle = sorted(longest)[len(longest) // 2]
    early = sum(k > middle for k in longest[: len(longest) // 2]) / (len(longest) // 2)
    if not 0.3 < sum(up) / len(up) < 0.7 or turns < 0.5 or not 0.25 < early < 0.75:
        raise NotYet("long batches and short ones do not come at random: mix the batches, too")
    return [
        "each text once, and one batch at most that is smaller",
        f"{padding:.0%} padding; random batches have "
        f"{_padding([list(range(k, k + _SIZE)) for k in range(0, n, _SIZE)], lengths):.0%}",
        "different texts meet in another epoch, and long and short batches are mixed",
    ]


batches_of_like_length = Exercise(
    "batches of like length, reshuffled in each epoch",
    spec=(
        "batches(lengths, size, seed) returns a list of batches, each a list of indices of texts.",
        "Each text is in one batch. All batches have `size` texts, except one that may have fewer.",
        f"At most {_MOST_PADDING:.0%} of the positions of padded batches are padding.",
        "A different seed lets different texts meet; the same seed gives the same batches.",
        "Long batches and short ones come in random order.",
    ),
    hints=(
        "Sorting all texts gives the least padding, and the same neighbours in each epoch. Sort "
        "less than all.",
        "Mix all numbers; cut them into pools of, say, 20 batches; sort each pool by length; cut "
        "it into batches; mix the batches.",
        "draw = random.Random(seed); draw.shuffle(order); for a pool: sorted(order[k : k + 20 * "
        "size], key=lengths.__getitem__).",
        "A pool that ends in the middle of a batch gives more than one small batch: make its size "
        "a multiple of `size`.",
    ),
    show=_show,
    check=_check,
)
