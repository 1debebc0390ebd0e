"""The one variable that scales budgets."""

from __future__ import annotations

import pytest

from perfkit.base.budget import VARIABLE, budget_scale, scaled


def test_a_budget_stays_as_it_is_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert scaled(3.0) == 3.0


@pytest.mark.parametrize(("text", "scale"), [("0.1", 0.1), ("4", 4.0)])
def test_the_variable_multiplies(monkeypatch: pytest.MonkeyPatch, text: str, scale: float) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert budget_scale() == scale
    assert scaled(2.0) == 2.0 * scale


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf"])
def test_what_is_no_positive_number_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert budget_scale() == 1.0
