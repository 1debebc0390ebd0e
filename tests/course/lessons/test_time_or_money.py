"""Lesson 17: steps on paper, the exercise and its puzzles, the picture, and its claims."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_17_time_or_money.lesson import (
    EXAMPLE_PRICES,
    OFFERS,
    PRINTED,
    Way,
    break_even_of,
    electricity_of,
    least_of,
    mfu_of,
)
from perfkit.course.lessons.lesson_17_time_or_money.measured import Arriving
from perfkit.course.lessons.lesson_17_time_or_money.pictures import draw_gpus
from perfkit.course.lessons.lesson_17_time_or_money.predicted import count, least_ms, on_paper
from perfkit.limit.datasheet import data_sheet

# ---- right answers


def _epoch(way: Way) -> float:
    return way.per_hour * max(way.compute_hours, way.load_hours)


def _by_formula(now: Way, other: Way, wage: float) -> int | None:
    more, saved = (other.work_hours - now.work_hours) * wage, _epoch(now) - _epoch(other)
    if saved < 0 or (saved == 0 and more > 0):
        return None
    return max(0, math.ceil(more / saved)) if saved else 0


def _counts_up(now: Way, other: Way, wage: float) -> int | None:
    """Epoch after epoch, and gives up late."""
    if _epoch(other) > _epoch(now):
        return None

    def total(way: Way, n: int) -> float:
        return way.work_hours * wage + n * _epoch(way)

    return next((n for n in range(10_000) if total(other, n) <= total(now, n)), None)


def _as_float(now: Way, other: Way, wage: float) -> float | None:
    found = _by_formula(now, other, wage)
    return None if found is None else float(found)


def _floor_of_negative(now: Way, other: Way, wage: float) -> int | None:
    more, saved = wage * other.work_hours - wage * now.work_hours, _epoch(now) - _epoch(other)
    if saved > 0:
        return max(-int(-more // saved), 0)
    return None if saved < 0 or more > 0 else 0


def _as_fractions(now: Way, other: Way, wage: float) -> int | None:
    more = Fraction(wage) * Fraction(other.work_hours - now.work_hours)
    saved = Fraction(_epoch(now)) - Fraction(_epoch(other))
    if saved <= 0:
        return 0 if saved == 0 and more <= 0 else None
    return max(0, math.ceil(more / saved))


def _of_numpy(now: Way, other: Way, wage: float) -> Any:
    found = _by_formula(now, other, wage)
    return None if found is None else numpy.int64(found)


def _by_bisection(now: Way, other: Way, wage: float) -> int | None:
    def pays(n: int) -> bool:
        more = (other.work_hours - now.work_hours) * wage
        return more <= n * (_epoch(now) - _epoch(other))

    if _epoch(other) > _epoch(now) or not pays(100_000):
        return None
    return bisect.bisect_left(range(100_000), True, key=pays)


@pytest.mark.parametrize(
    "answer",
    [
        _by_formula,
        _counts_up,
        _as_float,
        _floor_of_negative,
        _as_fractions,
        _of_numpy,
        _by_bisection,
    ],
)
def test_right_answers_pass(answer: Callable[..., Any]) -> None:
    said = " ".join(repr(break_even_of.check(answer)).split())
    assert said.startswith("Done"), said
    assert "four offers that you know and seven that you do not" in said


def _with(epoch: Callable[[Way], float]) -> Callable[..., Any]:
    """The right formula with another price of an epoch."""

    def answer(now: Way, other: Way, wage: float) -> int | None:
        more, saved = (other.work_hours - now.work_hours) * wage, epoch(now) - epoch(other)
        if saved < 0 or (saved == 0 and more > 0):
            return None
        return max(0, math.ceil(more / saved)) if saved else 0

    return answer


def _rounded(by: Callable[[float], int]) -> Callable[..., Any]:
    def answer(now: Way, other: Way, wage: float) -> int | None:
        more, saved = (other.work_hours - now.work_hours) * wage, _epoch(now) - _epoch(other)
        if saved <= 0:
            return _by_formula(now, other, wage)
        return max(0, by(more / saved))

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda now, other, wage: None, "None, never, of every offer"),
        (lambda now, other, wage: "ten", "a number of epochs, or None for never, got str"),
        (lambda now, other, wage: 3.5, "3.5 is not a number of epochs"),
        (lambda now, other, wage: math.inf, "if it never pays, return None"),
        (lambda now, other, wage: 0, "your function says that it pays from the start"),
        (_with(lambda w: w.per_hour * (w.compute_hours + w.load_hours)), "it pays"),
        (_with(lambda w: w.per_hour * w.compute_hours), "data-bound"),
        (_with(lambda w: max(w.compute_hours, w.load_hours)), "it pays"),
        (_rounded(math.floor), "it pays"),
        (
            _rounded(lambda x: math.floor(x) + 1),
            "it pays from 320 epochs on, and your function says that it pays from 321 epochs on",
        ),
        (lambda now, other, wage: _by_formula(now, other, 1.0), "it pays"),
        (
            lambda now, other, wage: _by_formula(
                Way("", now.per_hour, now.compute_hours, now.load_hours), other, wage
            ),
            "half of the work is done",
        ),
        (
            lambda now, other, wage: math.ceil(
                (other.work_hours - now.work_hours) * wage / (_epoch(now) - _epoch(other))
            ),
            "",
        ),
        (
            lambda now, other, wage: (
                None if other.per_hour > now.per_hour else _by_formula(now, other, wage)
            ),
            "it pays from the start, and your function says that it never pays",
        ),
        (
            lambda now, other, wage: max(1, _by_formula(now, other, wage) or 0),
            "it pays from the start, and your function says that it pays from 1 epoch on",
        ),
        (
            lambda now, other, wage: (
                -1 if _epoch(other) > _epoch(now) else _by_formula(now, other, wage)
            ),
            "a number of epochs is 0 or more; return None if it never pays",
        ),
        (
            lambda now, other, wage: (
                None if _epoch(other) >= _epoch(now) else _by_formula(now, other, wage)
            ),
            "the same price without work",
        ),
        (_with(lambda w: w.per_hour * min(w.compute_hours, w.load_hours)), "never pays"),
        (_rounded(round), "from 23 epochs on, and your function says that it pays from 22"),
        (
            lambda now, other, wage: _by_formula(
                Way("", now.per_hour, now.compute_hours, now.load_hours),
                Way(
                    "",
                    other.per_hour,
                    other.compute_hours,
                    other.load_hours,
                    abs(other.work_hours - now.work_hours),
                ),
                wage,
            ),
            "cheaper, and less work: 2 an hour, computing 1 h; an hour of work is 64: it pays from "
            "the start",
        ),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(break_even_of.check(answer)).split())
    assert not said.startswith("Done"), said
    assert reason in said, said


def test_show_goes_through_the_offers_that_the_reader_knows() -> None:
    said = " ".join(repr(break_even_of.show(_by_formula)).split())
    for now, other, _ in OFFERS:
        assert now.name in said
        assert other.name in said
    assert "pays from 320 epochs on" in said
    assert (
        "an H100: 3 an hour, computing 1 h, loading 0.5 h; work at 60 an hour: pays from the"
        in (said)
    )
    assert "Nothing to see yet" in repr(break_even_of.show(lambda *_: None))


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (least_of, lambda f, b, fs, bs: 1e3 * max(f / fs, b / bs), "Done"),
        (least_of, lambda f, b, fs, bs: max(1000 * f / fs, 1000 * b / bs), "Done"),
        (least_of, lambda f, b, fs, bs: 1e3 * (f / fs if f / fs > b / bs else b / bs), "Done"),
        (least_of, lambda *_: None, "returns nothing yet"),
        (least_of, lambda f, b, fs, bs: 1e3 * (f / fs + b / bs), "at least 2 ms, not 3"),
        (least_of, lambda f, b, fs, bs: 1e3 * f / fs, "not 0.001"),
        (least_of, lambda f, b, fs, bs: max(f / fs, b / bs), "at least 2 ms, not 0.002"),
        (least_of, lambda f, b, fs, bs: 1e3 * min(f / fs, b / bs), "at least 2 ms, not 1"),
        (least_of, lambda f, b, fs, bs: int(1e3 * max(f / fs, b / bs)), "at least 82.5 ms, not 82"),
        (least_of, lambda *_: "2", "got str"),
        (mfu_of, lambda f, a, s, p: (f - a) / s / p, "Done"),
        (mfu_of, lambda f, a, s, p: (f - a) / (s * p), "Done"),
        (mfu_of, lambda f, a, s, p: f / s / p * (1 - a / f), "Done"),
        (mfu_of, lambda *_: None, "returns nothing yet"),
        (mfu_of, lambda f, a, s, p: f / s / p, "that is the HFU"),
        (mfu_of, lambda f, a, s, p: (f + a) / s / p, "the MFU is 0.3, not 0.5"),
        (mfu_of, lambda f, a, s, p: 100 * (f - a) / s / p, "the MFU is 0.4, not 40"),
        (mfu_of, lambda f, a, s, p: (f - a) / p, "not 0.004"),
        (mfu_of, lambda f, a, s, p: p * s / (f - a), "not 2.5"),
        (electricity_of, lambda j, n, k: j * n / 3.6e6 * k, "Done"),
        (electricity_of, lambda j, n, k: k * (j * n) / 1000 / 3600, "Done"),
        (electricity_of, lambda j, n, k: n * j * k / (1000 * 60 * 60), "Done"),
        (electricity_of, lambda *_: None, "returns nothing yet"),
        (electricity_of, lambda j, n, k: j * n / 1000 * k, "0.05833, not 210"),
        (electricity_of, lambda j, n, k: j * n / 3600 * k, "not 58.33"),
        (electricity_of, lambda j, n, k: j * n / 3.6e6, "not 0.1944"),
        (electricity_of, lambda j, n, k: j / 3.6e6 * k, "0.05833, not"),
        (electricity_of, lambda j, n, k: True, "got bool"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said


def test_a_puzzle_has_no_show() -> None:
    assert "only .check(answer)" in repr(least_of.show(lambda *_: 1))


# ---- on paper


def _trainer(n: int) -> Callable[[], Callable[[], object]]:
    import torch

    def make() -> Callable[[], object]:
        model = torch.nn.Linear(n, n)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        inputs = torch.randn(2 * n, n)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

        return step

    return make


def test_a_step_on_paper_is_counted_in_full_and_takes_no_memory() -> None:
    n = 32_768  # 4 GB of weights, as many gradients and twice as many states
    recorded = on_paper(_trainer(n))
    found = count(recorded, "H100 SXM")
    # forward, and the gradient of the weight: the input needs none
    assert found.flops == pytest.approx(2 * 2 * (2 * n) * n * n)
    optimizer = sum(op.n_bytes for op in found.ops if op.family == "optimizer")
    assert optimizer == 7 * 4 * (n * n + n)
    least = least_ms(recorded, ["H100 SXM", "L4"])
    at_least_ms = 2 * 2 * (2 * n) * n * n / 989.5e12 * 1e3
    assert at_least_ms < least["H100 SXM"] < least["L4"]
    products = [op for op in found.ops if op.family == "matrix product"]
    assert {op.form for op in products} == {"bfloat16"}


def test_a_device_without_a_data_sheet_is_refused() -> None:
    with pytest.raises(UsageError, match="no data sheet"):
        least_ms(on_paper(_trainer(8)), ["GeForce 256"])


# ---- the table and the picture


def test_the_printed_figures_are_dense_ones_or_twice_as_much() -> None:
    assert list(PRINTED) == list(EXAMPLE_PRICES)
    ratios = {gpu: PRINTED[gpu] / data_sheet(gpu).tflop_per_s["bfloat16"] for gpu in PRINTED}
    assert all(round(ratio, 1) in (1, 2) for ratio in ratios.values())
    assert len({round(ratio) for ratio in ratios.values()}) == 2


def test_the_picture_says_what_it_shows() -> None:
    figure, words = draw_gpus(
        {"one": {"A": 3.6, "B": 7.2}, "other": {"A": 36.0, "B": 18.0}},
        {"A": 2.0, "B": 1.5},
        source="predicted",
    )
    assert len(figure.axes) == 2
    assert words == (
        "Lower bound of a step and price of a million steps by GPU (predicted). one: A 3.6 ms and "
        "$2, B 7.2 ms and $3; cheapest on A; other: A 36 ms and $20, B 18 ms and $7.5; cheapest "
        "on B."
    )


def test_batches_arrive_alike_each_time() -> None:
    import torch

    first, again = (next(iter(Arriving(0, words=9, batch=2, length=5))) for _ in range(2))
    assert first[0].shape == (2, 5)
    assert first[1].shape == (2,)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# ---- the claims


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=math.sqrt(low * high), low=low, high=high)


LEAST = {"texts": {"A": 1.0, "B": 3.0}, "catalogue": {"A": 5.0, "B": 1.0}}
ALIKE = {"texts": {"A": 1.0, "B": 3.0}, "catalogue": {"A": 1.0, "B": 5.0}}
NEARLY = {"texts": {"A": 1.0, "B": 3.0}, "catalogue": {"A": 1.2, "B": 1.0}}


@pytest.mark.parametrize(
    ("least", "shapes", "over", "verdict"),
    [
        (LEAST, _ratio(5, 8), {"mm": 1.1, "gelu": 3.0}, "holds here"),
        (LEAST, _ratio(5, 8), {"mm": 0.95}, "holds here"),
        (LEAST, _ratio(5, 8), {"mm": 0.5}, "not decided"),
        (LEAST, _ratio(5, 8), {}, "not decided"),
        (LEAST, _ratio(0.9, 1.3), {"mm": 1.1}, "not decided"),
        (LEAST, _ratio(0.5, 0.8), {"mm": 1.1}, "does not hold here"),
        (ALIKE, _ratio(5, 8), {"mm": 1.1}, "does not hold here"),
        (NEARLY, _ratio(5, 8), {"mm": 1.1}, "does not hold here"),
    ],
)
def test_c9_needs_two_choices_and_a_roofline_that_holds(
    least: Any, shapes: Any, over: Any, verdict: str
) -> None:
    settled = claim("C9").settle(least, {"A": 1.0, "B": 1.0}, shapes, over)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert settled.outcome.figures["texts_dearest_ratio"].value == 3


CHEAPER = {"as it is": 4.0, "after work": 3.0, "faster GPU": 2.0}


@pytest.mark.parametrize(
    ("per_epoch", "fix", "waiting", "verdict", "said"),
    [
        (CHEAPER, _ratio(1.2, 1.4), _ratio(0.98, 1.02), "holds here", "after 480 epochs"),
        (CHEAPER, _ratio(1.2, 1.4), _ratio(0.98, 1.02), "holds here", "at every number of them"),
        (
            {**CHEAPER, "faster GPU": 3.5},
            _ratio(1.2, 1.4),
            _ratio(0.98, 1.02),
            "holds here",
            "below 960 of them",
        ),
        (
            {**CHEAPER, "faster GPU": 4.5},
            _ratio(1.2, 1.4),
            _ratio(0.98, 1.02),
            "does not hold here",
            "nowhere",
        ),
        (CHEAPER, _ratio(0.9, 1.4), _ratio(0.98, 1.02), "not decided", "480"),
        (CHEAPER, _ratio(1.2, 1.4), _ratio(1.5, 1.9), "does not hold here", "480"),
        (CHEAPER, _ratio(1.2, 1.4), _ratio(0.7, 1.6), "not decided", "480"),
        (
            {**CHEAPER, "after work": 4.0},
            _ratio(1.2, 1.4),
            _ratio(0.98, 1.02),
            "holds here",
            "never pays",
        ),
    ],
)
def test_a17_needs_a_cheaper_epoch_a_fix_and_no_gain_where_data_is_late(
    per_epoch: Any, fix: Any, waiting: Any, verdict: str, said: str
) -> None:
    settled = claim("A17").settle(per_epoch, 480.0, fix, waiting)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert said in settled.outcome.sentence
    assert settled.outcome.figures["waiting_ratio"].kind == "simulated"
