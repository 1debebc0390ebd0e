"""One palette, one meaning: what a class of time, or a category of memory, looks like everywhere.

The table is ``palette.json`` beside this file: reports, pictures and the terminal read it here,
and the browser's code is bundled with it. Time has Okabe and Ito's colours ("Color Universal
Design", 2008); memory has hues of its own; arms, runs and formats, which are neither, have those
of ``series``. Each set is told apart with every kind of colour vision, and patterns and labels
stand beside the colours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_TABLE = json.loads((Path(__file__).parent / "palette.json").read_text(encoding="utf-8"))


class Look(NamedTuple):
    """How one of them is drawn.

    Attributes:
        fill: the colour, as CSS.
        ink: the colour of letters on it, with a contrast of at least 4.5:1.
        pattern: stripes, dots, cross, hollow, or empty; ``pk-…`` in the style sheet.
        letter: in a strip of letters.
    """

    fill: str
    ink: str
    pattern: str = ""
    letter: str = ""

    @property
    def hatch(self) -> str:
        """The pattern as matplotlib calls it."""
        return {"stripes": "///", "dots": "...", "cross": "xxx", "hollow": "//"}.get(
            self.pattern, ""
        )

    @property
    def on_white(self) -> str:
        """The colour in a figure, whose ground is white."""
        return "white" if self.fill == "transparent" else self.fill


#: What has no class of its own looks like these, one after the other.
SERIES: tuple[str, ...] = tuple(_TABLE["series"])

#: Classes of time and categories of memory.
LOOKS: dict[str, Look] = {
    name: Look(*said) for name, said in (*_TABLE["looks"].items(), *_TABLE["memory"].items())
}

#: The categories of memory among them.
MEMORY: tuple[str, ...] = tuple(_TABLE["memory"])

#: Of a curve: thin, so darker than an area.
CURVES: dict[str, str] = _TABLE["curves"]

#: What is the whole of all classes: a step, a run.
INK = "#1f2328"


def look_of(name: str) -> Look:
    """The look of a class; that of ``other`` for what is in no table."""
    return LOOKS.get(name, LOOKS["other"])
