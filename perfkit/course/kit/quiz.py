"""A question with one right answer, and a reason why each of the others is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.course.kit._choices import Choices, checked_answers, checked_letter
from perfkit.course.kit.message import Message


class Quiz:
    """A question with lettered answers, one of them right.

    ``quiz.answer("b")`` says whether it is right, and why, like a click in a notebook; after a
    wrong answer you can try again. Nothing is stored but what the saved notebook shows.

    Args:
        question: one sentence.
        answers: letter → text.
        right: the letter of the right answer.
        because: letter → why it is right or wrong.

    Raises:
        UsageError: there are fewer than two answers, or one is not a text with a letter; ``right``
            is not one of them; a reason is missing or belongs to no answer.
    """

    def __init__(
        self, question: str, answers: Mapping[str, str], *, right: str, because: Mapping[str, str]
    ) -> None:
        self.answers = checked_answers("quiz", question, answers)
        if not isinstance(right, str) or right not in answers:
            raise UsageError(f"the right answer {right!r:.60} is none of: {', '.join(answers)}")
        if not isinstance(because, Mapping):
            raise UsageError("because= is a mapping of reasons by letter: {'a': …}")
        if set(because) != set(answers):
            odd = ", ".join(sorted(map(str, set(because) ^ set(answers))))
            raise UsageError(f"because= needs one reason for each answer; look at: {odd}")
        self.question = question
        self.right = right
        self.because = dict(because)
        self._tried: list[str] = []
        self._choices = Choices(
            question, answers, button="Answer", chosen=lambda letter, _: self.answer(letter)
        )

    def answer(self, letter: str | None) -> Message:
        """Say whether an answer is right, and why; an empty string or None answers nothing yet.

        Raises:
            UsageError: no answer has that letter.
        """
        if not letter:
            return Message("No answer yet", ("Choose a letter and run this cell.",))
        letter = checked_letter(letter, self.answers)
        if letter not in self._tried:
            self._tried.append(letter)
        title = "Right" if letter == self.right else "Not that one"
        self._choices.update(
            f"{title}." if letter == self.right else f"{title}: try another.",
            open=self.right not in self._tried,
            picked=letter,
            marks={
                tried: ("right" if tried == self.right else "wrong", self.because[tried])
                for tried in self._tried
            },
        )
        chosen = f"{letter}: {self.answers[letter]}"
        return Message(title, (chosen, self.because[letter]))

    def _message(self) -> Message:
        right = f"{self.right}: {self.answers[self.right]}. {self.because[self.right]}"
        items = tuple(f"{k}: {v}" for k, v in self.answers.items())
        return Message(self.question, items=items, folds=(("The answer", right),))

    def __repr__(self) -> str:
        return repr(self._message())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return self._message()._repr_html_()

    def _ipython_display_(self) -> None:
        self._choices.display(self._message())
