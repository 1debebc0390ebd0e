"""An exercise: hints in steps, a look at what the reader wrote, and a check of facts, not times."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.base.user_code import cell_names, is_user_code, where
from perfkit.course.kit._message import Message

__all__ = ["Exercise", "NotYet"]

_CALLS = "To look at your answer: .show(answer); to check it: .check(answer); for a hint: .hint()."


class NotYet(Exception):  # noqa: N818 - it is no error, the reader is on the way
    """What the reader wrote does not meet the spec yet; the message says why."""


class Exercise:
    """One exercise of a lesson.

    Shown, it is its title and its spec; on a page the hints open one inside the other.

    Args:
        title: one line.
        spec: what the answer must do, one requirement a line.
        hints: the first one vague, the last one nearly the solution.
        show: takes what the reader wrote, gives what there is to see of it.
        check: takes what the reader wrote, gives the facts that hold, one a line; raises
            :class:`NotYet` at the first that does not.

    Raises:
        UsageError: hints or spec are one text instead of several.
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
        """The next hint, with those before it; after the last one, all of them."""
        if self._given == len(self._hints):
            return Message("No further hint", items=self._hints)
        self._given = min(self._given + 1, len(self._hints))
        title = f"Hint {self._given} of {len(self._hints)}"
        return Message(title, items=self._hints[: self._given])

    def show(self, answer: Any) -> Message:
        """What the reader's answer does, right or wrong; an error in it becomes one message."""
        try:
            return self._show(answer)
        except NotYet as reason:
            return Message("Nothing to see yet", (str(reason),))
        except (Exception, SystemExit) as error:  # sys.exit() would end a script without a word
            return _broken(answer, error)

    def check(self, answer: Any) -> Message:
        """Whether the answer meets the spec; an error in it becomes one message."""
        try:
            facts = self._check(answer)
        except NotYet as reason:
            return Message("Not yet", (str(reason),))
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


def _broken(answer: Any, error: Exception | SystemExit) -> Message:
    """The reader's own error with the line of theirs that it came from, and no frame of ours.

    An error that never was in the reader's code is one of the call, or of perfkit; the first is
    shown, the second is raised.
    """
    if not callable(answer):
        kind = type(answer).__name__
        return Message(
            "Not yet", (f"give your function itself, not a {kind}: .check(your_function)",)
        )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_code(f.filename)]
    said = f"{type(error).__name__}: {_words(error)}".strip().removesuffix(":")
    if frames:
        last = frames[-1]
        place = where(last.filename, last.lineno or 0, cell_names())
        lines = (f"{said} ({place})", *([f"The line: {last.line}"] if last.line else []))
        return Message("Your function stopped with an error", lines)
    if isinstance(error, TypeError):
        return Message("Your function cannot be called like that", (said,))
    raise error


def _words(error: BaseException) -> str:
    """The error's own words; its ``__str__`` may be the reader's, and wrong."""
    try:
        return str(error)
    except Exception as another:
        return f"(its words cannot be had: its __str__ raised {type(another).__name__})"
