from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfkit.base.errors import UsageError
from perfkit.course.ledger.recording import Figure, Outcome, lesson_number
from perfkit.experiment.process.result import Ratio
from perfkit.measure.compare import compare


def test_a_figure_holds_plain_numbers_whatever_it_is_made_of() -> None:
    figure = Figure(np.float32(2.5), "ms", np.float64(2.0), np.int64(3))  # type: ignore[arg-type]
    assert [type(figure.value), type(figure.low), type(figure.high)] == [float, float, int]
    assert type(Figure(np.int64(7), "B", kind="exact").value) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan"), "unit": "ms"},
        {"value": float("inf"), "unit": "ms"},
        {"value": True, "unit": "ms"},
        {"value": "5", "unit": "ms"},
        {"value": None, "unit": "ms"},
        {"value": 1.0, "unit": " "},
        {"value": 1.0, "unit": "ms", "low": 0.5},
        {"value": 1.0, "unit": "ms", "low": 2.0, "high": 1.0},
        {"value": 1.0, "unit": "ms", "low": 0.5, "high": float("inf")},
        {"value": 1.0, "unit": "ms", "kind": "guessed"},
    ],
)
def test_a_figure_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Figure(**wrong)


def test_an_exact_figure_is_a_plain_number_unless_it_has_a_unit() -> None:
    assert Figure.exact(3) == Figure(3, "1", kind="exact")
    assert Figure.exact(2.5, "×") == Figure(2.5, "×", kind="exact")


def test_the_ratio_of_a_comparison_with_its_interval() -> None:
    found = compare(lambda: sum(range(200)), lambda: sum(range(100)), budget_s=2)
    # on a busy machine one block is all that fits, and one block has no interval
    seen = (found.low, found.high) if math.isfinite(found.high) else ()
    assert Figure.of(found) == Figure(found.ratio, "×", *seen)


def test_what_has_a_ratio_and_its_ends_gives_a_figure() -> None:
    assert Figure.of(Ratio(2.0, 1.5, 2.5)) == Figure(2.0, "×", 1.5, 2.5)


def test_an_interval_without_end_is_none() -> None:
    assert Figure.of(Ratio(2.0, 0.0, float("inf"))) == Figure(2.0, "×")


def test_what_has_no_ratio_is_refused() -> None:
    with pytest.raises(UsageError, match="a dict has no ratio"):
        Figure.of({"ratio": 2})


@pytest.mark.parametrize(
    "wrong",
    [
        {"headline": "other"},
        {"figures": {}},
        {"figures": {"Ratio": Figure(1.0, "×")}, "headline": "Ratio"},
        {"figures": {"a.b": Figure(1.0, "×")}, "headline": "a.b"},
        {"figures": {"ratio": 2.0}},
        {"sentence": "  "},
        {"sentence": "two\nlines"},
    ],
)
def test_an_outcome_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    right = {
        "holds": True,
        "figures": {"ratio": Figure(2.0, "×")},
        "headline": "ratio",
        "sentence": "It is.",
    }
    Outcome(**right)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Outcome(**(right | wrong))  # type: ignore[arg-type]


def test_figures_of_an_outcome_cannot_be_changed_afterwards() -> None:
    figures = {"ratio": Figure(2.0, "×")}
    made = Outcome(np.bool_(True), figures, "ratio", "It is.")  # type: ignore[arg-type]
    figures["more"] = Figure(1.0, "×")
    assert list(made.figures) == ["ratio"]
    assert made.holds is True
    with pytest.raises(TypeError):
        made.figures["ratio"] = Figure(9.0, "×")  # type: ignore[index]


@pytest.mark.parametrize("lesson", ["6", "six", "06_host", ""])
def test_what_is_no_lesson(lesson: str) -> None:
    with pytest.raises(UsageError, match="one looks like 06"):
        lesson_number(lesson)


def test_a_ratio_that_a_sleep_sets_is_simulated() -> None:
    found = Ratio(2.0, 1.5, 2.5)
    assert Figure.of(found, kind="simulated") == Figure(2.0, "×", 1.5, 2.5, "simulated")
    assert Figure.of(Ratio(2.0, 0.0, float("inf")), kind="simulated").kind == "simulated"
