"""Lettered answers to click on, if there is a notebook front end.

The widget is created when first shown in a kernel: plain Python and a terminal never import
ipywidgets for it. Everything that can be clicked can also be called.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.course.kit.folding import WIDGET_VIEW
from perfkit.course.kit.message import Message
from perfkit.widgets._frontend import has_front_end, no_widgets_here
from perfkit.widgets._stays import staying

_FRONT = Path(__file__).parent / "front"
_STYLE = Path(__file__).parents[2] / "show" / "templates" / "report.css"
_SIGNS = {"right": "✓ ", "wrong": "✗ "}


class Choices:
    """The answers to a question as radio buttons, with one button to submit.

    Args:
        question: the legend.
        answers: letter → text.
        button: the button's label.
        chosen: called with a letter and a percentage or None when the button is pressed; a
            UsageError that it raises is shown.
        sure: the percentages for "how sure are you"; empty to skip that question.
        unfolds: whether submitting opens the folded outputs below, if the page allows it.
    """

    def __init__(
        self,
        question: str,
        answers: Mapping[str, str],
        *,
        button: str,
        chosen: Callable[[str, int | None], Any],
        sure: Sequence[int] = (),
        unfolds: bool = False,
    ) -> None:
        self._fixed: dict[str, Any] = {
            "question": question,
            "answers": [[letter, text] for letter, text in answers.items()],
            "button": button,
            "sure": list(sure),
            "unfolds": unfolds,
            # of the question, so that a lesson's saved output is the same each time
            "static": f"pk-static-{zlib.crc32(repr((question, dict(answers))).encode()):08x}",
        }
        self._chosen = chosen
        self._state: dict[str, Any] = {
            "turn": 0,
            "open": True,
            "picked": None,
            "marks": {},
            "status": "",
            "stays": {},
        }
        self._widget: Any = None
        self._display: Any = None  # of what stays
        self._asks = Message(question)

    def update(
        self,
        status: str,
        *,
        open: bool,  # noqa: A002 - whether another answer may still be chosen
        picked: str | None = None,
        marks: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """Show the outcome of a choice in every view of the widget.

        Args:
            status: one or two sentences.
            open: whether another answer may be chosen.
            picked: the letter to mark as chosen.
            marks: letter → its kind (``"right"``, ``"wrong"``, ``"mine"``) and the words beside it.
        """
        self._state = {
            "turn": self._state["turn"] + 1,
            "open": open,
            "picked": picked,
            "marks": {letter: list(mark) for letter, mark in (marks or {}).items()},
            "status": status,
            "stays": self._state["stays"],
        }
        if self._display is not None and picked is not None:
            self._state["stays"] = self._stays()
            self._display.update(self._state["stays"], raw=True)
        if self._widget is not None:
            self._widget.state = self._state

    def display(self, asks: Message) -> None:
        """Display the widget, and below it what stays in the saved notebook, which it hides.

        What stays has the reader's answer once there is one, and not before what is right.

        Args:
            asks: the question with its answers.
        """
        from IPython.display import display

        self._asks = asks
        if not has_front_end() or no_widgets_here():
            display({"text/plain": repr(asks)}, raw=True)
            return
        if self._widget is None:
            self._widget = _widget_class()(fixed=self._fixed, state=self._state)
            self._widget.on_msg(self._on_message)
        data = self._widget._repr_mimebundle_()
        # older versions of ipywidgets return only the parts, newer ones also their metadata
        parts = data[0] if isinstance(data, tuple) else data
        display({WIDGET_VIEW: parts[WIDGET_VIEW]}, raw=True)
        self._display = display(self._stays(), raw=True, display_id=True)

    def _stays(self) -> dict[str, Any]:
        marks = self._state["marks"]

        def item(letter: str, text: str) -> str:
            kind, said = marks.get(letter, ("", ""))
            return f"{letter}: {text}" + (f" ({_SIGNS.get(kind, '')}{said})" if said else "")

        again = " again" if self._state["picked"] else ""
        shown = replace(
            self._asks,
            lines=(
                *filter(None, [self._state["status"]]),
                f"Run this cell to answer{again}; in a new kernel the imports first.",
            ),
            items=tuple(item(letter, text) for letter, text in self._fixed["answers"]),
        )
        html = staying(self._fixed["static"], shown._repr_html_())
        return {"text/plain": repr(shown), "text/html": html}

    def _on_message(self, _: Any, content: Any, buffers: Any) -> None:
        try:
            self._chosen(str(content["letter"]), content.get("sure"))
        except UsageError as error:
            self._state = {**self._state, "turn": self._state["turn"] + 1, "status": str(error)}
            self._widget.state = self._state


def checked_answers(what: str, question: Any, answers: Any) -> dict[str, str]:
    """Check the question and its answers; return the answers by letter.

    Raises:
        UsageError: the question is not a text, or the answers are not a mapping of at least two
            texts, each with a non-empty letter.
    """
    if not isinstance(question, str):
        raise UsageError(f"a {what} needs a question in words, not {question!r:.60}")
    if not isinstance(answers, Mapping):
        raise UsageError(f"the answers of a {what} are a mapping of texts by letter: {{'a': …}}")
    if len(answers) < 2:
        raise UsageError(f"a {what} needs at least two answers to choose from")
    for letter, text in answers.items():
        if not isinstance(letter, str) or not letter or not isinstance(text, str):
            raise UsageError(
                f"no letter and text of a {what}'s answer: {letter!r:.40}: {text!r:.40}"
            )
    return dict(answers)


def checked_letter(letter: Any, answers: Mapping[str, str]) -> str:
    """Check that an answer has this letter and return it.

    Raises:
        UsageError: no answer has it.
    """
    if not isinstance(letter, str) or letter not in answers:
        raise UsageError(f"no answer {letter!r:.60}; there are: {', '.join(answers)}")
    return letter


@functools.cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    style = _STYLE.read_text(encoding="utf-8") + (_FRONT / "choices.css").read_text("utf-8")

    class ChoicesWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """``fixed`` is the question, ``state`` its outcome; letters arrive as messages."""

        _esm = (_FRONT / "choices.js").read_text(encoding="utf-8")
        _css = style
        fixed = traitlets.Dict().tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

    return ChoicesWidget
