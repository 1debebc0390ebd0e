"""The quizzes of the lessons: one answer is right, and each wrong one has a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfkit.course.kit import quizzes
from perfkit.course.kit.quiz import Quiz

RIGHT = {"interval_quiz": "c", "mask_quiz": "b", "names_quiz": "b", "twice_quiz": "b"}


def test_every_quiz_is_here() -> None:
    assert set(RIGHT) == set(quizzes.__all__)


@pytest.mark.parametrize("name", RIGHT)
def test_one_answer_is_right_and_each_call_asks_anew(name: str) -> None:
    make: Callable[[], Quiz] = getattr(quizzes, name)
    titles = {x: repr(make().answer(x)).splitlines()[0] for x in make().answers}
    assert len(titles) > 2
    assert titles.pop(RIGHT[name]) == "Right"
    assert set(titles.values()) == {"Not that one"}
