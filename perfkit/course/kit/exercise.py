"""An exercise: graded hints, a view of the reader's answer, and a check of facts, not times."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.user_code import is_user_code, where
from perfkit.course.kit.message import Message

_CALLS = "To look at your answer: .show(answer); to check it: .check(answer); for a hint: .hint()."


class NotYet(Exception):  # noqa: N818 - not an error: the reader is on the way
    """The answer does not meet the spec yet; the message says why."""


class Exercise:
    """One exercise of a lesson.

    Displayed, it shows the title and the spec; in HTML also the hints, nested folds.

    Args:
        title: one line.
        spec: what the answer must do, one requirement per line.
        hints: from vague to nearly the solution.
        show: takes the answer, returns a view of it.
        check: takes the answer, returns the facts that hold, one per line; raises
            :class:`NotYet` at the first that does not.

    Raises:
        UsageError: hints or spec is a single text instead of a list.
    """

    def __init__(
        self,
        title: str,
        *,
        hints: Sequence[str],
        show: Callable[[Any], Message],
        check: Callable[[Any], Sequence[str]],
        spec: Sequence[str] = (),
    ) -> None:
        if isinstance(hints, str) or isinstance(spec, str):
            raise UsageError('hints= and spec= are lists of texts, one a line: ["…"]')
        self.title = title
        self.spec = tuple(spec)
        self._hints = tuple(hints)
        self._given = 0
        self._show = show
        self._check = check

    def hint(self) -> Message:
        """The next hint and all before it; after the last one, all of them."""
        if self._given == len(self._hints):
            return Message("No further hint", items=self._hints)
        self._given = min(self._given + 1, len(self._hints))
        title = f"Hint {self._given} of {len(self._hints)}"
        return Message(title, items=self._hints[: self._given])

    def show(self, answer: Any) -> Message:
        """What the answer does, right or wrong; an error in it becomes a message."""
        try:
            return self._show(answer)
        except NotYet as reason:
            return Message("Nothing to see yet", _reason(reason))
        except (Exception, SystemExit) as error:  # sys.exit() would end a script silently
            return _broken(answer, error)

    def check(self, answer: Any) -> Message:
        """Whether the answer meets the spec; an error in it becomes a message."""
        try:
            facts = self._check(answer)
        except NotYet as reason:
            return Message("Not yet", _reason(reason))
        except (Exception, SystemExit) as error:
            return _broken(answer, error)
        return Message("Done", items=tuple(facts))

    def _message(self) -> Message:
        return Message(self.title, (_CALLS,), self.spec)

    def __repr__(self) -> str:
        return repr(self._message())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        n = len(self._hints)
        folds = tuple((f"Hint {i} of {n}", hint) for i, hint in enumerate(self._hints, start=1))
        return replace(self._message(), folds=folds)._repr_html_()


def _reason(reason: NotYet) -> tuple[str, ...]:
    """The reason, and the check's notes: with which input."""
    return (str(reason), *getattr(reason, "__notes__", []))


def _broken(answer: Any, error: Exception | SystemExit) -> Message:
    """The reader's error with its line in their code, without perfkit's frames.

    An error that never reached the reader's code is either an error of the call, which is shown,
    or one of perfkit, which is raised.
    """
    if not callable(answer):
        kind = type(answer).__name__
        return Message(
            "Not yet", (f"pass your function itself, got {kind}: .check(your_function)",)
        )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_code(f.filename)]
    said = f"{type(error).__name__}: {_words(error)}".strip().removesuffix(":")
    if frames:
        last = frames[-1]
        place = where(last.filename, last.lineno or 0)
        notes = getattr(error, "__notes__", [])  # of a check: with which input
        lines = (f"{said} ({place})", *([f"The line: {last.line}"] if last.line else []), *notes)
        return Message("Your function stopped with an error", lines)
    if isinstance(error, TypeError):
        return Message("Your function cannot be called like that", (said,))
    raise error


def _words(error: BaseException) -> str:
    """The error's message; its ``__str__`` may be the reader's, and fail."""
    try:
        return str(error)
    except Exception as another:
        return f"(no message: its __str__ raised {type(another).__name__})"
