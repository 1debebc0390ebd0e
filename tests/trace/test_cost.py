"""The cost of profiling is reported with its interval, and not at all if steps differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfkit.trace.record.cost import Cost, _rank_cut, ratio_interval


def _sentence(profiled: list[float], unprofiled: list[float]) -> str:
    return Cost(
        float(np.median(profiled)), float(np.median(unprofiled)), len(profiled), len(unprofiled),
        0.1, 0.2, 1000, ratio_interval(profiled, unprofiled),
    ).sentence()  # fmt: skip


@pytest.mark.parametrize(
    ("n", "m", "critical"),
    [(3, 3, -1), (6, 3, 1), (5, 5, 2), (6, 6, 5), (10, 10, 23), (20, 20, 127)],
)
def test_ranks_are_those_of_the_printed_tables(n: int, m: int, critical: int) -> None:
    # two-sided 5 % critical values of U, as printed in statistics books
    assert _rank_cut(n, m) == _rank_cut(m, n) == critical + 1


def test_the_normal_curve_takes_over_where_counting_ends() -> None:
    assert abs(_rank_cut(20, 21) - 134) <= 2  # between the exact 127 + 1 and its larger neighbours


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    n, hits = 1000, 0
    for _ in range(n):
        low, high = ratio_interval(
            (1.3 * rng.lognormal(0, 0.2, 6)).tolist(), rng.lognormal(0, 0.2, 9).tolist()
        ) or (2.0, 0.0)
        hits += low <= 1.3 <= high
    assert hits / n > 0.93


def test_words() -> None:
    base = [10.0, 10.1, 10.2, 9.9, 9.8, 10.3]
    assert "no difference seen (95 % interval −" in _sentence(base, base)
    spread = [3.0, 30.0, 5.0, 20.0, 4.0, 10.0]
    assert "too unsteady to tell (95 % interval −" in _sentence(spread, spread)
    assert ": +17 % to +24 % (95 % interval)" in _sentence([12 * x / 10 for x in base], base)
    assert "one after recording, which still has perfkit's hooks, 10.1 ms" in _sentence(base, base)
    faster = _sentence([3.0, 3.1, 3.2, 2.9, 2.8, 3.0], base)
    assert "the cost is unknown" in faster
    assert "%" not in faster
    compiling = _sentence([100 * x for x in base], base)  # +9,900 % is not the profiler's
    assert "the cost is unknown" in compiling
    assert "%" not in compiling
    assert "too few to tell" in _sentence([1.0], [2.0])


def test_an_interval_that_ends_at_1_says_no_difference() -> None:
    for interval in ((1.0, 1.2), (0.9, 1.0)):
        cost = Cost(11.0, 10.0, 6, 6, 0.1, 0.2, 10, interval)
        assert not cost.is_clear
        assert "no difference seen" in cost.sentence()


def test_four_steps_of_each_are_enough_for_an_interval_and_three_are_not() -> None:
    assert ratio_interval([2.0] * 4, [1.0] * 4) == (2.0, 2.0)
    assert ratio_interval([2.0] * 3, [1.0] * 3) is None
    assert ratio_interval([0.0, *[2.0] * 5], [1.0] * 6) is None  # no time, no ratio


@pytest.mark.parametrize(
    ("profiled", "later", "plain"), [(12.0, 10.0, 10.0), (40.0, 10.0, None), (10.0, 18.0, None)]
)
def test_later_steps_count_where_they_are_the_same_but_for_the_profiler(
    profiled: float, later: float, plain: float | None
) -> None:
    assert Cost(profiled, later, 6, 3, 0.1, 0.2, 10).plain_step_ms == plain


def test_what_stays_slower_afterwards_is_said() -> None:
    known = Cost(None, None, 0, 0, 0.1, 0.2, 10)
    assert "restart" not in known.sentence()
    assert "CUPTI stays attached" in replace(known, stays_attached=True).sentence()
