"""How a comparison of two stores of runs looks, as text and as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfkit.experiment._declared import words
from perfkit.experiment.compare_runs import Matched, RunsComparison
from perfkit.show._text import clip, one_sentence, table, wrap
from perfkit.words import fmt_chosen_share, fmt_interval, fmt_ms, fmt_ratio

__all__ = ["html", "text"]

_ALIGN = "<>>>><"
_HEADER = ("configuration", "before", "after", "time ×", "interval", "verdict")


@dataclass(frozen=True)
class _View:
    """What is said; the forms only set it."""

    name: str
    sentence: str
    lines: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    warnings: Sequence[str]
    foot: Sequence[str]
    align: str = _ALIGN
    folded: bool = False


def text(obj: RunsComparison) -> str:
    """The plain-text form, at most 96 columns wide."""
    view = _view(obj)
    rows = [(clip(row[0], 34), *row[1:]) for row in view.rows]
    blocks = [wrap(view.sentence), table(view.header, rows, align=_ALIGN)]
    blocks += [wrap(line, indent="  ", hang="    ") for line in view.lines]
    if view.warnings:
        blocks.append(wrap(f"Note: {one_sentence(view.warnings)}", indent="  ", hang="    "))
    blocks += [wrap(line, indent="  ") for line in view.foot]
    return "\n".join(blocks)


def html(obj: RunsComparison) -> str:
    """The self-contained HTML form."""
    from perfkit.show._html import render

    return render("timing.html", view=_view(obj), lane="", align=_ALIGN)


def _view(found: RunsComparison) -> _View:
    lines = [
        f"{one.verdict}: {words(one.values)}: {one.message}" for one in found.matched if one.message
    ]
    lonely = ((found.names[0], found.only_before), (found.names[1], found.only_after))
    for name, several in lonely:
        lines += [f"only in {name}: {words(values)}" for values in several]
    per_sample = any(one.per == "sample" for one in found.matched)
    return _View(
        name="runs compared",
        sentence=found.sentence,
        lines=lines,
        header=_HEADER,
        rows=[_row(one) for one in found.matched],
        warnings=found.warnings,
        foot=(
            f"Time per step{' (per sample where batches differ)' if per_sample else ''}, after ÷ "
            "before; a regression is an interval that is beyond "
            f"{fmt_chosen_share(found.margin)} as "
            f"a whole; the intervals hold jointly at {fmt_chosen_share(found.confidence)}.",
            f"before: {found.names[0]}, {found.provenance[0]}",
            f"after: {found.names[1]}, {found.provenance[1]}",
        ),
    )


def _row(one: Matched) -> tuple[str, ...]:
    interval = "–"
    if one.low is not None and one.high is not None:
        interval = fmt_interval(one.low, one.high if one.high < 1e3 else math.inf)
    return (
        words(one.values),
        f"{fmt_ms(one.before_ms)} ({one.n_before})",
        f"{fmt_ms(one.after_ms)} ({one.n_after})",
        fmt_ratio(one.ratio),
        interval,
        one.verdict,
    )
