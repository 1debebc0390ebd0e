"""How long a lesson takes to read; a test checks it against the header of each lesson.

Prose counts at 200 words a minute and code at 3 s a line. What is folded does not count: optional
sections (:mod:`perfkit.course.kit.folding`), ``<details>``, and cells whose code is hidden. The
alternative text of a picture does not count either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from perfkit.course.kit.folding import optional_sections

WORDS_PER_MINUTE = 200
SECONDS_PER_LINE = 3

_DETAILS = re.compile(r"<details\b.*?</details\s*>", re.DOTALL)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_TAG = re.compile(r"<[^>\n]+>")
_PICTURE = re.compile(r"!\[[^\]\n]*\]\([^)\n]*\)")


@dataclass(frozen=True)
class Reading:
    """The amount to read in a lesson.

    Attributes:
        words: words of prose.
        lines: non-empty lines of code, in cells and fenced blocks.
    """

    words: int
    lines: int

    @property
    def minutes(self) -> float:
        """The reading time in minutes."""
        return self.words / WORDS_PER_MINUTE + self.lines * SECONDS_PER_LINE / 60


def reading(notebook: Any) -> Reading:
    """The words and lines of a notebook's unfolded parts."""
    optional = {number for section in optional_sections(notebook) for number in section}
    words = lines = 0
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if number in optional:
            continue
        if cell["cell_type"] == "markdown":
            open_text = _PICTURE.sub(" ", _DETAILS.sub(" ", source))
            fenced = _FENCED.findall(open_text)
            lines += sum(_lines(block) - 2 for block in fenced)
            words += len(_TAG.sub(" ", _FENCED.sub(" ", open_text)).split())
        elif not cell["metadata"].get("jupyter", {}).get("source_hidden"):
            lines += _lines(source)
    return Reading(words, lines)


def _lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())
