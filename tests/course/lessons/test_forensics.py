"""Lesson 19: its listings, two clocks, the queue, the puzzles, the cards and its claims."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_19_forensics.lesson import (
    CARDS,
    eight_cards,
    least_time,
    ready_batches,
    shrinks,
)
from perfkit.course.lessons.lesson_19_forensics.measured import (
    Clocked,
    Listing,
    SlowBatches,
    clocked,
    run_listing,
    steps_behind_a_queue,
)
from perfkit.course.lessons.lesson_19_forensics.pictures import draw_steps

RIGHT: dict[str, Any] = {
    "step": ("refuted", 26.84),
    "pictures": ("refuted", 20.97),
    "gain": ("refuted", 1 / 0.9),
    "workers": ("refuted", 2684.4),
    "fifth": ("stands", 5),
    "imagenet": ("stands", 140.9),
    "tenfold": ("stands", 90),
    "accumulate": ("refuted", 16.0),
}


def _with(**rows: Any) -> Callable[[], Any]:
    return lambda: RIGHT | rows


# ---- the exercise


@pytest.mark.parametrize(
    "answer",
    [
        _with(),
        _with(step=("refuted", 32.73)),  # by arithmetic
        _with(step=("refuted", 135.3)),  # operator by operator
        _with(gain=("refuted", 1300 / 26.84)),  # by the step's own bound
        _with(gain=("refuted", 1300 / 20.97)),  # by its pictures
        _with(gain=("refuted", 1300 / 135.3), step=("refuted", 32.73)),  # operator by operator
        _with(imagenet=["stands", 131.2], pictures=("refuted", 12.0)),  # in GiB; a weaker bound
        _with(step=("refuted", numpy.float32(26.84)), accumulate=("refuted", numpy.int64(16))),
        _with(gain=("refuted", Fraction(10, 9)), fifth=("stands", Fraction(20, 4))),
        _with(workers=("refuted", 2560), step=("refuted", 13.42)),  # in MiB; written only
    ],
)
def test_right_answers_pass(answer: Callable[[], Any]) -> None:
    said = " ".join(repr(eight_cards.check(answer)).split())
    assert said.startswith("Done"), said
    assert "refuted by a bound: step, pictures, gain, workers, accumulate" in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: None, "returns nothing yet"),
        (lambda: [1], "return a dict, got list"),
        (dict, "no row yet for: step, pictures"),
        (lambda: dict.fromkeys(CARDS), "no row yet for: step"),
        (_with(steps=("refuted", 1)), "no card is called 'steps'"),
        (_with(step="refuted"), "step: a row is (verdict, bound)"),
        (_with(step=("wrong", 26.8)), 'the verdict is "refuted" or "stands"'),
        (_with(step=("refuted", "26.8")), "the bound is a number, got str"),
        (_with(step=("refuted", True)), "the bound is a number, got bool"),
        (_with(step=("refuted", float("nan"))), "step: the bound is nan"),
        (_with(step=("refuted", 0.0268)), "it refutes nothing"),  # in seconds
        (_with(step=("refuted", 1300)), "nothing that you can count needs more"),
        (_with(step=("stands", 26.8)), "does it leave it standing"),
        (_with(pictures=("refuted", 167.8)), "eight processes draw at the same time"),
        (_with(pictures=("stands", 0.03)), "it refutes nothing"),  # one picture
        (_with(gain=("refuted", 240)), "gain: 240? that refutes nothing"),
        (_with(gain=("refuted", 1300 / 5.4)), "gain: 240.7? that refutes nothing"),
        (_with(gain=("refuted", 0.9)), "10 % of the step was idle"),
        (_with(workers=("stands", 1342)), "not one"),
        (_with(workers=("refuted", 4026)), "hold sixteen"),
        (_with(fifth=("refuted", 4)), "from 8 bytes a pixel to 1"),
        (_with(fifth=("refuted", 5)), "It contradicts nothing"),
        (_with(imagenet=("refuted", 771)), "not decoded"),
        (_with(tenfold=("stands", 0.9)), "In per cent"),
        (_with(accumulate=("stands", 1)), "nothing divides"),
        (_with(accumulate=("refuted", 160)), "comes later"),
        (_with(gain=("refuted", 10)), "idle for 10 % of the step, not busy"),
        (_with(gain=("refuted", 1.0)), "without it, 90 % remains"),
        (_with(step=(26.8, "refuted")), 'the verdict is "refuted" or "stands", not 26.8'),
        (_with(workers=("refuted", 1610.6)), "count the masks"),
        (_with(workers=("refuted", 2.68)), "workers: 2.68?"),
        (_with(imagenet=("stands", 0.1409)), "1,281,167 times 110,000 bytes are more"),
        (_with(tenfold=("stands", 10)), "which part is gone"),
        (_with(fifth=("stands", 0.2)), "the picture from 12 to 3"),
        (_with(accumulate=("refuted", 1 / 16)), "nothing divides"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(answer: Callable[[], Any], reason: str) -> None:
    said = " ".join(repr(eight_cards.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said, said


def test_show_puts_the_verdicts_beside_what_is_asked() -> None:
    said = " ".join(repr(eight_cards.show(lambda: {"step": ("refuted", 26.84)})).split())
    assert "step: refuted; 26.84 (the least ms of a step)" in said
    assert "gain: open" in said
    assert "Nothing to see yet" in repr(eight_cards.show(lambda: None))
    assert all(card.says in " ".join(repr(eight_cards).split()) for card in CARDS.values())


@pytest.mark.parametrize(
    ("puzzle", "answer", "says"),
    [
        (least_time, lambda amount, rate: 1e3 * amount / rate, "Done"),
        (least_time, lambda amount, rate: amount / (rate / 1000), "Done"),
        (least_time, lambda amount, rate: (amount / rate) * 1e3, "Done"),
        (least_time, lambda amount, rate: None, "returns nothing yet"),
        (least_time, lambda amount, rate: amount / rate, "how many milliseconds"),
        (least_time, lambda amount, rate: rate / amount if amount else 0, "how many milliseconds"),
        (least_time, lambda amount, rate: 1e6 * amount / rate, "how many milliseconds"),
        (least_time, lambda amount, rate: 26.8, "how many milliseconds"),
        (least_time, lambda amount, rate: "27 ms", "got str"),
        (shrinks, lambda c: (4 * c + 8) / (c + 1), "Done"),
        (shrinks, lambda c: 4 * (c + 2) / (c + 1), "Done"),
        (shrinks, lambda c: 4 + 4 / (c + 1), "Done"),
        (shrinks, lambda c: None, "returns nothing yet"),
        (shrinks, lambda c: 5, "a picture of 1 channel and"),
        (shrinks, lambda c: 4, "a picture of 3 channels"),
        (shrinks, lambda c: (4 * c + 4) / (c + 1), "a picture of 3 channels"),
        (shrinks, lambda c: (c + 1) / (4 * c + 8), "a picture of 3 channels"),
        (shrinks, lambda c: 4 * c + 8, "a picture of 3 channels"),
        (ready_batches, lambda w, f: w * f, "Done"),
        (ready_batches, lambda w, f: sum(f for _ in range(w)), "Done"),
        (ready_batches, lambda w, f: f * w + 0.0, "Done"),
        (ready_batches, lambda w, f: None, "returns nothing yet"),
        (ready_batches, lambda w, f: f, "not 8 batches"),
        (ready_batches, lambda w, f: w, "not 2 batches"),
        (ready_batches, lambda w, f: w + f, "not 10 batches"),
        (ready_batches, lambda w, f: 16, "1 worker with"),
        (ready_batches, lambda w, f: w * f + w, "not 18 batches"),
    ],
)
def test_puzzles(puzzle: Any, answer: Callable[..., Any], says: str) -> None:
    said = " ".join(repr(puzzle.check(answer)).split())
    assert says in said, said
    assert "only .check(answer)" in repr(puzzle.show(answer))


# ---- what is measured


def test_a_listing_runs_raises_or_was_not_tried() -> None:
    def raising() -> tuple[bool, str]:
        raise TypeError("no option 'gpus'\nand more")

    def missing() -> tuple[bool, str]:
        import no_such_package_here.inside  # type: ignore[import-not-found]

        return True, str(no_such_package_here)

    assert run_listing("a", lambda: (True, "fine")) == Listing("a", "runs", "fine")
    assert run_listing("a", lambda: (False, "16")).state == "runs, another result"
    assert run_listing("a", raising).said == "TypeError: no option 'gpus'"
    assert run_listing("a", missing).state == "raises"
    assert run_listing("a", missing, needs="no_such_package_here").state == "not tried"
    assert "raises: TypeError" in str(run_listing("a", raising))


def test_both_clocks_are_of_the_same_steps() -> None:
    calls: list[str] = []
    found = clocked(lambda: calls.append("step"), lambda: calls.append("wait"), n=3)
    assert calls == ["step", "wait", "step", "step", "step", "wait"]
    assert found.read_ms >= 0
    assert found.true_ms > 0


def test_the_loop_behind_a_queue_gets_every_batch() -> None:
    found = steps_behind_a_queue(n=6, batch_ms=1, step_ms=1, workers=1, prefetch_factor=2)
    assert len(found) == 6
    assert min(found) >= 1  # a step sleeps at least that long
    batches = SlowBatches(3, ms=0)
    assert [float(batches[k]) for k in range(3)] == [0, 1, 2]
    assert torch.equal(batches[2], torch.tensor([2.0]))


def test_the_picture_says_what_it_shows() -> None:
    figure, words = draw_steps([2.0] * 16 + [20.0] * 24, profiled=8, ready=16, source="made")
    assert len(figure.axes) == 1
    assert "the first 8: mean 2.00 ms a step" in words
    assert "from step 33 on, the mean is 20.0 ms. Source: made" in words


# ---- claims

RUNS = Listing("where", "runs", "")
RAISES = Listing("apex", "raises", "ModuleNotFoundError")
OTHER = Listing("accumulate", "runs, another result", "")
LEFT = Listing("Trainer", "not tried", "")


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        ([RUNS], "holds here", "all run"),
        ([RUNS, LEFT], "holds here", "not tried: Trainer"),
        (
            [RUNS, RAISES, OTHER],
            "does not hold here",
            "Of 3 listings, 2 do not do what their article says",
        ),
        ([RUNS, OTHER], "does not hold here", "computes something else: accumulate"),
        ([LEFT], "not decided", "not tried: Trainer"),
    ],
)
def test_b15_counts_only_what_was_tried(found: list[Listing], verdict: str, says: str) -> None:
    settled = claim("B15").settle(found)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert says in settled.outcome.sentence


def _clocks(two: float, one: float, none: float) -> dict[str, Clocked]:
    return {
        "two waits": Clocked(two, two),
        "one": Clocked(one, one),
        "none": Clocked(5.4, none),
    }


def test_e5_needs_time_for_the_traffic_and_the_pictures_and_on_a_gpu_the_gain() -> None:
    refuted = claim("E5", lesson="19").settle(26.8, 21.0, None)
    assert refuted.verdict == "does not hold here"
    assert refuted.outcome is not None
    assert refuted.outcome.figures["least_fused_ms"].value == 26.8
    assert refuted.outcome.figures["least_fused_ms"].kind == "predicted"
    assert claim("E5", lesson="19").settle(3.0, 9.0, None).verdict == "does not hold here"
    assert claim("E5", lesson="19").settle(3.0, 4.0, None).verdict == "holds here"
    on_gpu = claim("E5", lesson="19").settle(3.0, 4.0, _clocks(200, 199, 195))
    assert on_gpu.verdict == "does not hold here"
    assert on_gpu.outcome is not None
    assert "1.03× the throughput, while a stopwatch reads 37.0×" in on_gpu.outcome.sentence
    assert claim("E5", lesson="19").settle(3, 4, _clocks(1300, 9, 5)).verdict == "holds here"


@pytest.mark.parametrize(
    ("waits", "one", "device", "verdict", "kind"),
    [
        ([2, 1, 0], 63.0, "cpu", "holds here", "simulated"),
        ([2, 1, 0], 63.0, "cuda", "holds here", "measured"),
        ([2, 1, 0], 40.0, "cpu", "does not hold here", "simulated"),
        ([2, 2, 0], 63.0, "cpu", "does not hold here", "simulated"),
    ],
)
def test_e8_needs_a_wait_that_moves_and_no_change(
    waits: list[int], one: float, device: str, verdict: str, kind: str
) -> None:
    settled = claim("E8").settle(waits, _clocks(64.0, one, 60.0), device)
    assert settled.verdict == verdict
    assert settled.outcome is not None
    assert {figure.kind for figure in settled.outcome.figures.values()} == {kind}
