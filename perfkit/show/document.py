"""What a result says, as data: the one thing that every form of it is made from.

A result's room knows figures; a module of this room makes a :class:`Document` of them, under
:func:`document_for`; and one renderer each makes text, HTML, Markdown and a figure of any
document. So the forms cannot drift apart, and whoever adds a result writes one function.

A document holds plain words. Escaping is the renderers' business, and so is layout. The order is
the verdict, what to do, why, how sure, where from: the first screen is the headline with its figure
and its doubts, the bars and at most three findings; everything else folds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Segment:
    """One class of a bar.

    Attributes:
        value: its size, in the unit of the whole bar; not negative.
        shown: the value with its unit, as printed in the legend.
        look: a name of the palette (orange, sky, green, yellow, blue, vermilion, purple, grey,
            hollow); empty for the next in that order.
    """

    label: str
    value: float
    shown: str
    look: str = ""


@dataclass(frozen=True)
class Bar:
    """Parts of a whole, e.g. the classes of a median step.

    Attributes:
        segments: its parts, in the order of the picture.
        parts: what a part is, for the head of the legend.
        quantity: what is measured, for the head of the legend.
    """

    title: str
    segments: tuple[Segment, ...]
    parts: str = "class"
    quantity: str = "time"


@dataclass(frozen=True)
class Finding:
    """Something to change, with what speaks for it; empty strings where there is nothing to say.

    Attributes:
        tag: beside it: the bound of the gain, or how often.
        source: the line of code that it is about.
        facts: the evidence for it.
        code: what to do, as code; its lines are never wrapped.
        lead: what introduces the code.
        small: below it: how the bound was worked out, which lesson explains it.
    """

    title: str
    tag: str = ""
    source: str = ""
    facts: tuple[str, ...] = ()
    code: str = ""
    lead: str = ""
    small: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A cell with more than a value.

    Attributes:
        small: lines below it.
        fold: what ``folded`` is called.
        folded: lines that are shown when asked for; not in plain text.
    """

    text: str
    small: tuple[str, ...] = ()
    fold: str = ""
    folded: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Doubt:
    """What an answer may be wrong by.

    Attributes:
        chip: it in a few words, beside the answer.
        sentence: all of it, shown when asked for.
    """

    chip: str
    sentence: str

    @classmethod
    def of(cls, sentence: str) -> Doubt:
        """Its beginning is the chip."""
        chip = re.split(r"[,:;(]", sentence, maxsplit=1)[0].removeprefix("The ")
        return cls(chip.rstrip(". "), sentence)


# characters; a name of a class or category, a number with its unit
_SHORT = 16


@dataclass(frozen=True)
class Table:
    """A table of formatted cells.

    Attributes:
        header: one title per column.
        rows: the cells. Without rows, the table is not shown.
        note: a remark beside the title: units, how many of how many.
        align: ``<`` or ``>`` per column; by default the first column to the left and all others
            to the right.
        code: ``c`` for columns that hold code (monospaced in HTML), ``.`` for others.
        open: shown unfolded in HTML.
        brief: part of the first screen of the text; the others come with ``to_text()`` and ``-v``.
        wrap: a long last column is wrapped in text, not cut.
        anchors: names by which a link finds a row; none, or one per row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    title: str = ""
    note: str = ""
    align: str = ""
    code: str = ""
    open: bool = False
    brief: bool = True
    wrap: bool = False
    anchors: tuple[str, ...] = ()

    @property
    def sides(self) -> str:
        """``align``, with its default filled in."""
        return self.align or "<" + ">" * (len(self.header) - 1)

    @property
    def short(self) -> tuple[bool, ...]:
        """Per column: whether every cell is so short that it need not be broken."""
        columns = zip(self.header, *self.rows, strict=True)
        return tuple(all(len(str(cell)) <= _SHORT for cell in column) for column in columns)

    @property
    def heading(self) -> str:
        """Title and note in a line."""
        return f"{self.title} ({self.note})" if self.note else self.title


@dataclass(frozen=True)
class Fold:
    """Text to be shown as it is, e.g. a traceback or the end of a run's output."""

    title: str
    body: str


class Picture(Protocol):
    """A drawing other than a bar: it renders itself in every form and describes itself in words."""

    @property
    def title(self) -> str:
        """What it shows."""

    @property
    def words(self) -> str:
        """The picture in words: its text alternative."""

    @property
    def folds(self) -> bool:
        """Whether it is behind the first screen."""

    @property
    def glyphs(self) -> bool:
        """Whether its text is a drawing, and not its words."""

    def as_text(self) -> str:
        """For a terminal."""

    def as_html(self) -> str:
        """HTML, its texts escaped."""

    def draw(self, axes: Axes) -> None:
        """With matplotlib."""


@dataclass(frozen=True)
class Document:
    """Everything that a result says, in order.

    Attributes:
        name: what kind of result it is, e.g. ``"comparison"``.
        sentence: the answer, with why it is that.
        headline: the answer in at most twelve words; by default the first clauses of the sentence.
        figure: the one figure beside it, e.g. how long a step takes.
        doubts: what the answer may be wrong by.
        lines: what belongs to the answer: extent, spread, how it was found.
        warnings: what is doubtful; shown as one sentence.
        advice: what would help, where it needs no evidence, under ``advice_title``.
        bars: parts of a whole.
        findings: what to change, the most useful first, under ``findings_title``.
        more_findings: those that are behind the first screen.
        sections: documents within this one, shown below its tables.
        foot: where the figures come from.
        kind: the ``"type"`` under which a notebook keeps the numbers; empty where it keeps none.
        draw: makes the figure, where it is not one of bars and pictures; ``drawn`` says it in
            words.
    """

    name: str
    sentence: str
    headline: str = ""
    figure: str = ""
    doubts: tuple[Doubt, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    advice_title: str = "What would help"
    bars: tuple[Bar, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[Finding, ...] = ()
    findings_title: str = "What to do"
    more_findings: tuple[Finding, ...] = ()
    more_title: str = "Also found"
    tables: tuple[Table, ...] = ()
    folds: tuple[Fold, ...] = ()
    sections: tuple[Document, ...] = ()
    foot: tuple[str, ...] = ()
    kind: str = ""
    draw: Callable[[], Figure] | None = None
    drawn: str = ""

    @property
    def answer(self) -> str:
        """The headline."""
        return self.headline or _first_clauses(self.sentence)

    @property
    def more(self) -> str:
        """What the sentence adds to the headline; empty where that is all of it."""
        rest = self.sentence.removeprefix(self.answer.rstrip("."))
        if rest == self.sentence or rest[:1] not in (*_ENDS, ""):
            return self.sentence
        # a name of a file or of code stays as it is
        return re.sub(r"^[a-z](?=[a-z]*[ ,])", lambda at: at[0].upper(), rest[1:].lstrip())

    @property
    def folds_reasons(self) -> bool:
        """Whether there is more to look at than why."""
        return bool(self.findings or self.bars or self.pictures)


# Words of a headline; a number and its unit are one.
_WORDS = 12
_ENDS = ".:;"


def _first_clauses(sentence: str) -> str:
    """As many as make a headline; without any such, all of it."""
    ends = [at.start() for at in re.finditer(rf"[{_ENDS}](?= |$)", sentence)]
    heads = [sentence[:end] for end in ends if _is_headline(sentence[:end])]
    return sentence if _is_headline(sentence) or not heads else f"{heads[-1]}."


def _is_headline(words: str) -> bool:
    n = len(re.sub(r"(?<=[\d<>]) (?=\S)", "", words).split())
    return n <= _WORDS and not set("[]()") & set(words)


_Maker = TypeVar("_Maker", bound=Callable[[Any], "Document | None"])


@functools.singledispatch
def _made(obj: Any) -> Document | None:
    """The document of ``obj``; None for a type without one."""
    return None


def document_for(cls: type) -> Callable[[_Maker], _Maker]:
    """Register the function that makes the document of a result type; a decorator."""

    def register(make: _Maker) -> _Maker:
        _made.register(cls, make)
        return make

    return register


def registered(obj: Any) -> Document | None:
    """What ``obj`` says, where the module that tells is loaded; see :mod:`perfkit.show.lookup`."""
    return obj if isinstance(obj, Document) else _made(obj)
