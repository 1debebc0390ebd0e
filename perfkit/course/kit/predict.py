"""A guess that you lock before measuring and score at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.course.kit import progress
from perfkit.course.kit._choices import Choices, checked_answers, checked_letter
from perfkit.course.kit.keys import key_of
from perfkit.course.kit.message import Message

# The offered degrees of confidence, in percent; none below chance.
_SURE = (30, 50, 70, 90)


class Predict:
    """A question with lettered answers.

    ``guess.lock("b")`` locks one, like a click in a notebook; you cannot change it afterwards,
    which is the point. In JupyterLab, locking also opens the saved outputs below, which are folded
    until then (:mod:`perfkit.course.kit.folding`). ``guess.score()`` ends it. A lesson also runs
    without a guess.

    Args:
        question: one sentence.
        answers: letter → text.
        lesson: the lesson's number: perfkit has its key, and stores the guess: locked, so that a
            new kernel knows it; scored, for :func:`perfkit.course.kit.progress.calibration`.
            Without it nothing is stored.

    Raises:
        UsageError: there are fewer than two answers, an answer is not a text with a letter, or
            ``lesson`` is not a text.
    """

    def __init__(
        self, question: str, answers: Mapping[str, str], *, lesson: str | None = None
    ) -> None:
        self.answers = checked_answers("prediction", question, answers)
        if lesson is not None and not isinstance(lesson, str):
            raise UsageError(f'lesson={lesson!r:.60} is not a lesson\'s number: write "03"')
        self.question = question
        self.lesson = lesson
        self.locked: str | None = None
        self.sure: int | None = None
        self._scored = False
        chance = 100 / len(answers)
        self._choices = Choices(
            question,
            answers,
            button="Lock my guess",
            unfolds=True,
            chosen=lambda letter, sure: self.lock(letter, sure=sure),
            # without a lesson nothing is stored, so confidence would never be used
            sure=[percent for percent in _SURE if percent >= chance] if lesson else [],
        )
        kept = progress.locked(lesson, question) if lesson else None
        if kept is not None:  # in a kernel before this one
            with contextlib.suppress(UsageError):
                self.lock(kept[0], sure=kept[1])

    def lock(self, letter: str | None, *, sure: int | None = None) -> Message:
        """Lock an answer; an empty string or None locks nothing yet.

        Args:
            letter: the letter of the answer.
            sure: how sure you are, in percent (optional, for your calibration).

        Raises:
            UsageError: no answer has that letter, another one is locked, it is already scored, or
                ``sure`` is not a percentage.
        """
        if not letter:
            if self.locked:
                return self._locked_message()
            # saved under the cell, where a reader who has clicked sees it as well
            how = "If you clicked an answer, go on. If not, put its letter in and run this cell."
            return Message("No letter yet", (how,))
        letter = checked_letter(letter, self.answers)
        is_number = isinstance(sure, int) and not isinstance(sure, bool)
        if sure is not None and not (is_number and 0 <= sure <= 100):
            raise UsageError(f"sure= is a whole percentage from 0 to 100, not {sure!r:.60}")
        if self.locked is not None and self.locked != letter:
            raise UsageError(f"your guess {self.locked!r} is locked; your score is at the end")
        if self.locked is None and self._scored:
            raise UsageError(
                "this question is scored already; to guess again, run the cell that asks it"
            )
        if self.locked is None:
            self.locked, self.sure = letter, sure
            if self.lesson:
                progress.keep_lock(self.lesson, self.question, letter, sure)
            self._choices.update(
                f"Locked: {letter}{self._said_sure()}. Your score is at the end of the lesson.",
                open=False,
                picked=letter,
                marks={letter: ("mine", "your guess")},
            )
        return self._locked_message()

    def score(self, right: str | None = None, *, because: str | None = None) -> Message:
        """Compare the guess with what was measured.

        Args:
            right: the letter of the right answer; not needed for a lesson's own guess.
            because: what the measurement showed; by default from the lesson's key.

        Raises:
            UsageError: no answer has that letter, ``because`` is not a text, or one of them is
                missing and there is no key for this lesson.
        """
        right, because = self._key(right, because)
        self._scored = True
        if self.lesson:
            progress.end_lock(self.lesson, self.question)
        self._show_score(right)
        said = (f"It is {right}: {self.answers[right]}.", *([because] if because else []))
        if self.locked is None:
            again = 'Next time, lock one before you measure: guess.lock("a").'
            return Message("You locked no guess", (*said, again))
        lines = (*said, *self._kept(right))
        if self.locked == right:
            return Message("You guessed right", lines)
        return Message(f"You guessed {self.locked}: {self.answers[self.locked]}", lines)

    def _key(self, right: str | None, because: str | None) -> tuple[str, str]:
        known = key_of(self.lesson) if self.lesson else None
        if right is None:
            if known is None:
                raise UsageError('say which answer is right: guess.score("b", because="…")')
            right = known.right
            because = known.because if because is None else because
        right = checked_letter(right, self.answers)
        if not isinstance(because, str):
            raise UsageError(f"because= says in words what was measured, not {because!r:.60}")
        return right, because

    def _kept(self, right: str) -> tuple[str, ...]:
        """Store the guess if it belongs to a lesson, and say how often the reader was right."""
        if self.lesson is None or self.locked is None:
            return ()
        guess = progress.Guess(self.lesson, self.question, self.locked, right, self.sure)
        trouble = progress.keep(guess)
        if trouble:
            return (f"Your guess could not be stored: {trouble}.",)
        return (progress.calibration().sentence(),)

    def _show_score(self, right: str) -> None:
        marks = {right: ("right", "what was measured")}
        if self.locked == right:
            marks[right] = ("right", "your guess, and what was measured")
        elif self.locked is not None:
            marks[self.locked] = ("wrong", "your guess")
        self._choices.update(f"Scored: it is {right}.", open=False, picked=self.locked, marks=marks)

    def _said_sure(self) -> str:
        return "" if self.sure is None else f" ({self.sure} % sure)"

    def _locked_message(self) -> Message:
        letter = self.locked or ""
        return Message("Locked", (f"{letter}: {self.answers[letter]}{self._said_sure()}",))

    def _message(self) -> Message:
        return Message(self.question, items=tuple(f"{k}: {v}" for k, v in self.answers.items()))

    def __repr__(self) -> str:
        return repr(self._message())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return self._message()._repr_html_()

    def _ipython_display_(self) -> None:
        self._choices.display(self._message())
