"""A message to the reader of a lesson: a title, a few lines and a list, as text and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfkit.show import plain_text


@dataclass(frozen=True, repr=False)
class Message:
    """A title, lines and list items; its ``repr`` is the plain text, stable for tests.

    Attributes:
        title: one line.
        lines: paragraphs under it.
        items: list entries under those.
        folds: folded parts as (summary, text), each nested in the one before. Only HTML has them;
            in plain text, a call shows the same.
    """

    title: str
    lines: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    folds: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        lines = (plain_text.wrap(line) for line in self.lines)
        items = (plain_text.wrap(f"- {item}", hang="  ") for item in self.items)
        return "\n".join([self.title, *lines, *items])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        from perfkit.course.kit._template import render

        return render(
            "lesson.html", title=self.title, lines=self.lines, items=self.items, folds=self.folds
        )
