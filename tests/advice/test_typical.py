"""Shares are those of typical steps, and the headline names the largest part."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_traces import SINGLE, WORKERS, Simulated, cpu_training, gpu_training

from perfkit.advice import Profile, explain
from perfkit.show import document
from perfkit.trace import breakdown, load
from perfkit.trace.ask.breakdown import Breakdown
from perfkit.trace.ask.typical import _not_counted, typical


def _steps(*updates: float, wait: float = 0) -> Profile:
    """Steps with 1000 µs of forward and the given µs of update."""
    sim, at = Simulated(), 0.0
    for number, update in enumerate(updates):
        sim.step(number, at, 1_000 + update)
        sim.host("aten::conv2d", at, 1_000)
        sim.label("Optimizer.step#Adam.step", at + 1_000, update)
        at += 1_000 + update
    return explain(load(sim.json()))


def _waits(*waits: float) -> Profile:
    sim, at = Simulated(), 0.0
    for number, wait in enumerate(waits):
        sim.step(number, at, 1_000 + wait)
        if wait:
            sim.label(WORKERS, at, wait)
        sim.host("aten::conv2d", at + wait, 1_000)
        at += 1_000 + wait
    return explain(load(sim.json()))


def test_shares_are_those_of_all_steps_and_a_spread_is_said() -> None:
    profile = _steps(20, 20, 900, 20, 900, 20, 20, 20)
    said = document(profile)
    assert said is not None
    lane = said.bars[0]
    shown = {s.label: s.value for s in lane.segments}
    assert shown["optimizer"] / sum(shown.values()) == pytest.approx(1_920 / 9_920)
    assert sum(shown.values()) == pytest.approx(profile.diagnosis.step_ms)
    assert "the mean of all 8 steps" in lane.title
    assert "steps are uneven: 1.02 ms to 1.90 ms" in profile.diagnosis.sentence
    assert profile.diagnosis.sentence.startswith("Compute-bound: 100 % of each step")
    assert profile.to_dict()["shares"]["optimizer"] == pytest.approx(1_920 / 9_920)


def test_even_steps_are_not_called_uneven() -> None:
    assert "uneven" not in _steps(20, 20, 30, 20).diagnosis.sentence


def test_steps_are_uneven_from_half_as_long_again() -> None:
    assert "uneven" not in _steps(20, 480, 20).diagnosis.sentence
    assert "uneven" in _steps(20, 560, 20).diagnosis.sentence


def test_a_picture_of_no_step_says_so() -> None:
    said = document(Breakdown((), "marks"))
    assert said is not None
    assert said.sentence == "No step was found."


def test_waits_in_bursts_are_not_left_out() -> None:
    profile = _waits(0, 0, 0, 6_000, 0, 0, 0, 6_000)
    assert profile.diagnosis.bound_by == "data"
    assert "Data-bound: 60 % of each step" in profile.diagnosis.sentence


def _with_evaluation(every: int, n: int = 6) -> Profile:
    """Steps that wait 100 of 1,000 µs, with an evaluation of 9 batches at intervals."""
    sim, at = Simulated(), 0.0
    for number in range(n):
        evaluates = number % every == every - 1
        sim.step(number, at, 1_100 + evaluates * 9 * 900)
        sim.label(SINGLE, at, 100)
        sim.host("aten::conv2d", at + 100, 1_000)
        at += 1_100
        for _ in range(9 * evaluates):
            sim.label(SINGLE, at, 800)
            sim.host("aten::conv2d", at + 800, 100)
            at += 900
    return explain(load(sim.json()))


def test_an_evaluations_loader_is_not_the_training_loader() -> None:
    """6.71 ms of each step were reported as data wait; the training loop's own timer said 2.2."""
    profile = _with_evaluation(every=5)
    said = profile.diagnosis.sentence
    assert said.startswith("Compute-bound: 91 % of each step")
    assert "another step (up to 9.20 ms) asked a DataLoader for up to 10 batches, not for 1" in said
    assert "dataloader-no-workers" not in [f.rule for f in profile.diagnosis.findings]
    shown = document(profile)
    assert shown is not None
    lane = shown.bars[0]
    assert "the mean of 5 of 6 steps" in lane.title
    assert {s.label: s.value for s in lane.segments}["data wait"] == pytest.approx(0.1)
    # two of eight are still the exception
    often = document(_with_evaluation(every=4, n=8))
    assert often is not None
    assert "the mean of 6 of 8 steps" in often.bars[0].title
    # where it comes in every other step it is part of what is paid
    often = document(_with_evaluation(every=2))
    assert often is not None
    assert "not in these shares" not in str(often)
    assert "the mean of all 6 steps" in often.bars[0].title


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 9])
def test_typical_steps_are_steps_and_their_shares_add_up(n: int) -> None:
    chosen = typical(breakdown(load(cpu_training(n, wait=100).json())))
    assert len(chosen.indices) == len(chosen.breakdown.steps) == n
    assert chosen.words == ("the step" if n == 1 else f"the mean of all {n} steps")
    assert sum(chosen.breakdown.shares().values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("wait", "python", "begins", "bound_by"),
    [
        (2_000, 20, "Data-bound: 70 %", "data"),
        (350, 20, "Partly data-bound: 29 % of each step waits for the DataLoader", "compute"),
        (20, 280, "Partly host-bound: 24 %", "compute"),
        (20, 100, "Compute-bound: 88 %", "compute"),
        (600, 550, "Partly data-bound: 30 %", "compute"),
        (900, 900, "Partly", "data"),
    ],
)
def test_the_headline_names_the_largest_part(
    wait: float, python: float, begins: str, bound_by: str
) -> None:
    trace = load(cpu_training(6, wait=wait, python=python, loader=SINGLE).json())
    diagnosis = explain(trace).diagnosis
    assert diagnosis.sentence.startswith(begins)
    assert diagnosis.bound_by == bound_by
    told = re.findall(r"(\d+) %", diagnosis.sentence.partition("(median")[0])
    if begins.startswith("Partly") and bound_by == "compute":
        assert re.search(
            r"; (most of it|the largest part) \(\d+ %\) is spent in torch's operators",
            diagnosis.sentence,
        )
        assert int(told[1]) > int(told[0])
    else:
        assert len(told) == 1


def test_what_a_device_idles_for_is_told_beside_what_it_computes() -> None:
    sim = gpu_training(6, n_kernels=10, wait=400)
    diagnosis = explain(load(sim.json())).diagnosis
    assert diagnosis.bound_by == "data"
    assert re.match(
        r"Partly data-bound: for \d+ % of each step the device waits for data; "
        r"the device "
        r"computes for \d+ %",
        diagnosis.sentence,
    )


@pytest.mark.parametrize(
    ("ran", "indices", "words"),
    [
        ([True], (0,), "the step"),
        ([True, False], (0,), "the only step with work in it"),
        ([False, True, True], (1, 2), "the mean of all 2 steps in which anything ran"),
        ([False, False], (0, 1), "the mean of all 2 steps"),
    ],
)
def test_steps_in_which_nothing_ran_are_left_out(
    ran: list[bool], indices: tuple[int, ...], words: str
) -> None:
    sim = Simulated()
    for number, one in enumerate(ran):
        sim.step(number, 1_000 * number, 900)
        if one:
            sim.host("aten::conv2d", 1_000 * number + 10, 500)
    sim.host("aten::conv2d", 1_000 * len(ran) + 10, 500)
    found = typical(breakdown(load(sim.json())))
    assert (found.indices, found.words, found.uneven) == (indices, words, "")


def test_what_is_not_counted_is_told() -> None:
    def step(ms: float, n_fetches: int) -> Any:
        return SimpleNamespace(wall_ns=ms * 1e6, n_fetches=n_fetches)

    usual, long = [step(1.0, 1)] * 6, [step(9.0, 10), step(8.0, 9), step(7.0, 8)]
    assert _not_counted(long[:1], usual) == (
        "another step (up to 9.00 ms) asked a DataLoader for up to 10 batches, not for 1: an "
        "evaluation perhaps, and not in these shares"
    )
    assert _not_counted(long, usual).startswith(
        "3 others (up to 9.00 ms) asked a DataLoader for up to 10 batches, not for 1:"
    )
