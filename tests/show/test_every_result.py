"""Every result of perfkit has every form, and whatever it advises works.

The types are found, not listed: a new one without a document, or without a way to make one in
``real_results``, fails here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from real_results import modules, result, result_types

from perfkit import show
from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.show._copy import _SCRIPT, with_copy
from perfkit.show.document import Document, Table

TYPES = result_types()
of_every_result = pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)

# With an HTML form, and yet no result: what a lesson asks, says or shows, and a drawing.
_OF_A_LESSON = {"Calibration", "Exercise", "ImageSet", "KeyPoints", "Message", "OnYourMachine"}
_OF_A_LESSON |= {"Picture", "Predict", "Quiz"}
# What public functions return without being a result: what goes into a measurement, and columns.
_NO_RESULT = {"Setting", "Steps", "Trace", "Recording", "StepBreakdown", "Session"}
# Rows of a result; a list of them is returned.
_ROWS = {"Operator", "Sync"}


def test_the_types_are_found() -> None:
    names = {cls.__name__ for cls in TYPES}
    assert {"Profile", "Comparison", "MemoryAccount", "Syncs", "Sweep", "Ledger"} <= names
    assert len(TYPES) > 35


@of_every_result
def test_it_has_a_document_and_all_its_forms(cls: type) -> None:
    made = result(cls)
    said = show.document(made)
    assert isinstance(said, show.Document)
    assert said.name
    assert said.sentence
    assert str(made).strip()
    assert max(map(len, str(made).splitlines())) <= 96 or said.findings
    assert made._repr_html_().startswith('<div class="pk-report"')
    assert made.to_markdown().startswith("**")
    assert isinstance(json.loads(made.to_json()), dict | list)
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"].strip()
    assert said.answer.split()[0] in bundle["text/plain"]
    assert bool(said.kind) == (show.RESULT_MIME in bundle)
    json.dumps(bundle, allow_nan=False)


@of_every_result
def test_it_has_a_figure_or_says_that_it_has_none(cls: type) -> None:
    made = result(cls)
    said = show.document(made)
    assert said is not None
    if not _has_picture(said):
        with pytest.raises(UsageError, match="no picture"):
            made.figure()
        return
    assert made.figure().axes
    assert len(show.alt_text(made).split()) > 3


@of_every_result
def test_the_endings_that_save_advises_are_those_that_it_takes(cls: type, tmp_path: Path) -> None:
    made = result(cls)
    said = show.document(made)
    assert said is not None
    for refused in (".docx", *((".png", ".svg") if not _has_picture(said) else ())):
        with pytest.raises(UsageError, match="cannot save as") as why:
            made.save(tmp_path / f"r{refused}")
        advised = re.findall(r"\.\w+", str(why.value).partition(": ")[2])
        assert {".txt", ".md", ".html"} <= set(advised)
        assert _has_picture(said) == ({".png", ".svg"} <= set(advised))
    for ending in advised:
        assert made.save(tmp_path / f"r{ending}").stat().st_size > 10


def _has_picture(said: show.Document) -> bool:
    return bool(
        said.draw
        or said.pictures
        or any(s.value > 0 for bar in said.bars for s in bar.segments)
        or any(map(_has_picture, said.sections))
    )


# ---- copied from a notebook ------------------------------------------------------------------


@of_every_result
def test_a_report_in_a_notebook_can_be_copied_as_markdown(cls: type) -> None:
    made = result(cls)
    said = show.document(made)
    assert said is not None
    page = made._repr_mimebundle_()["text/html"]
    plain = made._repr_html_()
    assert "<script" not in plain
    assert len(page) - len(plain) < 10_000, "a stored notebook stays small"
    folds = re.findall(r'<details class="pk-markdown">.*?<pre[^>]*>(.*?)</pre>', page, re.S)
    if not (said.tables or said.findings or said.folds or said.draw or _has_picture(said)):
        assert page == plain, "a lone sentence can be copied as it is"
        return
    (fold,) = folds
    whole = made.to_markdown()
    if len(whole) > 8_000:
        assert "to_markdown()" in fold
        return
    assert unescape(fold) == whole
    # what runs is ours alone: nothing of a result is within the script
    assert re.findall("<script>.*?</script>", page, re.S) == [_SCRIPT]


def test_what_is_copied_is_scrubbed() -> None:
    named = Document("note", "See /home/somebody/secret.py", tables=(Table(("a",), (("x",),)),))
    assert "somebody" not in with_copy(named).partition('class="pk-markdown"')[2]


# ---- nothing is a result without being one of these ----------------------------------------


def test_nothing_else_has_a_html_form_of_its_own() -> None:
    own = {
        cls.__name__
        for module in modules()
        for cls in vars(module).values()
        if isinstance(cls, type)
        and cls.__module__ == module.__name__
        and {"_repr_html_", "_repr_mimebundle_"} & set(cls.__dict__)
    }
    assert own - {"Shown", "PageFigure"} == _OF_A_LESSON  # PageFigure: what .figure() returns


def test_every_public_function_returns_a_result_or_something_known() -> None:
    import perfkit
    import perfkit.advice
    import perfkit.experiment
    import perfkit.trace

    unknown = {}
    for package in (perfkit, perfkit.advice, perfkit.experiment, perfkit.trace):
        for name in package.__all__:
            public = getattr(package, name)
            for cls in _returned(public) if inspect.isfunction(public) else ():
                ours = cls.__module__.startswith("perfkit.") and dataclasses.is_dataclass(cls)
                if ours and not issubclass(cls, Shown):
                    unknown[cls.__name__] = name
    assert set(unknown) <= _NO_RESULT | _ROWS, unknown


def _returned(function: Any) -> list[type]:
    """The classes that a function says it returns."""
    said = inspect.signature(function).return_annotation
    if isinstance(said, str):
        names = vars(inspect.getmodule(function)) | _all_classes()
        try:
            said = eval(said, names)
        except NameError:  # of torch or IPython, imported for type checkers only
            return []

    def parts(annotation: Any) -> list[type]:
        inner = [cls for one in typing.get_args(annotation) for cls in parts(one)]
        return [annotation, *inner] if isinstance(annotation, type) else inner

    return parts(said)


def _all_classes() -> dict[str, type]:
    return {cls.__name__: cls for cls in TYPES}


# ---- read without its style ----------------------------------------------------------------

_BLOCKS = {"details", "div", "figcaption", "figure", "h3", "h4", "li", "ol", "p", "pre", "summary"}
_BLOCKS |= {"table", "tbody", "thead", "tr", "ul"}


class _Words(HTMLParser):
    """The words of a page as a reader sees them where every style is taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[str] = []
        self.glued: list[str] = []  # words that only a tag keeps apart
        self._skipped = 0
        self._after_a_tag = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._after_a_tag = True
        if tag in ("style", "script", "svg", "button"):
            self._skipped += 1
        elif tag in _BLOCKS or tag == "br":
            self.out.append("\n")
        elif tag in ("td", "th"):
            self.out.append("\t")

    def handle_endtag(self, tag: str) -> None:
        self._after_a_tag = True
        if tag in ("style", "script", "svg", "button"):
            self._skipped -= 1
        elif tag in _BLOCKS:
            self.out.append("\n")

    def handle_data(self, data: str) -> None:
        if self._skipped or not data:
            return
        before = self.out[-1][-1:] if self.out else ""
        if self._after_a_tag and before.isalnum() and data[0].isalnum():
            self.glued.append(f"{before}{data}")
        self.out.append(data)
        self._after_a_tag = False


def _unstyled(html: str) -> str:
    """The words.

    Raises:
        AssertionError: two words are apart only by a style.
    """
    words = _Words()
    words.feed(html)
    words.close()
    assert not words.glued, words.glued
    return re.sub(r"[ \n]*\n[ \n]*", "\n", "".join(words.out))


def test_glued_words_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="t0 ms"):
        _unstyled("<li>wait<b>0 ms</b><span>67 %</span></li>")
    assert "wait 0 ms" in _unstyled("<style>.a{}</style><li>wait <b>0 ms</b></li>")


@of_every_result
def test_html_reads_well_without_its_style(cls: type) -> None:
    said = show.document(result(cls))
    assert said is not None
    read = _unstyled(result(cls)._repr_html_())
    lines = [" ".join(line.split()) for line in read.splitlines()]
    # whatever the document holds stands there whole, apart from its neighbours
    for whole in _pieces(said):
        words = " ".join(whole.replace("`", "").split())  # what stands in them is code
        at = [line for line in lines if words in line]
        assert at, (words, lines)
        assert any(_stands_alone(line, words) for line in at), (words, at)


def _stands_alone(line: str, words: str) -> bool:
    begin = line.find(words)
    while begin >= 0:
        before, after = line[:begin], line[begin + len(words) :]
        if not (before and before[-1].isalnum()) and not (after and after[0].isalnum()):
            return True
        begin = line.find(words, begin + 1)
    return False


def _pieces(said: show.Document) -> list[str]:
    """Every separate piece of text of a document."""
    found = [said.answer, said.more, *said.lines, *said.advice, *said.foot]
    for bar in said.bars:
        found.append(bar.title)
        for segment in bar.segments:
            found += [segment.label, segment.shown, f"{segment.label} {segment.shown}"]
    for one in (*said.findings, *said.more_findings):
        found += [one.title, one.tag, *one.facts, *one.small]
    for table in said.tables:
        if table.rows:
            found += [table.title, table.note]
            for row in (table.header, *table.rows):
                found += [cell for cell in row if isinstance(cell, str)]
    found += [fold.title for fold in said.folds]
    for section in said.sections:
        found += _pieces(section)
    return [piece for piece in found if piece.strip()]


@of_every_result
def test_its_first_screen_is_a_short_verdict_in_a_terminals_height(cls: type) -> None:
    """A number and its unit are one word."""
    made = result(cls)
    said = show.document(made)
    assert said is not None
    words = re.sub(r"(?<=[\d<>]) (?=\S+)", "", said.answer).split()
    assert len(words) <= (16 if "torch's operators" in said.answer else 12)
    assert not set("[]()") & set(said.answer)
    assert len(str(made).splitlines()) <= 25


@pytest.mark.parametrize(
    "name",
    [
        "ABResult",
        "Sweep",
        "Comparison",
        "LeakReport",
        "Peaks",
        "Limit",
        "MemoryAccount",
        "Waterfall",
    ],
)
def test_it_is_drawn_without_being_asked(name: str) -> None:
    """With words for whom sees no picture, on the page and in the text."""
    (cls,) = [one for one in TYPES if one.__name__ == name]
    made = result(cls)
    said = show.document(made)
    assert said is not None
    shown = [one for one in said.pictures if not one.folds]
    assert shown
    page = unescape(made._repr_html_()).replace("\N{NO-BREAK SPACE}", " ")
    for one in shown:
        assert f'aria-label="{one.title}: {one.words}"' in page
        assert page.index(f"{one.title}: {one.words}") < page.index("<details>")
        assert one.as_text()
