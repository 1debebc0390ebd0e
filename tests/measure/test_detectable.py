"""What comparisons would have seen, and what both arms share, on simulated blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiers import draws

from perfkit.measure.compare import doubts
from perfkit.measure.paired import Interval, ratio_interval
from perfkit.show import text

from .machines import both_arms

TRIALS = draws(full=3000, few=300)


def found_share(n: int, noise: float, effect: float, seed: int) -> float:
    random = np.random.default_rng(seed)
    found = 0
    for _ in range(TRIALS):
        a, b = both_arms(random, "quiet", n, noise)
        interval = ratio_interval(a * (1 + effect), b)
        found += interval.low > 1
    return found / TRIALS


@pytest.mark.long
def test_three_percent_is_found_at_the_noise_that_is_stated() -> None:
    """Letters with a spread of 3 %: 30 blocks nearly always find 3 %, 6 blocks do not."""
    assert found_share(30, 0.03, 0.03, seed=1) >= 0.9
    assert found_share(6, 0.03, 0.03, seed=2) <= 0.5


@pytest.mark.long
@pytest.mark.parametrize(("n", "noise"), [(8, 0.02), (12, 0.03), (40, 0.05)])
def test_the_detectable_effect_is_found_in_about_four_of_five(n: int, noise: float) -> None:
    random = np.random.default_rng(n)
    told = [
        ratio_interval(*both_arms(random, "quiet", n, noise)).detectable or 0.0
        for _ in range(TRIALS)
    ]
    effect = float(np.median(told))
    assert 0.7 <= found_share(n, noise, effect, seed=n + 1) <= 0.9


def test_what_is_detectable_follows_from_the_interval() -> None:
    # exp(0.0200 (1 + 0.883 / 2.262)) - 1
    assert Interval(1.0, 0.98, 1.02, 0.95, 10).detectable == pytest.approx(0.0282, abs=1e-4)
    assert Interval(1.0, 0.0, math.inf, 0.95, 1).detectable is None


def machine_said(a: np.ndarray, b: np.ndarray) -> bool:
    return "while measured" in " ".join(doubts(a, b, ratio_interval(a, b)))


@pytest.mark.parametrize("n", [6, 12, 40])
def test_a_machine_that_gets_hot_is_told(n: int) -> None:
    a, b = both_arms(np.random.default_rng(n), "quiet", n, 0.01)
    rise = np.linspace(1, 1.3, 2 * n).reshape(n, 2)
    assert machine_said(a * rise, b * rise)
    # only what meets both arms is the machine's
    assert not machine_said(a * rise, b / rise)


@pytest.mark.parametrize("n", [6, 12, 40])
def test_a_quiet_machine_is_left_alone(n: int) -> None:
    random = np.random.default_rng(n)
    assert sum(machine_said(*both_arms(random, "quiet", n)) for _ in range(200)) <= 2


def test_a_comparison_tells_what_it_would_have_seen(clock) -> None:
    from perfkit.measure.compare import compare

    random = np.random.default_rng(0)
    found = compare(
        lambda: clock.advance_ms(50 * random.lognormal(0, 0.02)),
        lambda: clock.advance_ms(50 * random.lognormal(0, 0.02)),
        budget_s=4,
        clock=clock,
    )
    assert found.detectable is not None
    assert 0.001 < found.detectable < 0.2
    assert found.to_dict()["detectable"] == found.detectable
    assert "is seen with 80 % probability" in " ".join(text(found).split())
