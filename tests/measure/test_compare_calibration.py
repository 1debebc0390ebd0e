"""Tests compare() itself: it must not report false differences, and must find real ones.

The callables advance a fake clock by simulated step times, so the whole path is tested: repeats,
blocks, looks, early stop, interval.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from tiers import draws

from perfkit.base.machine.cpu_contention import CpuContention
from perfkit.measure.compare import Comparison, compare

RUNS = draws(full=1800, few=90)
# 5 % of the runs, and two standard deviations of that count
MOST_ALARMS = 0.05 * RUNS + 2 * math.sqrt(0.05 * 0.95 * RUNS)
NOISES = ("jitter", "spikes", "drift", "load", "bursts", "everything")


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """compare() collects garbage and reads counters: hundreds of times that would take long."""
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfkit.measure.compare.this_thread", QuietMark)
        yield


class QuietMark:
    def until_now(self) -> CpuContention:
        return CpuContention(1.0, 2, 1.0)


def machine_load(random: np.random.Generator, calls: int, noise: str) -> npt.NDArray[np.float64]:
    """What a machine does to successive calls: factors around 1, in time order."""

    def has(kind: str) -> bool:
        return noise in (kind, "everything")

    factor = np.exp(random.normal(0, random.uniform(0.01, 0.06), calls))
    if has("spikes"):  # a page fault, a timer, a garbage collection: a few calls take 2–4×
        hit = random.random(calls) < random.uniform(0.01, 0.06)
        factor *= np.where(hit, 1 + random.exponential(1.5, calls), 1)
    if has("drift"):  # heat, and a slow wave
        t = np.linspace(0, 1, calls)
        wave = 2 * np.pi * (random.uniform(0.5, 4) * t + random.random())
        factor *= 1 + random.uniform(-0.15, 0.25) * t + 0.05 * np.sin(wave)
    if has("load"):  # other work on the machine: AR(1)
        memory = random.uniform(0.5, 0.98)
        push = random.normal(0, random.uniform(0.01, 0.05) * math.sqrt(1 - memory**2), calls)
        level, levels = float(random.normal(0, 0.03)), []
        for step in push:
            level = memory * level + step
            levels.append(level)
        factor *= np.exp(levels)
    if has("bursts"):  # somebody's compilation: up to three blocks long
        at = 0
        while (at := at + int(random.exponential(60)) + 1) < calls:
            long = int(random.integers(1, 12))
            factor[at : at + long] *= random.uniform(1.1, 2.0)
            at += long
    return factor


def simulated(clock, seed: int, noise: str, *, gain: float) -> Comparison:
    random = np.random.default_rng(seed)
    base_ms = float(np.exp(random.uniform(np.log(25), np.log(500))))
    factors = iter(machine_load(random, 1200, noise))
    # 25 to 500 ms a call: 9 to 190 blocks fit into the budget
    return compare(
        lambda: clock.advance_ms(base_ms * gain * next(factors)),
        lambda: clock.advance_ms(base_ms * next(factors)),
        budget_s=20,
        seed=seed,
        clock=clock,
    )


@pytest.mark.long
def test_identical_arms_differ_in_at_most_five_percent_of_comparisons(clock) -> None:
    seen = [simulated(clock, s, NOISES[s % 6], gain=1.0) for s in range(RUNS)]
    alarms = [c.sentence for c in seen if c.different]
    assert len(alarms) <= MOST_ALARMS, alarms
    assert {c.stopped for c in seen} >= {"time budget", "interval tight"}  # both paths were taken
    for c in seen:
        assert c.different == (" as fast as " in c.sentence)


@pytest.mark.long
def test_five_percent_is_found_in_most_comparisons(clock) -> None:
    seen = [simulated(clock, 10_000 + s, NOISES[s % 6], gain=1.05) for s in range(RUNS)]
    found = [c for c in seen if c.different and c.ratio > 1]
    assert len(found) >= 0.75 * RUNS
    covered = [c for c in seen if c.low <= 1.05 <= c.high]
    assert len(covered) >= RUNS - MOST_ALARMS


@pytest.mark.parametrize("noise", NOISES)
def test_twice_as_fast_is_always_found(clock, noise: str) -> None:
    for seed in range(5):
        seen = simulated(clock, 20_000 + seed, noise, gain=2.0)
        assert seen.different
        assert 1.6 < seen.low < 2.0 < seen.high < 2.5 or 1.8 < seen.ratio < 2.2
