"""A breakdown as one horizontal bar: HTML for notebooks, glyphs for plain text.

Classes are told apart by order, label and pattern, not by colour alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfkit.base.words import fmt_share
from perfkit.show._ink import columns, in_fill
from perfkit.show.document import Segment
from perfkit.show.palette import LOOKS, SERIES, Look
from perfkit.show.plain_text import clip, table

_GLYPHS = "█▓▒░#=+·"

# Below this share the label does not fit into its segment (it still stands in the legend).
_LABEL_FROM_SHARE = 0.12


def looks_of(segments: Sequence[Segment]) -> list[Look]:
    """Each segment's look: its own, its class's, or the next colour."""
    found = [s.look or s.label for s in segments]
    return [
        LOOKS.get(name) or Look(SERIES[i % len(SERIES)], "#ffffff") for i, name in enumerate(found)
    ]


def _shares(segments: Sequence[Segment]) -> list[float]:
    total = sum(max(s.value, 0.0) for s in segments)
    return [max(s.value, 0.0) / total if total else 0.0 for s in segments]


def describe(title: str, segments: Sequence[Segment]) -> str:
    """The bar in words, largest share first: the text alternative of the picture."""
    pairs = sorted(zip(_shares(segments), segments, strict=True), key=lambda p: -p[0])
    parts = [f"{s.label} {s.shown} ({fmt_share(share)})" for share, s in pairs if s.value > 0]
    return f"{title}: {', '.join(parts) or 'nothing'}"


def bar(title: str, segments: Sequence[Segment]) -> str:
    """The bar with its legend as HTML (to be marked safe by the caller's template).

    Args:
        title: what the bar shows, e.g. ``"host, median step 12.3 ms"``.
        segments: the classes, in the order of the picture.
    """
    from perfkit.show._html import render

    parts = []
    rows = zip(_shares(segments), segments, looks_of(segments), strict=True)
    for share, s, look in rows:
        parts.append(
            {
                "label": s.label,
                "shown": s.shown,
                "share": share,
                "percent": f"{100 * share:.3f}",
                "fits": share >= _LABEL_FROM_SHARE,
                "colour": look.fill,
                "ink": look.ink,
                "pattern": look.pattern or "solid",
            }
        )
    return render("_bar.html", title=title, parts=parts, alternative=describe(title, segments))


def line_bar(title: str, segments: Sequence[Segment], *, width: int = 60) -> str:
    """The bar in glyphs with its legend in the lines below, without what there is nothing of."""
    drawn = f"  |{_blocks(segments, width)}|"
    key = [
        f"{glyph} {s.label} {fmt_share(share)}"
        for glyph, s, share in zip(_glyphs(segments), segments, _shares(segments), strict=True)
        if share
    ]
    lines = [""]
    for one in key:
        if len(lines[-1]) + 2 + len(one) > columns.get():
            lines.append("")
        lines[-1] += f"  {one}"
    head = f"{_inked(drawn, segments)} {clip(title, columns.get() - len(drawn) - 1)}".rstrip()
    return "\n".join([head, _inked("\n".join(lines), segments, "(?<=  )", "(?= )")])


def _glyphs(segments: Sequence[Segment]) -> list[str]:
    return [_GLYPHS[i % len(_GLYPHS)] for i in range(len(segments))]


def _inked(text: str, segments: Sequence[Segment], before: str = "", after: str = "") -> str:
    """Glyphs in the colours of their classes; those alone that stand between the two patterns."""
    looks = dict(zip(_glyphs(segments), looks_of(segments), strict=True))
    runs = rf"{before}([{re.escape(_GLYPHS)}])\1*{after}"
    return re.sub(runs, lambda run: in_fill(run[0], looks[run[1]].fill), text, flags=re.MULTILINE)


def _blocks(segments: Sequence[Segment], width: int) -> str:
    """The bar without its frame, largest remainder rounding: widths add up."""
    shares = _shares(segments)
    exact = [share * width for share in shares]
    cells = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])
    for i in by_remainder[: width - sum(cells) if any(shares) else 0]:
        cells[i] += 1
    drawn = "".join(glyph * n for glyph, n in zip(_glyphs(segments), cells, strict=True))
    return f"{drawn:<{width}}"


def text_bar(
    title: str, segments: Sequence[Segment], *, width: int = 60, quantity: str = "time"
) -> str:
    """The bar in glyphs with a legend table."""
    rows = [
        (glyph, s.label, s.shown, fmt_share(share))
        for glyph, s, share in zip(_glyphs(segments), segments, _shares(segments), strict=True)
    ]
    legend = table(("", title, quantity, "share"), rows, align="<<>>")
    drawn = _inked(f"  |{_blocks(segments, width)}|", segments)
    return f"{drawn}\n{_inked(legend, segments, '^  ', '(?=  )')}"
