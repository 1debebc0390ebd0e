"""Make text from traces and user code safe to show: on a canvas, in XML, in a terminal."""

from __future__ import annotations

import re

# Characters that XML forbids, that control a terminal, or that reorder or hide the text around
# them: C0 and C1 controls, lone surrogates, non-characters, and invisible marks that change the
# writing direction.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff"
    "\ud800-\udfff]"
)


def printable(text: str, longest: int | None = None, *, lines: bool = False) -> str:
    """Replace every unprintable character of ``text`` with ``�``.

    Args:
        longest: cut to this many characters, the last an ellipsis.
        lines: keep line ends and tabs.
    """
    clean = _UNPRINTABLE.sub(_replace_but_lines if lines else "\N{REPLACEMENT CHARACTER}", text)
    if longest is not None and len(clean) > longest:
        return clean[: longest - 1] + "…"
    return clean


def _replace_but_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else "\N{REPLACEMENT CHARACTER}"
