"""Lettered answers to click on, if there is a notebook front end.

The widget is created when first shown in a kernel: plain Python and a terminal never import
ipywidgets for it. Everything that can be clicked can also be called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError

_FRONT = Path(__file__).parent / "front"
_STYLE = Path(__file__).parents[2] / "show" / "templates" / "report.css"
_VIEW = "application/vnd.jupyter.widget-view+json"


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
        self._fixed = {
            "question": question,
            "answers": [[letter, text] for letter, text in answers.items()],
            "button": button,
            "sure": list(sure),
            "unfolds": unfolds,
        }
        self._chosen = chosen
        self._state: dict[str, Any] = {
            "turn": 0,
            "open": True,
            "picked": None,
            "marks": {},
            "status": "",
        }
        self._widget: Any = None

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
        }
        if self._widget is not None:
            self._widget.state = self._state

    def view(self) -> dict[str, Any]:
        """The widget's MIME bundle; empty without a front end."""
        if not _has_front_end():
            return {}
        if self._widget is None:
            self._widget = _widget_class()(fixed=self._fixed, state=self._state)
            self._widget.on_msg(self._on_message)
        data = self._widget._repr_mimebundle_()
        # older versions of ipywidgets return only the parts, newer ones also their metadata
        parts = data[0] if isinstance(data, tuple) else data
        return {_VIEW: parts[_VIEW]} if parts and _VIEW in parts else {}

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


def _has_front_end() -> bool:
    """Whether this Python is a Jupyter kernel, not a script, terminal or worker."""
    kernelbase = sys.modules.get("ipykernel.kernelbase")
    return kernelbase is not None and bool(kernelbase.Kernel.initialized())


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
