"""A guess is settled once, and scored whether or not there is one."""

from __future__ import annotations

import pytest

from perfkit.errors import UsageError
from perfkit.lessons.predict import Predict

ANSWERS = {"a": "a larger batch", "b": "fewer <pixels>"}


def test_a_locked_guess_cannot_be_changed() -> None:
    guess = Predict("Which?", ANSWERS)
    assert "a larger batch" in repr(guess.lock("a"))
    guess.lock("a")
    guess.lock("")
    with pytest.raises(UsageError, match="locked"):
        guess.lock("b")
    assert guess.locked == "a"


@pytest.mark.parametrize(
    ("locked", "title"),
    [(None, "You locked no guess"), ("b", "You guessed right"), ("a", "You guessed a: a larger")],
)
def test_the_score(locked: str | None, title: str) -> None:
    guess = Predict("Which?", ANSWERS)
    guess.lock(locked)
    said = repr(guess.score("b", because="it was measured"))
    assert said.startswith(title)
    assert "It is b: fewer <pixels>." in said
    assert "it was measured" in said
    assert ("That is fine; next time, lock one before" in said) == (locked is None)


def test_letters_that_are_not_there() -> None:
    guess = Predict("Which?", ANSWERS)
    with pytest.raises(UsageError, match="a, b"):
        guess.lock("z")
    with pytest.raises(UsageError, match="a, b"):
        guess.score("z", because="")
    with pytest.raises(UsageError, match="at least two"):
        Predict("Which?", {"a": "only this"})


def test_what_is_shown_is_escaped() -> None:
    page = Predict("Which?", ANSWERS)._repr_html_()
    assert "fewer &lt;pixels&gt;" in page
