"""What a command prints fits where it goes: in a terminal colour (the verdict, bars, yes and no,
the names in a help text) and lines as long as it is wide. Elsewhere text stays plain.

Text is laid out first and inked last: what colours it has no width.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO

#: Widest line of a plain-text report, in columns; where it is shown there may be fewer.
WIDTH = 96
columns: ContextVar[int] = ContextVar("columns", default=WIDTH)
_inked: ContextVar[bool] = ContextVar("inked", default=False)
how_to_see_more: ContextVar[str] = ContextVar("more", default="-v, or print(result.to_text())")
# Tables and pictures need so many columns.
_LEAST = 60
_SIGNS = {"yes": "32", "no": "31"}
# Headings, options and commands of argparse's help.
_OF_HELP = re.compile(
    r"^usage:|^(?:commands|options|positional arguments):$"
    r"|(?<=^  )--?[\w-]+(?:, --?[\w-]+)*|(?<=^    )[a-z][\w-]*(?= |$)",
    re.MULTILINE,
)


@contextmanager
def printed_on(stream: IO[str] | None, *, more: str = "-v") -> Iterator[None]:
    """Within it, text fits ``stream``, and is inked unless somebody has set ``NO_COLOR``.

    Args:
        more: what to type to see all of a result.
    """
    try:
        is_terminal = stream is not None and stream.isatty()
    except ValueError:  # closed
        is_terminal = False
    on = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    wide = shutil.get_terminal_size((WIDTH, 24)).columns if is_terminal else WIDTH
    inked, width = _inked.set(on), columns.set(min(max(wide, _LEAST), WIDTH))
    said = how_to_see_more.set(more)
    try:
        yield
    finally:
        _inked.reset(inked)
        columns.reset(width)
        how_to_see_more.reset(said)


def bold(text: str) -> str:
    """A verdict."""
    return _ink(text, "1")


def in_fill(text: str, fill: str) -> str:
    """Glyphs in the colour of their class, the nearest of 256."""
    return text if fill == "transparent" else _ink(text, f"38;5;{_nearest(fill)}")


def sign(word: str) -> str:
    """A yes or a no."""
    return _ink(word, _SIGNS[word])


def help_text(text: str) -> str:
    """Argparse's help; from Python 3.14 on it has colour of its own."""
    if "\x1b" in text:
        return text
    return _OF_HELP.sub(lambda at: bold(at[0]) if at[0][-1] == ":" else _ink(at[0], "36"), text)


def _ink(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text and _inked.get() else text


def _nearest(fill: str) -> int:
    steps = (0, 95, 135, 175, 215, 255)  # of the cube of 6 × 6 × 6 colours, which begins at 16
    parts = (int(fill[i : i + 2], 16) for i in (1, 3, 5))
    r, g, b = (min(range(6), key=lambda k: abs(steps[k] - part)) for part in parts)
    return 16 + 36 * r + 6 * g + b
