"""Text from traces and user code, fit to stand anywhere: on a canvas, in XML, in a terminal."""

from __future__ import annotations

import re

# What XML forbids, what a terminal would obey, and what would reorder or hide the text around
# it: C0 and C1 controls, lone surrogates, non-characters, and the invisible marks that change
# the direction of writing.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)


def printable(text: str, longest: int | None = None, *, lines: bool = False) -> str:
    """``text`` with ``�`` for every character that cannot be printed.

    Args:
        text: any text.
        longest: cut to this many characters, the last one an ellipsis.
        lines: leave ends of lines and tabs as they are.
    """
    clean = _UNPRINTABLE.sub(_replace_but_lines if lines else "\N{REPLACEMENT CHARACTER}", text)
    if longest is not None and len(clean) > longest:
        return clean[: longest - 1] + "…"
    return clean


def _replace_but_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else "\N{REPLACEMENT CHARACTER}"
