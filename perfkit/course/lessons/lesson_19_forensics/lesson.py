"""Lesson 19: three puzzles, and the eight cards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from perfkit.base.words import plural
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle

# ---- three puzzles of one line -----------------------------------------------------------


def _check_least(answer: Answer) -> list[str]:
    for amount, per_second in ((600e9, 600e9), (1e12, 31e12), (16_106_127_360, 600e9), (0, 1e9)):
        given, wanted = number(answer(amount, per_second)), 1e3 * amount / per_second
        if not math.isclose(given, wanted, rel_tol=1e-6):
            raise NotYet(
                f"{amount:,.0f} at {per_second:,.0f} a second: your line says {given:g}. How many "
                "seconds are that, and how many milliseconds?"
            )
    return ["the lower bound of four amounts, in milliseconds"]


def _check_shrinks(answer: Answer) -> list[str]:
    for channels, wanted in ((3, 5.0), (1, 6.0), (4, 24 / 5), (0, 8.0)):
        given = number(answer(channels))
        if not math.isclose(given, wanted, rel_tol=1e-6):
            what = (
                f"a picture of {plural(channels, 'channel')} and its mask"
                if channels
                else "a mask alone"
            )
            raise NotYet(f"{what}: the batch does not become {given:g} times smaller")
    return ["three channels: 20 bytes a pixel become 4", "the fewer channels, the more it shrinks"]


def _check_ready(answer: Answer) -> list[str]:
    for workers, factor in ((2, 8), (8, 2), (1, 2), (4, 5)):
        given = number(answer(workers, factor))
        if given != workers * factor:
            raise NotYet(
                f"{plural(workers, 'worker')} with prefetch_factor={factor}: not {given:g} batches "
                "can be ready or under way before the loop takes the first"
            )
    return ["a profile that is not longer than this has not met the loader"]


#: The first puzzle: an amount and a rate.
least_time = puzzle(
    "the lower bound",
    hints=("Amount by rate is seconds.", "1e3 * amount / per_second"),
    check=_check_least,
)
#: The second puzzle: how far a batch shrinks.
shrinks = puzzle(
    "how far a batch shrinks",
    hints=(
        "A pixel of float32 has 4 bytes a channel, and its mask int64: 8 more.",
        "In uint8 it is one byte a channel and one for the mask.",
    ),
    check=_check_shrinks,
)
#: The third puzzle: how much a queue hides.
ready_batches = puzzle(
    "what the queue hides",
    hints=("prefetch_factor is counted for each worker.",),
    check=_check_ready,
)

# ---- the exercise ------------------------------------------------------------------------

_VERDICTS = ("refuted", "stands")


@dataclass(frozen=True)
class Card:
    """A published figure, and what to calculate.

    Attributes:
        says: the figure and what is known about it.
        asks: the bound to calculate, with its unit.
    """

    says: str
    asks: str


@dataclass(frozen=True)
class _Key:
    """The verdict, the bounds that are true and tell, and what is wrong with others.

    ``slip`` is a bound between them that only a wrong calculation gives, and what is wrong with it.
    """

    verdict: str
    low: float
    high: float
    too_low: str
    too_high: str
    slip: tuple[float, str] | None = None


#: The eight cards, by name.
CARDS: Mapping[str, Card] = {
    "step": Card(
        "A training step takes 5.4 ms: 256 pictures of 3 × 256 × 256 through twelve 3 × 3 "
        "convolutions of ten channels, forward and backward, in float32, on a GPU with 31 TFLOP/s "
        "and 600 GB/s.",
        "the least ms of a step",
    ),
    "pictures": Card(
        "The same 5.4 ms, in a long run. Each picture is drawn anew from random numbers, say by "
        "eight processes with 300 million numbers a second each.",
        "the least ms of a step",
    ),
    "gain": Card(
        "1.3 s became 5.4 ms, 240 times as fast, because the GPU no longer waits. Before, it was "
        "busy 90 % of the time.",
        "the most that it can gain, as a ratio",
    ),
    "workers": Card(
        "Eight workers of a DataLoader hold 1,336 MB: 32 pictures of 512 × 512 × 3 in float32 and "
        "32 masks in int64 each. prefetch_factor is the default, 2, and the loop is slower than "
        "its loader.",
        "what they hold, in MB of 10^6 bytes",
    ),
    "fifth": Card(
        "With uint8 for those pictures and masks, a batch is a fifth.",
        "how many times smaller it gets",
    ),
    "imagenet": Card(
        "A machine with 248 GB of memory holds all of ImageNet, as files: 1,281,167 pictures of "
        "110 kB on average.",
        "the GB (10^9 bytes) that it takes",
    ),
    "tenfold": Card(
        "With all advice together an epoch takes a tenth of the time.",
        "the least % of the old epoch that was avoidable",
    ),
    "accumulate": Card(
        "Sixteen batches of 8 do what one of 128 does. The listing calls backward() on the mean "
        "loss of each, and then step().",
        "the length of its first gradient, as a multiple of that of one batch of 128",
    ),
}

_KEYS = {
    "step": _Key(
        "refuted", 5.4, 136.0,
        "that bound is true and below 5.4 ms: it refutes nothing. What else must move or be "
        "computed?",
        "operator by operator it needs 135 ms at those rates: nothing that you can count needs "
        "more",
    ),
    "pictures": _Key(
        "refuted", 5.4, 21.1,
        "below 5.4 ms, so it refutes nothing: a batch has 256 pictures of three channels",
        "eight processes draw at the same time",
    ),
    "gain": _Key(
        "refuted", 1.11, 238.0,
        "10 % of the step was idle: without it, 90 % remains",
        "that refutes nothing: what does the step after it take at least?",
        slip=(10.0, "1 / 0.1? The GPU was idle for 10 % of the step, not busy for 10 %"),
    ),
    "workers": _Key(
        "refuted", 2_550.0, 2_690.0,
        "each worker keeps prefetch_factor batches, not one (and count the masks: 8 bytes a pixel)",
        "eight workers with two batches each hold sixteen, counted in 10^6 bytes",
    ),
    "fifth": _Key(
        "stands", 4.99, 5.01,
        "a mask goes from 8 bytes a pixel to 1, the picture from 12 to 3",
        "a mask goes from 8 bytes a pixel to 1, the picture from 12 to 3",
    ),
    "imagenet": _Key(
        "stands", 130.0, 142.0,
        "1,281,167 times 110,000 bytes are more",
        "as files, not decoded, and in 10^9 bytes",
    ),
    "tenfold": _Key(
        "stands", 89.9, 90.1,
        "a tenth of the time remains: which part is gone? In per cent",
        "a tenth of the time remains: which part is gone? In per cent",
    ),
    "accumulate": _Key(
        "refuted", 15.99, 16.01,
        "nothing divides: sixteen gradients of a mean are added",
        "its first gradient: what it forgets to clear comes later",
    ),
}  # fmt: skip


def _given(answer: Answer) -> dict[str, tuple[str, float]]:
    given = answer()
    if given is None:
        raise NotYet("your function returns nothing yet: return a dict with a row for each card")
    if not isinstance(given, dict):
        raise NotYet(f"return a dict, got {type(given).__name__}")
    unknown = [str(name) for name in given if name not in CARDS]
    if unknown:
        raise NotYet(f"no card is called {unknown[0]!r}; they are {', '.join(CARDS)}")
    found = {}
    for name, row in given.items():
        if row is None:
            continue
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise NotYet(f"{name}: a row is (verdict, bound)")
        verdict, bound = row
        if verdict not in _VERDICTS:
            raise NotYet(f'{name}: the verdict is "refuted" or "stands", not {verdict!r}')
        if isinstance(bound, bool) or not isinstance(bound, Real):
            raise NotYet(f"{name}: the bound is a number, got {type(bound).__name__}")
        if not math.isfinite(bound):
            raise NotYet(f"{name}: the bound is {bound}")
        found[name] = (verdict, float(bound))
    return found


def _show(answer: Answer) -> Message:
    found = _given(answer)
    lines = []
    for name, card in CARDS.items():
        said = "open" if name not in found else f"{found[name][0]}; {found[name][1]:,.4g}"
        lines.append(f"{name}: {said} ({card.asks})")
    return Message("Your verdicts", items=tuple(lines))


def _check(answer: Answer) -> list[str]:
    found = _given(answer)
    missing = [name for name in CARDS if name not in found]
    if missing:
        raise NotYet(f"no row yet for: {', '.join(missing)}")
    for name, (verdict, bound) in found.items():
        key = _KEYS[name]
        if bound < key.low:
            raise NotYet(f"{name}: {bound:,.4g}? {key.too_low}")
        if bound > key.high:
            raise NotYet(f"{name}: {bound:,.4g}? {key.too_high}")
        if key.slip is not None and math.isclose(bound, key.slip[0], rel_tol=0.01):
            raise NotYet(f"{name}: {bound:,.4g}? {key.slip[1]}")
        if verdict != key.verdict:
            raise NotYet(
                f"{name}: the bound is right, {bound:,.4g}. Put it beside the figure: does it "
                f"leave it standing, as you say, or not?"
                if verdict == "stands"
                else f"{name}: the bound is right, {bound:,.4g}. It contradicts nothing that the "
                "card says"
            )
    refuted = [name for name, (verdict, _) in found.items() if verdict == "refuted"]
    return [
        f"refuted by a bound: {', '.join(refuted)}",
        "the others stand: no bound refutes them, which is not yet a proof",
    ]


eight_cards = Exercise(
    "eight cards",
    spec=(
        "verdicts() returns a dict: the card's name -> (verdict, bound).",
        'The verdict is "refuted" or "stands"; the bound is what the card asks for.',
        *(f"{name}: {card.says} → {card.asks}" for name, card in CARDS.items()),
    ),
    hints=(
        "For each card: what must happen whatever the software does, and how fast can it happen? "
        "Take what must happen once, and the best rate.",
        "step: each convolution's result is written once and read once, 256 × 10 × 256² floats of "
        "4 bytes. gain: if a tenth was idle, nine tenths remain.",
        "pictures: 256 × 3 × 256² numbers, eight processes. workers: 8 × 2 batches. tenfold: what "
        "is gone if a tenth remains?",
        "accumulate: sixteen gradients of a mean, each as long as the one of 128, are added.",
    ),
    show=_show,
    check=_check,
)
