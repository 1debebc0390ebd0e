"""A guess that is locked before anything is measured, and scored at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.errors import UsageError
from perfkit.lessons._message import Message

__all__ = ["Predict"]


class Predict:
    """A question with lettered answers.

    ``guess.lock("b")`` settles on one; after that it can no longer be changed, which is the
    point. ``guess.score("d", because=…)`` ends it. A lesson also runs without a guess.

    Args:
        question: one sentence.
        answers: text by letter.

    Raises:
        UsageError: fewer than two answers.
    """

    def __init__(self, question: str, answers: Mapping[str, str]) -> None:
        if len(answers) < 2:
            raise UsageError("a prediction needs at least two answers to choose from")
        self.question = question
        self.answers = dict(answers)
        self.locked: str | None = None

    def lock(self, letter: str | None) -> Message:
        """Settle on an answer; an empty string or None settles on nothing yet.

        Raises:
            UsageError: no answer has that letter, or another one is locked.
        """
        if not letter:
            if self.locked:
                return self._locked_message()
            return Message("No guess yet", ("Choose a letter, run this cell, then go on.",))
        if letter not in self.answers:
            raise UsageError(f"no answer {letter!r}; there are: {', '.join(self.answers)}")
        if self.locked is not None and self.locked != letter:
            raise UsageError(f"your guess {self.locked!r} is locked; it is scored at the end")
        self.locked = letter
        return self._locked_message()

    def score(self, right: str, *, because: str) -> Message:
        """Compare the guess with what was measured.

        Args:
            right: the letter of the right answer.
            because: what the measurement showed.

        Raises:
            UsageError: no answer has that letter.
        """
        if right not in self.answers:
            raise UsageError(f"no answer {right!r}; there are: {', '.join(self.answers)}")
        truth = f"It is {right}: {self.answers[right]}."
        if self.locked is None:
            again = 'That is fine; next time, lock one before you measure: guess.lock("a").'
            return Message("You locked no guess", (truth, because, again))
        if self.locked == right:
            return Message("You guessed right", (truth, because))
        return Message(f"You guessed {self.locked}: {self.answers[self.locked]}", (truth, because))

    def _locked_message(self) -> Message:
        return Message("Locked", (f"{self.locked}: {self.answers[self.locked or '']}",))

    def _message(self) -> Message:
        return Message(self.question, items=tuple(f"{k}: {v}" for k, v in self.answers.items()))

    def __repr__(self) -> str:
        return repr(self._message())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return self._message()._repr_html_()
