from __future__ import annotations

import numpy as np
import pytest

from perfkit.base.trend import trend
from perfkit.measure.paired import t_quantile


# Fisher and Yates' table, two-sided
@pytest.mark.parametrize(
    ("confidence", "freedom", "t"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 10, 2.228),
        (0.95, 120, 1.980),
        (0.99, 5, 4.032),
        (0.95, 100_000, 1.960),
    ],
)
def test_t_quantiles_are_those_of_the_tables(confidence: float, freedom: int, t: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(t, abs=6e-4)


def test_slope_is_exact_on_a_line_and_untouched_by_outliers() -> None:
    values = 100 + 2.0 * np.arange(200)
    values[::17] *= 50
    found = trend(values)
    assert found is not None
    assert found.slope == pytest.approx(2.0, rel=0.02)
    assert found.low <= found.slope <= found.high
    assert found.clear


def test_one_jump_is_no_trend() -> None:
    found = trend(np.r_[np.full(100, 10.0), np.full(100, 15.0)])
    assert found is not None
    assert not found.clear


def test_too_few_points_or_no_range_say_nothing() -> None:
    assert trend([1.0, 2.0, 3.0]) is None


def test_relative_change_is_against_the_start() -> None:
    found = trend(np.linspace(10, 12, 400))
    assert found is not None
    assert found.relative == pytest.approx(0.2, abs=0.005)
    assert set(found.to_dict()) == {"slope", "low", "high", "change", "relative", "clear"}


@pytest.mark.parametrize(("wave", "is_clear"), [(2.0, True), (4.0, False)])
def test_a_rise_far_above_a_slow_wave_is_clear(wave: float, is_clear: bool) -> None:
    """The wave's neighbours hang together, as those of correlated noise, which makes no line that
    rises by twenty of its standard deviations. Here they are 28 and 14 of them.
    """
    x = np.arange(40)
    found = trend(100 + x + wave * np.sin(2 * np.pi * x / 13))
    assert found is not None
    assert found.clear is is_clear
