"""The interval of paired blocks: false alarms, power, and few blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiers import draws

from perfkit.base.errors import MeasurementError
from perfkit.measure.paired import _signed_rank, ratio_interval

from .machines import MACHINES, both_arms

TRIALS = draws(full=3000, few=300)
# 5 % of the trials, and two standard deviations of that count
MOST_ALARMS = 0.05 * TRIALS + 2 * math.sqrt(0.05 * 0.95 * TRIALS)


@pytest.mark.long
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 12, 40])
@pytest.mark.parametrize("machine", MACHINES)
def test_equal_arms_look_different_in_at_most_five_percent(machine: str, n: int) -> None:
    random = np.random.default_rng([n, MACHINES.index(machine)])
    alarms = sum(ratio_interval(*both_arms(random, machine, n)).different for _ in range(TRIALS))
    assert alarms <= MOST_ALARMS, alarms


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_the_interval_holds_the_true_ratio(machine: str) -> None:
    random = np.random.default_rng(MACHINES.index(machine))
    missed = 0
    for _ in range(TRIALS):
        a, b = both_arms(random, machine, 12)
        found = ratio_interval(1.07 * a, b)
        missed += not found.low <= 1.07 <= found.high
    assert missed <= MOST_ALARMS


@pytest.mark.parametrize(("machine", "times"), [("quiet", 1.0), ("linear drift", 1.2)])
def test_the_pairing_is_used(machine: str, times: float) -> None:
    """At least as many true differences seen as by resampling the ratio of the medians."""
    random = np.random.default_rng(7)
    seen, seen_of_medians = 0, 0
    for _ in range(60):
        a, b = both_arms(random, machine, 12, noise=0.06)
        a *= 1.05
        seen += ratio_interval(a, b).low > 1
        picks = random.integers(0, 12, (300, 12))
        medians = [np.median(x[picks].reshape(300, -1), axis=1) for x in (a, b)]
        seen_of_medians += float(np.quantile(medians[0] / medians[1], 0.01)) > 1
    assert seen >= times * seen_of_medians
    assert seen >= 20


def test_ranks_are_those_of_the_tables() -> None:
    """Critical values of the signed-rank test, two-sided 5 %: Wilcoxon and Wilcox 1964."""
    critical = {6: 0, 7: 2, 8: 3, 10: 8, 20: 52, 50: 434, 100: 1955}
    found = {n: _signed_rank(n, 0.95) for n in critical}
    assert found[100] == pytest.approx(critical.pop(100), abs=2)  # the normal distribution's
    assert {n: found[n] for n in critical} == critical
    assert _signed_rank(5, 0.95) is None  # five blocks cannot give 95 % …
    assert _signed_rank(8, 0.995) is None  # … nor eight what a sweep of many points asks for


def test_one_or_two_blocks_give_no_interval() -> None:
    for n in (1, 2):
        found = ratio_interval([[2.0, 2.0]] * n, [[1.0, 1.0]] * n)
        assert (found.ratio, found.low, found.high) == (pytest.approx(2), 0, math.inf)
        assert not found.known
        assert not found.different
        assert not found.tight
        assert found.detectable is None
    assert ratio_interval([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).different


def test_one_time_for_each_block_will_do() -> None:
    random = np.random.default_rng(0)
    a, b = both_arms(random, "quiet", 10)
    means = [np.exp(np.log(x).mean(axis=1)) for x in (a, b)]
    found, whole = ratio_interval(*means), ratio_interval(a, b)
    assert (found.low, found.high) == pytest.approx((whole.low, whole.high))
    assert found.n_blocks == 10


def test_the_interval_turns_round_with_the_arms() -> None:
    random = np.random.default_rng(4)
    a, b = random.lognormal(0.2, 0.1, (20, 2)), random.lognormal(0, 0.1, (20, 2))
    forth, back = ratio_interval(a, b), ratio_interval(b, a)
    assert forth.low <= forth.ratio <= forth.high
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.low == pytest.approx(1 / forth.high, rel=1e-6)


def test_many_blocks_are_no_matter() -> None:
    random = np.random.default_rng(5)
    a, b = random.lognormal(0.01, 0.1, (5000, 2)), random.lognormal(0, 0.1, (5000, 2))
    found = ratio_interval(a, b)
    assert found.low > 1
    assert found.n_blocks == 5000


def test_a_block_without_time_is_left_out() -> None:
    found = ratio_interval([[2.0, 2.0]] * 6 + [[0.0, 2.0]], [[1.0, 1.0]] * 7)
    assert found.n_blocks == 6
    with pytest.raises(MeasurementError, match="did not advance"):
        ratio_interval(np.zeros((8, 2)), np.zeros((8, 2)))
