"""A lesson says what this machine showed, even if the text says otherwise."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit.here import on_your_machine


def measured(low: float, ratio: float, high: float) -> SimpleNamespace:
    return SimpleNamespace(ratio=ratio, low=low, high=high)


@pytest.mark.parametrize(
    ("expect", "interval", "seen", "words"),
    [
        ("faster", (2.1, 2.3, 2.5), "faster", "2.30× as fast [2.10, 2.50], as the text says."),
        ("faster", (0.98, 1.0, 1.03), "same", "no difference seen"),
        (
            "faster",
            (0.88, 1.0, 1.15),
            "same",
            "no difference seen (1.00× as fast [0.880, 1.150]); one of up to 15 % may hide in the "
            "interval. The text says that it is faster.",
        ),
        ("faster", (0.7, 1.1, 1.8), "unclear", "too unsteady to tell"),
        (
            "faster",
            (0.4, 0.5, 0.6),
            "slower",
            "On your machine it is slower: 2.00× as long [1.67, 2.50].",
        ),
        (
            "slower",
            (0.4, 0.5, 0.6),
            "slower",
            "On your machine: 2.00× as long [1.67, 2.50], as the text says.",
        ),
        ("slower", (1.4, 1.5, 1.6), "faster", "The text says that it is slower."),
        (
            "same",
            (0.97, 1.0, 1.02),
            "same",
            "no difference seen (1.00× as fast [0.970, 1.020]), as the text says; one of up to "
            "3.1 % may hide in the interval.",
        ),
        (
            "same",
            (1.01, 1.03, 1.05),
            "same",
            "next to no difference, 1.03× as fast",
        ),  # seen, and small
        ("same", (1.2, 1.3, 1.4), "faster", "The text says that it makes no difference."),
        ("same", (0.88, 1.0, 1.15), "unclear", "too unsteady to tell"),
        ("same", (0.5, 1.0, 2.0), "unclear", "too unsteady to tell"),
        ("faster", (0.0, 184.0, math.inf), "unclear", "too few rounds for an interval (the ratio"),
    ],
)
def test_the_sentence_says_what_was_seen_and_what_the_text_says(
    expect: str, interval: tuple[float, float, float], seen: str, words: str
) -> None:
    found = on_your_machine(measured(*interval), expect=expect)  # type: ignore[arg-type]
    assert found.seen == seen
    assert found.agrees == (seen == expect)
    assert words in repr(found)
    agreed = ("as the text says", "hardly any")
    assert any(words in repr(found) for words in agreed) == found.agrees


def test_the_reason_stands_only_where_the_machine_does_not_show_it() -> None:
    why = "On one core workers cannot help."
    assert why in repr(on_your_machine(measured(0.99, 1.0, 1.01), because=why))
    assert why not in repr(on_your_machine(measured(1.9, 2.0, 2.1), because=why))
    # what was not seen needs no reason
    assert why not in repr(on_your_machine(measured(0.0, 1.2, math.inf), because=why))
    assert why not in repr(on_your_machine(measured(0.5, 1.2, 3.0), because=why))


def test_on_a_page_the_sentence_is_text() -> None:
    found = on_your_machine(measured(0.99, 1.0, 1.01), because="<b>")
    assert "&lt;b&gt;" in found._repr_html_()


def test_what_is_no_comparison_is_refused() -> None:
    with pytest.raises(UsageError, match="no ratio with an interval"):
        on_your_machine(3)
    with pytest.raises(UsageError, match="expect is one of"):
        on_your_machine(measured(1, 1, 1), expect="quicker")  # type: ignore[arg-type]
