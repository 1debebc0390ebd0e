"""How the answer to "same result?" looks, as text and as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfkit.experiment.same import Checked, SameResult
from perfkit.show._text import one_sentence, table, wrap
from perfkit.words import fmt_count, fmt_deviation, fmt_share

__all__ = ["html", "text"]

_ALIGN = "<>>>"


@dataclass(frozen=True)
class _View:
    """What is said; the two forms only set it."""

    name: str
    sentence: str
    lines: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    warnings: Sequence[str]
    foot: Sequence[str]
    folded: bool = False


def text(obj: SameResult) -> str:
    """The plain-text form, at most 96 columns wide."""
    view = _view(obj)
    blocks = [wrap(view.sentence), *(wrap(line, indent="  ") for line in view.lines)]
    if view.rows:
        blocks.append(table(view.header, view.rows, align=_ALIGN))
    if view.warnings:
        blocks.append(wrap(f"Note: {one_sentence(view.warnings)}", indent="  ", hang="    "))
    blocks += [wrap(line, indent="  ") for line in view.foot]
    return "\n".join(blocks)


def html(obj: SameResult) -> str:
    """The self-contained HTML form."""
    from perfkit.show._html import render

    return render("timing.html", view=_view(obj), lane="", align=_ALIGN)


def _view(same: SameResult) -> _View:
    checks = [*same.losses, *same.gradients]
    if same.first is not None and same.first not in checks:
        checks.insert(0, same.first)
    return _View(
        name="same result",
        sentence=same.sentence,
        lines=[_own_noise(same)] if checks else [],
        header=("compared", "step", "differs by", "rounding explains") if checks else (),
        rows=[_row(c) for c in sorted(checks, key=lambda c: c.step)],
        warnings=same.warnings,
        foot=[f"Allowed: {same.rule}."],
    )


def _own_noise(same: SameResult) -> str:
    if same.own_noise is None:
        return "Neither ran twice: whether they agree with themselves is not known."
    if same.own_noise == 0:
        return "Run twice, each agrees with itself to the last digit."
    return f"Run twice, each agrees with itself to {fmt_share(same.own_noise)} of what is allowed."


def _row(c: Checked) -> tuple[str, str, str, str]:
    return c.what, fmt_count(c.step + 1), _percent(c.difference), _percent(c.tolerance)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "∞"
    return fmt_deviation(share)
