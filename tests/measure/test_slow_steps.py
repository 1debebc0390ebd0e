"""Four made trainers by a made clock, and what is said of their slow steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfkit.base.collector import CollectorTime
from perfkit.measure.meter import StepMeter, Steps
from perfkit.measure.phases import PHASES
from perfkit.measure.slow_steps import cause, first_epoch, growing_phase, stands_out
from perfkit.measure.verdict import RunFacts, RunSummary, summarize_run

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 1

    def __call__(self) -> int:
        return self.ns

    def ms(self, passed: float) -> None:
        self.ns += round(passed * MS)


def jitter(n: int) -> float:
    """Up to 4 %, and never in step with anything below."""
    return 1 + 0.04 * ((n * 7919 % 101) / 101)


class Trainer:
    """10 ms a step, by phase; what goes wrong is added by the test."""

    def __init__(self, steps: int, extra: Callable[[int, dict[str, float]], None]) -> None:
        self.clock = Clock()
        self.collector = CollectorTime(self.clock)
        self.meter = StepMeter()
        self.steps_ms: list[float] = []
        self.waits_ms: list[float] = []
        self.total_ns = [0] * len(PHASES)
        for n in range(1, steps + 1):
            took = {"data_wait": 1.0, "forward": 3.0, "backward": 5.0, "optimizer": 1.0}
            took = {name: ms * jitter(n) for name, ms in took.items()}
            extra(n, took)
            row = [round(took.get(name, 0.0) * MS) for name in PHASES]
            self.meter.add(sum(row), row[0], (*row, sum(self.collector.take())))
            self.steps_ms.append(sum(row) / MS)
            self.waits_ms.append(took["data_wait"])
            self.total_ns = [a + b for a, b in zip(self.total_ns, row, strict=True)]

    def summary(self, starts: tuple[int, ...] = (0,), sure: bool = True) -> RunSummary:
        return summarize_run(
            RunFacts(
                name="made", ended="finished", n_steps=len(self.steps_ms), n_epochs=len(starts),
                steps=self.meter.steps if sure else replace(self.meter.steps, phase_ms={}),
                total_ms=sum(self.steps_ms),
                starts=tuple((n, self.steps_ms[n], self.waits_ms[n]) for n in starts),
                samples=None, memory=(), wall_s=sum(self.steps_ms) / 1e3,
                update_s=0.0,
                phase_ns=tuple(self.total_ns),
            )
        )  # fmt: skip


def test_a_stall_every_tenth_step_is_named_with_its_phase() -> None:
    def stall(n: int, took: dict[str, float]) -> None:
        if n % 10 == 0:
            took["checkpoint"] = 12.0

    said = Trainer(200, stall).summary().sentence
    assert "steps are uneven: 22." in said
    assert " ms in every 10th step (steps 10, 20 … 200), together " in said
    assert "12.0 ms more each goes to the saving of checkpoints" in said


def test_a_garbage_collection_is_named() -> None:
    trainer: list[Trainer] = []

    class Collecting(Trainer):
        def __init__(self) -> None:
            self.steps = 0
            super().__init__(200, self.collect)

        def collect(self, n: int, took: dict[str, float]) -> None:
            if n % 25 == 0:
                # as the interpreter calls it, around a collection of 40 ms
                self.collector.start()
                self.collector._callback("start", {})
                self.clock.ms(40)
                self.collector._callback("stop", {})
                self.collector.stop()
                took["forward"] += 40

    trainer.append(Collecting())
    said = trainer[0].summary().sentence
    assert "in every 25th step (steps 25, 50 … 200)" in said
    assert "40.0 ms of it each is Python's garbage collector: gc.freeze()" in said


def test_a_step_that_grows_says_in_what() -> None:
    def grow(n: int, took: dict[str, float]) -> None:
        took["backward"] += 0.02 * n

    said = Trainer(300, grow).summary().sentence
    assert "slower over the run" in said
    assert "of it in the backward pass" in said


def test_a_first_epoch_that_is_slower_says_in_what() -> None:
    def cold(n: int, took: dict[str, float]) -> None:
        if n <= 60:
            took["data_wait"] += 15

    said = Trainer(180, cold).summary(starts=(0, 60, 120)).sentence
    assert "the first epoch's steps took 25." in said
    assert "later ones 10." in said
    assert "of the difference is the wait for data, as when files come from the disk once" in said
    assert "faster over the run" not in said


def test_a_steady_trainer_gets_no_sentence() -> None:
    said = Trainer(200, lambda n, took: None).summary(starts=(0, 100)).sentence
    for word in ("uneven", "first epoch", "garbage", "slower", "faster"):
        assert word not in said


def test_thin_evidence_says_less() -> None:
    def once(n: int, took: dict[str, float]) -> None:
        if n == 57:
            took["forward"] += 200
            took["backward"] += 200

    said = Trainer(100, once).summary().sentence
    assert " ms in step 57, " in said
    assert "goes to" not in said  # half of it each: no one cause
    assert "every" not in said

    def few(n: int, took: dict[str, float]) -> None:
        if n % 5 == 0:
            took["checkpoint"] = 12.0

    assert "checkpoint" not in Trainer(15, few).summary().sentence
    assert "the first epoch" not in Trainer(15, few).summary(starts=(0, 8)).sentence


def test_where_phases_are_not_sure_none_is_said_to_be_the_cause() -> None:
    def stall(n: int, took: dict[str, float]) -> None:
        if n % 10 == 0:
            took["checkpoint"] = 12.0

    said = Trainer(200, stall).summary(sure=False).sentence
    assert "uneven" in said
    assert "goes to" not in said


def steps(step_ms: np.ndarray, **given: np.ndarray) -> Steps:
    zero = np.zeros(len(step_ms))
    phases = {name: given.get(name, zero) for name in PHASES}
    return Steps(np.arange(len(step_ms)), step_ms, zero, phases, given.get("gc", zero))


def test_noise_does_not_stand_out() -> None:
    draw = np.random.default_rng(0)
    for sigma in (0.05, 0.2, 0.4):
        step_ms = 10 * draw.lognormal(0, sigma, 2000)
        slow = stands_out(step_ms, float(np.median(step_ms)))
        assert not slow.any() or sigma == 1.0
    assert not stands_out(np.full(10, 1.0), 1.0).any()
    assert growing_phase(steps(np.full(50, 1.0), forward=np.full(50, 1.0))) == ""
    wide = 10 * draw.lognormal(0, 0.5, 100)
    assert first_epoch(steps(wide), [0, 50]) == ""


def test_phases_thin_out_with_their_steps() -> None:
    meter = StepMeter(capacity=8)
    for n in range(100):
        meter.add(1, 0, [n * MS, 0, 0, 0, 0, 0, 0, 2 * n * MS])
        assert list(meter.steps.phase_ms["data_wait"]) == list(meter.steps.numbers)
    assert list(meter.steps.gc_ms) == list(2 * meter.steps.numbers)


@pytest.mark.parametrize(("n_rest", "is_told"), [(16, False), (17, True)])
def test_a_cause_needs_ordinary_steps_to_compare_with(n_rest: int, is_told: bool) -> None:
    slow = np.arange(n_rest + 3) < 3
    step_ms = np.where(slow, 30.0, 10.0)
    assert bool(cause(steps(step_ms, forward=step_ms), slow)) is is_told


def test_without_slow_steps_or_more_time_in_them_there_is_no_cause() -> None:
    step_ms = np.full(60, 10.0)
    for slow in (np.zeros(60, dtype=bool), np.arange(60) < 10):
        assert not cause(steps(step_ms, forward=step_ms), slow)


@pytest.mark.parametrize(("n", "is_told"), [(19, False), (20, True)])
def test_a_phase_grows_over_twenty_steps_at_least(n: int, is_told: bool) -> None:
    step_ms = 10 + np.arange(n, dtype=np.float64)
    assert bool(growing_phase(steps(step_ms, forward=step_ms))) is is_told
