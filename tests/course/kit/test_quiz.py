"""A quiz explains every answer, and gives nothing away before."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from perfkit.base.errors import UsageError
from perfkit.course.kit.predict import Predict
from perfkit.course.kit.quiz import Quiz

ANSWERS = {"a": "four <times>", "b": "as much"}
BECAUSE = {"a": "float32 takes 4 bytes.", "b": "uint8 takes 1 byte."}


def _quiz(**changed: Any) -> Quiz:
    given = {"answers": ANSWERS, "right": "a", "because": BECAUSE} | changed
    answers = given.pop("answers")
    return Quiz("How much more?", answers, **given)


def test_each_answer_has_its_reason() -> None:
    quiz = _quiz()
    assert repr(quiz.answer("b")) == "Not that one\nb: as much\nuint8 takes 1 byte."
    assert repr(quiz.answer("a")) == "Right\na: four <times>\nfloat32 takes 4 bytes."
    assert repr(quiz.answer("")).startswith("No answer yet")
    for letter in ("z", ["a"], 5):
        with pytest.raises(UsageError, match="there are: a, b"):
            quiz.answer(letter)


def test_the_text_does_not_change_and_gives_nothing_away() -> None:
    quiz = _quiz()
    before = repr(quiz)
    assert before == "How much more?\n- a: four <times>\n- b: as much"
    quiz.answer("a")
    assert repr(quiz) == before


def test_the_page_folds_the_answer_and_escapes() -> None:
    page = _quiz()._repr_html_()
    assert "four &lt;times&gt;" in page
    shown, _, folded = page.partition("<details>")
    assert "float32 takes 4 bytes." not in shown
    assert "float32 takes 4 bytes." in folded


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"answers": {"a": "only"}}, "at least two"),
        ({"right": "z"}, "'z' is none of: a, b"),
        ({"because": {"a": ""}}, "look at: b"),
        ({"because": BECAUSE | {"c": ""}}, "look at: c"),
        ({"because": {1: "", "c": ""}}, "look at: 1, a, b, c"),
        ({"because": ["a", "b"]}, "mapping of reasons"),
        ({"answers": ["a", "b"]}, "mapping of texts"),
        ({"right": ["a"]}, "is none of: a, b"),
    ],
)
def test_a_quiz_that_cannot_be(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        _quiz(**changed)


def test_what_stays_has_the_answers_given_and_gives_nothing_else_away() -> None:
    quiz = _quiz()
    shown: list[dict[str, str]] = []
    choices = quiz._choices
    choices._asks = quiz._message()
    choices._display = SimpleNamespace(update=lambda data, raw: shown.append(data))
    how = "\nRun this cell to answer; in a new kernel the imports first."
    assert choices._stays()["text/plain"].endswith(f"{how}\n- a: four <times>\n- b: as much")
    quiz.answer("")
    assert shown == []
    quiz.answer("b")
    said = shown[0]["text/plain"]
    assert said.splitlines()[1:3] == [
        "Not that one: try another.",
        "Run this cell to answer again; in a new kernel the imports first.",
    ]
    assert said.endswith("- a: four <times>\n- b: as much (✗ uint8 takes 1 byte.)")
    page = shown[0]["text/html"]
    assert "(✗ uint8 takes 1 byte.)</li>" in page
    assert ".jupyter-widgets:not(:has(*)) { display: none; }" in page
    assert choices._state["stays"] == shown[0]

    guess = Predict("P?", ANSWERS)
    guess._choices._display = choices._display
    guess.score("a", because="measured")
    assert len(shown) == 1, (
        "of a question that nobody answered a lesson's saved output says no more"
    )
    guess = Predict("P?", ANSWERS)
    guess._choices._display = choices._display
    guess.lock("b")
    guess.score("a", because="measured")
    assert "b: as much (✗ your guess)" in shown[-1]["text/plain"]


@pytest.mark.slow
def test_in_a_kernel_the_output_is_the_same_each_time_but_for_the_widgets_id(
    tmp_path: Path,
) -> None:
    source = (
        "from perfkit.course.kit.predict import Predict\n"
        "from perfkit.course.kit.quiz import Quiz\n"
        f"quiz = Quiz('Q?', {ANSWERS!r}, right='a', because={BECAUSE!r})\n"
        f"guess = Predict('P?', {ANSWERS!r}, lesson='00')\n"
        "display(quiz, guess, guess.lock('a'), quiz.answer('b'))"
    )
    view = "application/vnd.jupyter.widget-view+json"
    seen = []
    for _ in range(2):
        notebook = new_notebook(cells=[new_code_cell(source)])
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        nbformat.validate(notebook)
        outputs = notebook.cells[0].outputs
        # nbval compares each part of an output but this one
        widgets = [output.data.pop(view, None) for output in outputs]
        assert [widget is not None for widget in widgets] == [True, False] * 2 + [False] * 2
        assert outputs[0].data == {}, "its text would be beside what stays"
        assert "(✗ uint8 takes 1 byte.)" in outputs[1].data["text/plain"]
        assert "a: four <times> (your guess)" in outputs[3].data["text/plain"]
        seen.append(json.dumps([output.data for output in outputs]))
    assert seen[0] == seen[1]
