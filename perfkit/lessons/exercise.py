"""An exercise: hints in steps, a look at what the reader wrote, and a check of facts, not times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfkit.lessons._message import Message

__all__ = ["Exercise", "NotYet"]


class NotYet(Exception):  # noqa: N818 - it is no error, the reader is on the way
    """What the reader wrote does not meet the spec yet; the message says in what."""


class Exercise:
    """One exercise of a lesson.

    Args:
        title: one line.
        hints: the first one vague, the last one nearly the solution.
        show: takes what the reader wrote, gives what there is to see of it.
        check: takes what the reader wrote, gives the facts that hold, one a line; raises
            :class:`NotYet` at the first that does not.
    """

    def __init__(
        self,
        title: str,
        *,
        hints: Sequence[str],
        show: Callable[[Any], Message],
        check: Callable[[Any], Sequence[str]],
    ) -> None:
        self.title = title
        self._hints = tuple(hints)
        self._given = 0
        self._show = show
        self._check = check

    def hint(self) -> Message:
        """The next hint; after the last one, all of them."""
        self._given = min(self._given + 1, len(self._hints))
        title = f"Hint {self._given} of {len(self._hints)}"
        return Message(title, items=self._hints[: self._given])

    def show(self, answer: Any) -> Message:
        """What the reader's answer does, right or wrong; the reader's own errors come through."""
        try:
            return self._show(answer)
        except NotYet as reason:
            return Message("Nothing to see yet", (str(reason),))

    def check(self, answer: Any) -> Message:
        """Whether the answer meets the spec; the reader's own errors come through."""
        try:
            facts = self._check(answer)
        except NotYet as reason:
            return Message("Not yet", (str(reason),))
        return Message("Done", items=tuple(facts))

    def __repr__(self) -> str:
        return f"<Exercise: {self.title}>"
