"""The picture of memory over a region: which phase its axis names where."""

from __future__ import annotations

from itertools import chain

import pytest

from perfkit.memory.curve import Curve
from perfkit.show._curve import StackedCurve, _phases

STEP = (("forward", 4), ("backward", 5), ("optimizer", 3))


def _curve(*stretches: tuple[str, int]) -> Curve:
    """One with phases of so many points each."""
    phase = tuple(chain.from_iterable((name,) * n for name, n in stretches))
    ones = (1,) * len(phase)
    return Curve(tuple(range(1, len(phase) + 1)), ones, {"other": ones}, phase, 0, len(phase))


def _named(*stretches: tuple[str, int]) -> list[tuple[str, float]]:
    """What the axis says."""
    curve = _curve(*stretches)
    return [(one["name"], float(one["percent"])) for one in _phases(curve, curve.n_events)]


def test_one_step_has_its_phases() -> None:
    assert _named(("before", 1), ("forward", 39), ("backward", 50), ("optimizer", 10)) == [
        ("forward", 40.0), ("backward", 50.0), ("optimizer", 10.0),
    ]  # fmt: skip


def test_a_short_phase_within_a_long_one_is_left_out() -> None:
    assert _named(("forward", 50), ("no grad", 1), ("forward", 49)) == [("forward", 100.0)]


def test_many_short_steps_have_no_name() -> None:
    assert _named(("before", 1), *STEP * 20) == [("", pytest.approx(100.0))]


def test_a_long_phase_before_many_short_steps_keeps_its_name() -> None:
    named = _named(("no grad", 240), *STEP * 20)
    assert named == [("no grad", 50.0), ("", pytest.approx(50.0))]


def test_names_that_do_not_fit_under_the_curve_are_in_the_words_below_it() -> None:
    page = StackedCurve("memory", _curve(("no grad", 4), *STEP), {"other": "grey"}).as_html()
    assert "in order, not time (no grad, forward, backward, optimizer)." in page
    many = StackedCurve("memory", _curve(("no grad", 240), *STEP * 20), {"other": "grey"})
    assert "not time (no grad, several in turn)." in many.as_html()
    unnamed = StackedCurve("memory", _curve(*STEP * 20), {"other": "grey"})
    assert "in order, not time. Stacked" in unnamed.as_html()
