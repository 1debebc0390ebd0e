"""How an exercise is displayed; its answers are tested in test_start_here.py."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.base.errors import UsageError
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message


def _check(answer: Any) -> list[str]:
    if answer() != 3:
        raise NotYet("it returns another number: return 3")
    return ["it returns 3"]


def _exercise() -> Exercise:
    return Exercise(
        "Return three",
        spec=["takes nothing", "returns <3>"],
        hints=["a number", "between 2 and 4"],
        show=lambda answer: Message(f"It gives {answer()}"),
        check=_check,
    )


def test_the_text_is_title_spec_and_calls_and_stays_the_same() -> None:
    exercise = _exercise()
    before = repr(exercise)
    assert before.startswith("Return three\n")
    assert "- takes nothing\n- returns <3>" in before
    assert all(call in before for call in (".show(", ".check(", ".hint("))
    exercise.hint()
    assert repr(exercise) == before
    assert "between 2 and 4" not in before


def test_hints_on_the_page_lie_one_inside_the_other() -> None:
    page = _exercise()._repr_html_()
    assert "returns &lt;3&gt;" in page
    first, second = page.index("Hint 1 of 2"), page.index("Hint 2 of 2")
    assert first < page.index("a number") < second < page.index("between 2 and 4")
    assert "</details>" not in page[first:second]
    assert page.count("<details>") == page.count("</details>") == 2


def test_answers() -> None:
    exercise = _exercise()
    assert repr(exercise.check(lambda: 3)) == "Done\n- it returns 3"
    assert repr(exercise.check(lambda: 4)).startswith("Not yet\nit returns another number")
    assert repr(exercise.show(lambda: 4)) == "It gives 4"


def test_an_answer_that_exits_or_whose_error_has_no_words_is_told() -> None:
    def leaves() -> None:
        raise SystemExit(2)

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def wordless() -> None:
        raise WordlessError

    exercise = _exercise()
    for answer, words in ((leaves, "SystemExit: 2 ("), (wordless, "WordlessError: (no message")):
        for message in (exercise.check(answer), exercise.show(answer)):
            assert repr(message).startswith(f"Your function stopped with an error\n{words}")


def test_one_text_is_no_list_of_hints() -> None:
    with pytest.raises(UsageError, match="lists of texts"):
        Exercise("t", hints="a number", show=lambda _: Message(""), check=_check)


def test_stopping_the_kernel_is_not_an_answer() -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _exercise().check(stopped)


def test_code_in_a_text_is_marked_as_such_on_the_page_and_nothing_else_is() -> None:
    exercise = Exercise(
        "t",
        spec=["batches of `size` texts", "a lone ` stays, `<b>` is text"],
        hints=["a multiple of `size`"],
        show=lambda _: Message(""),
        check=_check,
    )
    page = exercise._repr_html_()
    assert "batches of <code>size</code> texts" in page
    assert "a multiple of <code>size</code>" in page
    assert "a lone ` stays, <code>&lt;b&gt;</code> is text" in page
    assert "- batches of `size` texts" in repr(exercise)
