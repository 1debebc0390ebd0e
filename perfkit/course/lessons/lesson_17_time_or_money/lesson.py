"""Lesson 17: example prices, three puzzles, and the exercise on offers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any

from perfkit.base.words import plural
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle

#: What the first page of a data sheet prints for 16 bits, 10¹² FLOP/s. Some count only what is
#: computed, others twice as much, "with sparsity"; perfkit's table has the dense figures.
PRINTED: Mapping[str, float] = MappingProxyType(
    {"L4": 242, "L40S": 733, "A100 80GB SXM": 312, "H100 SXM": 1979, "H200": 1979}
)
#: US dollars an hour: round numbers to calculate with, of the size of on-demand prices in 2025.
EXAMPLE_PRICES: Mapping[str, float] = MappingProxyType(
    {"L4": 0.70, "L40S": 1.00, "A100 80GB SXM": 1.80, "H100 SXM": 3.00, "H200": 3.80}
)
PRICES_FROM = "made-up round prices of the order of 2025, not offers"


# ---- three puzzles of one line -----------------------------------------------------------


def _check_least(answer: Answer) -> list[str]:
    for flops, nbytes, flop_per_s, bytes_per_s in (
        (2e12, 1e9, 1e15, 1e12),
        (1e9, 1e10, 1e15, 2e12),
        (0, 4e9, 1e14, 1e12),
        (3e12, 6e9, 1e15, 2e12),
        (5e9, 8.25e8, 1e11, 1e10),
    ):
        given = number(answer(flops, nbytes, flop_per_s, bytes_per_s))
        each = (1e3 * flops / flop_per_s, 1e3 * nbytes / bytes_per_s)
        if not math.isclose(given, max(each), rel_tol=1e-6):
            raise NotYet(
                f"{each[0]:g} ms of arithmetic and {each[1]:g} ms of memory traffic, at the same "
                f"time: at least {max(each):g} ms, not {given:g}"
            )
    return ["the longer of the two, in ms, in five cases"]


def _check_mfu(answer: Answer) -> list[str]:
    for flops, again, seconds, peak in (
        (4e12, 0.0, 0.01, 1e15),
        (4e12, 1e12, 0.01, 1e15),
        (9e12, 3e12, 0.05, 3e14),
        (1e9, 2.5e8, 0.1, 1e11),
    ):
        given = number(answer(flops, again, seconds, peak))
        wanted = (flops - again) / seconds / peak
        if math.isclose(given, wanted, rel_tol=1e-6):
            continue
        why = "; that is the HFU" if math.isclose(given, flops / seconds / peak) else ""
        raise NotYet(
            f"{flops:.3g} FLOPs, {again:.3g} of them a second time, in {seconds:g} s on a device "
            f"of {peak:.3g} FLOP/s: the MFU is {wanted:.4g}, not {given:.4g}{why}"
        )
    return ["what the model needs over what the device could do, in four cases"]


def _check_electricity(answer: Answer) -> list[str]:
    for joules, steps, per_kwh in ((7.0, 100_000, 0.30), (3.6e6, 1, 0.25), (0.5, 10**7, 0.12)):
        given = number(answer(joules, steps, per_kwh))
        wanted = joules * steps / 3.6e6 * per_kwh
        if not math.isclose(given, wanted, rel_tol=1e-6):
            raise NotYet(
                f"{steps:,} steps of {joules:,g} J at {per_kwh:g} for a kWh: {wanted:.4g}, not "
                f"{given:.4g}"
            )
    return ["joules to kWh to money, in three cases"]


#: The first puzzle: the roofline.
least_of = puzzle(
    "the lower bound of an operator",
    hints=(
        "Arithmetic takes flops / flop_per_s seconds, moving the bytes nbytes / bytes_per_s. A "
        "device does both at the same time.",
        "1e3 * max(flops / flop_per_s, nbytes / bytes_per_s)",
    ),
    check=_check_least,
)
#: The second puzzle: model FLOPs utilization.
mfu_of = puzzle(
    "the share of the peak that serves the model",
    hints=(
        "Only the FLOPs that the model needs: without those done again. Over the time, that is a "
        "rate; over the peak, a share.",
        "(flops - again) / seconds / peak",
    ),
    check=_check_mfu,
)
#: The third puzzle: what a step's joules cost.
electricity_of = puzzle(
    "the price of electricity",
    hints=("A kWh is 1,000 W for 3,600 s: 3.6 million joules.", "joules * steps / 3.6e6 * per_kwh"),
    check=_check_electricity,
)

# ---- the exercise ------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to get a training done.

    Attributes:
        name: what it is.
        per_hour: price of an hour of the machine.
        compute_hours: computing of an epoch.
        load_hours: loading of an epoch, beside the computing.
        work_hours: hours of somebody's work before the first epoch.
    """

    name: str
    per_hour: float
    compute_hours: float
    load_hours: float = 0.0
    work_hours: float = 0.0


_L4 = Way("an L4 as it is", 0.75, 8, load_hours=1)
#: now, other, wage an hour: what the reader sees; the check has seven more.
OFFERS: tuple[tuple[Way, Way, float], ...] = (
    (_L4, Way("two days of work", 0.75, 4, load_hours=1, work_hours=16), 60),
    (_L4, Way("an H100", 3, 1, load_hours=0.5), 60),
    (
        Way("data-bound, on an L4", 0.75, 2, load_hours=4),
        Way("data-bound, on an H100", 3, 0.25, load_hours=4),
        60,
    ),
    (
        Way("data-bound, on an L4", 0.75, 2, load_hours=4),
        Way("a faster loader", 0.75, 2, load_hours=1, work_hours=2),
        60,
    ),
)
_UNSEEN: tuple[tuple[Way, Way, float], ...] = (
    (Way("now", 2, 3, work_hours=2), Way("cheaper, and less work", 2, 1), 64),
    (Way("now", 2, 3), Way("the same price without work", 3, 2), 64),
    (Way("now", 2, 3), Way("the same price after work", 3, 2, work_hours=1), 64),
    (Way("now", 1, 2), Way("dearer in every epoch", 4, 1), 50),
    (Way("now", 1, 2, work_hours=3), Way("dearer, with less work", 4, 1), 50),
    (Way("now", 4, 2, work_hours=1), Way("half of the work is done", 4, 1, work_hours=4), 30),
    (Way("now", 4, 2), Way("it computes faster than it loads", 4, 0.5, 1, work_hours=1), 10),
)
_TOLERANCE = 1e-9


def _per_epoch(way: Way) -> float:
    return way.per_hour * max(way.compute_hours, way.load_hours)


def _right(now: Way, other: Way, wage: float) -> int | None:
    more = (other.work_hours - now.work_hours) * wage
    saved = _per_epoch(now) - _per_epoch(other)
    if saved < -_TOLERANCE:
        return None
    if saved <= _TOLERANCE:
        return 0 if more <= _TOLERANCE else None
    return max(0, math.ceil(more / saved - _TOLERANCE))


def _answered(given: Any) -> int | None:
    """Whole epochs, or None for never."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, Real):
        raise NotYet(f"return a number of epochs, or None for never, got {type(given).__name__}")
    epochs = float(given)
    if not math.isfinite(epochs):
        raise NotYet("if it never pays, return None")
    if epochs < 0:
        raise NotYet("a number of epochs is 0 or more; return None if it never pays")
    if not epochs.is_integer():
        raise NotYet(f"an epoch is whole: {epochs:g} is not a number of epochs")
    return int(epochs)


def _words(epochs: int | None) -> str:
    if epochs is None:
        return "never pays"
    when = "the start" if epochs == 0 else f"{plural(epochs, 'epoch')} on"
    return f"pays from {when}"


def _terms(way: Way) -> str:
    loading = f", loading {way.load_hours:g} h" if way.load_hours else ""
    work = f", after {way.work_hours:g} h of work" if way.work_hours else ""
    return f"{way.name}: {way.per_hour:g} an hour, computing {way.compute_hours:g} h{loading}{work}"


def _judge(now: Way, other: Way, wage: float, answer: Answer) -> None:
    given, wanted = _answered(answer(now, other, wage)), _right(now, other, wage)
    if given != wanted:
        raise NotYet(
            f"{_terms(now)}; {_terms(other)}; an hour of work is {wage:g}: it "
            f"{_words(wanted)}, and your function says that it {_words(given)}"
        )


def _show(answer: Answer) -> Message:
    if all(answer(*offer) is None for offer in OFFERS):
        raise NotYet("your function says None, never, of every offer")
    return Message(
        "Four offers",
        items=tuple(
            f"{_terms(now)}; {_terms(other)}; work at {wage:g} an hour: "
            f"{_words(_answered(answer(now, other, wage)))}"
            for now, other, wage in OFFERS
        ),
    )


def _check(answer: Answer) -> list[str]:
    if all(answer(*offer) is None for offer in OFFERS):
        raise NotYet("your function says None, never, of every offer")
    for now, other, wage in (*OFFERS, *_UNSEEN):
        _judge(now, other, wage, answer)
    return [
        "the right number of epochs for four offers that you know and seven that you do not",
        "no GPU pays where loading takes the time",
    ]


break_even_of = Exercise(
    "when the other way pays",
    spec=(
        "break_even(now, other, wage) returns the smallest whole number of epochs, 0 or more, from "
        "which on the other way costs no more than the present one. None if it never does.",
        "An epoch takes the longer of compute_hours and load_hours: loading goes on beside. Each "
        "hour costs per_hour.",
        "Before the first epoch, work_hours are paid at wage, of either way.",
        "A way that is cheaper at first and dearer in each epoch does not pay from some epoch on.",
    ),
    hints=(
        "Two numbers decide: what the other way costs more at first, (other.work_hours - "
        "now.work_hours) * wage, and what it saves in each epoch.",
        "An epoch costs way.per_hour * max(way.compute_hours, way.load_hours).",
        "saved < 0: None. saved == 0: 0 if it costs no more at first, else None. Otherwise max(0, "
        "math.ceil(more / saved)).",
    ),
    show=_show,
    check=_check,
)
