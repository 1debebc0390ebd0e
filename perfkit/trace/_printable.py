"""Names from a trace as text that can stand anywhere: on a canvas, in XML, in a terminal."""

from __future__ import annotations

import re

# What XML forbids, and what would reorder or hide the text around it: C0 and C1 controls, lone
# surrogates, non-characters, and the marks that change the direction of writing.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)


def printable(name: str, longest: int | None = None) -> str:
    """``name`` on one line, with ``�`` for what cannot be printed.

    Args:
        name: any text.
        longest: cut to this many characters, the last one an ellipsis.
    """
    clean = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", name)
    if longest is not None and len(clean) > longest:
        return clean[: longest - 1] + "…"
    return clean
