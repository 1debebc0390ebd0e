from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.base.errors import UsageError
from perfkit.base.trend import drift_of
from perfkit.measure.summary import Summary, summarize


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_interval_lies_around_the_median_and_within_the_range(values: list[float]) -> None:
    s = summarize(values)
    assert s.n == len(values)
    assert s.minimum <= s.low <= s.median <= s.high <= s.maximum
    assert s.median == np.median(values)
    assert 0 <= s.confidence <= 0.95


def test_interval_of_ten_independent_values_are_second_and_ninth() -> None:
    # Binomial(10, 1/2): ranks 2 and 9 reach 97.9 %, ranks 3 and 8 only 89.1 %
    s = summarize([5, 1, 9, 3, 7, 10, 2, 8, 4, 6])
    assert (s.low, s.median, s.high, s.confidence) == (2, 5.5, 9, 0.95)


def test_five_values_say_that_they_are_too_few() -> None:
    s = summarize([1, 1.1, 1.2, 1.1, 1])
    assert s.confidence == 1 - 2 * 0.5**5
    assert any("only 5 values" in w and "93.8 %" in w for w in s.warnings)


@pytest.mark.parametrize("n", [10, 40, 300, 3000])
def test_interval_covers_the_true_median_of_independent_values(n: int) -> None:
    random = np.random.default_rng(n)
    missed = 0
    for _ in range(300):
        s = summarize(random.lognormal(0, 0.3, n))
        missed += not s.low <= 1 <= s.high
    assert missed <= 0.08 * 300  # 5 % and three standard errors


def test_interval_is_wider_for_values_that_hang_together() -> None:
    random = np.random.default_rng(1)
    missed = 0
    for _ in range(200):
        level, values = 0.0, []
        for push in random.normal(0, 0.1, 1000):
            level = 0.9 * level + push
            values.append(math.exp(level))
        s = summarize(values)
        missed += not s.low <= 1 <= s.high
    # without the widening about 65 % of the intervals miss
    assert missed <= 0.12 * 200


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([50, 10, 10.1, 9.9, 10, 10.2, 10, 9.8], "first value is 5.00× the median"),
        ([10, 20] * 10, "wide spread"),
        (list(np.linspace(10, 13, 60)), "drift: the values rose by 30 %"),
        (list(np.linspace(13, 10, 60)), "drift: the values fell by 23 %"),
    ],
)
def test_doubts_are_told(values: list[float], said: str) -> None:
    assert any(said in warning for warning in summarize(values).warnings)


def test_quiet_values_raise_no_doubt() -> None:
    random = np.random.default_rng(0)
    told = [summarize(random.lognormal(2, 0.05, 200)).warnings for _ in range(50)]
    assert [w for w in told if w] == []


def test_no_drift_is_told_where_there_is_none() -> None:
    random = np.random.default_rng(5)
    told = 0
    for _ in range(200):
        level, values = 0.0, []
        for push in random.normal(0, 0.03, 200):
            level = 0.8 * level + push
            values.append(math.exp(level))
        told += drift_of(values) is not None
    assert told <= 0.03 * 200


def test_nothing_cannot_be_summarised() -> None:
    with pytest.raises(UsageError):
        summarize([])


def test_many_equal_values_have_no_interval() -> None:
    s = summarize([7.0] * 1000, unit="µs")
    assert (s.low, s.high, s.unit, s.warnings) == (7, 7, "µs", ())
    assert Summary(**{**s.to_dict(), "warnings": ()}) == s
