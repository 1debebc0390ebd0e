"""A guess is locked once, and a question can be scored with or without a guess."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit import progress
from perfkit.course.kit.keys import key_of
from perfkit.course.kit.predict import Predict

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
    assert ("Next time, lock one before" in said) == (locked is None)


def test_letters_that_are_not_there() -> None:
    guess = Predict("Which?", ANSWERS)
    with pytest.raises(UsageError, match="a, b"):
        guess.lock("z")
    with pytest.raises(UsageError, match="a, b"):
        guess.score("z", because="")
    with pytest.raises(UsageError, match="at least two"):
        Predict("Which?", {"a": "only this"})


def test_what_is_no_letter_no_percentage_and_no_answer() -> None:
    guess: Any = Predict("Which?", ANSWERS)
    for letter in (["a"], 5, float("nan"), {"a": 1}):
        with pytest.raises(UsageError, match="a, b"):
            guess.lock(letter)
        with pytest.raises(UsageError, match="a, b"):
            guess.score(letter, because="")
    for sure in ("x", float("nan"), True, 50.5, 10**30, -1):
        with pytest.raises(UsageError, match="percentage from 0 to 100"):
            guess.lock("a", sure=sure)
    with pytest.raises(UsageError, match="because="):
        guess.score("a", because=None)
    assert guess.locked is None
    ask: Any = Predict
    for answers in (["a", "b"], None, {"a", "b"}, "ab"):
        with pytest.raises(UsageError, match="mapping of texts"):
            ask("Which?", answers)
    for answers in ({"": "x", "b": "y"}, {1: "x", 2: "y"}, {"a": 1, "b": 2}):
        with pytest.raises(UsageError, match="no letter and text"):
            ask("Which?", answers)
    with pytest.raises(UsageError, match="question in words"):
        ask(None, ANSWERS)
    with pytest.raises(UsageError, match="lesson=3"):
        ask("Which?", ANSWERS, lesson=3)


def test_what_is_shown_is_escaped() -> None:
    page = Predict("Which?", ANSWERS)._repr_html_()
    assert "fewer &lt;pixels&gt;" in page


def test_how_sure_is_kept_and_must_be_a_percentage() -> None:
    guess = Predict("Which?", ANSWERS)
    with pytest.raises(UsageError, match="from 0 to 100"):
        guess.lock("a", sure=101)
    assert guess.locked is None
    assert "(70 % sure)" in repr(guess.lock("a", sure=70))
    guess.lock("a", sure=99)  # the same letter again changes nothing
    assert guess.sure == 70


def test_a_guess_after_the_score_is_none() -> None:
    guess = Predict("Which?", ANSWERS)
    guess.score("b", because="it was measured")
    with pytest.raises(UsageError, match="scored already"):
        guess.lock("b")
    assert "No letter yet" in repr(guess.lock(""))  # running a notebook again works


def test_only_a_lesson_s_guess_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "home"))
    for lesson, locked in ((None, "a"), ("03", None)):
        guess = Predict("Which?", ANSWERS, lesson=lesson)
        guess.lock(locked)
        guess.score("b", because="")
    assert not (tmp_path / "home").exists()

    guess = Predict("Which?", ANSWERS, lesson="03")
    guess.lock("b", sure=90)
    assert "So far you were right 1 of 1 time." in repr(guess.score("b", because=""))
    (kept,) = progress.guesses()
    assert kept == progress.Guess("03", "Which?", "b", "b", 90)


def test_a_locked_guess_survives_the_kernel_until_it_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "home"))

    def asked() -> Predict:
        return Predict("Which?", {"a": "one", "b": "two"}, lesson="00")

    asked().lock("b", sure=70)
    again = asked()
    assert (again.locked, again.sure) == ("b", 70)
    with pytest.raises(UsageError, match="'b' is locked"):
        again.lock("a")
    assert Predict("Another?", {"a": "one", "b": "two"}, lesson="00").locked is None
    assert Predict("Which?", {"a": "one", "c": "two"}, lesson="00").locked is None
    again.score("b", because="so")
    assert asked().locked is None, "scored: it can be guessed again"
    asked().lock("a")
    progress.forget()
    assert asked().locked is None


def test_a_folder_that_cannot_be_written_costs_only_the_tally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "file"))
    guess = Predict("Which?", ANSWERS, lesson="03")
    guess.lock("b")
    said = " ".join(repr(guess.score("b", because="measured")).split())
    assert said.startswith("You guessed right")
    assert "Your guess could not be stored: " in said


def test_without_a_kernel_there_is_no_widget_and_nothing_is_imported_for_it() -> None:
    program = (
        "import sys; from perfkit.course.kit.predict import Predict; from perfkit.course.kit.quiz "
        "import Quiz; g = Predict('Q?', {'a': 'x', 'b': 'y'}, lesson='00'); g.lock('a'); "
        "g._repr_html_(); "
        "print(sorted({'anywidget', 'ipywidgets', 'IPython', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_a_lesson_s_own_guess_needs_no_answer_in_its_cell() -> None:
    guess = Predict("Which?", {"a": "wrong", "d": "less work"}, lesson="00")
    guess.lock("d")
    said = " ".join(repr(guess.score()).split())
    assert said.startswith("You guessed right It is d: less work.")
    assert (key := key_of("00")) is not None
    assert key.because in said
    own_words = Predict("Which?", {"a": "wrong", "d": "less work"}, lesson="02")
    assert "used 1 %" in repr(own_words.score(because="used 1 %"))


@pytest.mark.parametrize("lesson", [None, "no such lesson"])
def test_a_guess_without_a_key_must_be_told_the_answer(lesson: str | None) -> None:
    with pytest.raises(UsageError, match="say which answer is right"):
        Predict("Which?", ANSWERS, lesson=lesson).score()
