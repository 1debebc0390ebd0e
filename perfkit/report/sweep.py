"""How comparisons and sweeps of a workload look: text, HTML, and a figure with its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.experiment.ab import ABResult
from perfkit.report._text import fmt_bytes, fmt_count, fmt_ms, fmt_ratio, table, wrap

__all__ = ["html", "text"]


@dataclass(frozen=True)
class _View:
    """What is said; the two forms only set it."""

    name: str
    sentence: str
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    warnings: Sequence[str] = ()
    foot: Sequence[str] = ()


def text(obj: Any) -> str:
    """The plain-text form, at most 96 columns wide."""
    view = _view(obj)
    blocks = [wrap(view.sentence), *(wrap(line, indent="  ") for line in view.lines)]
    if view.rows:
        blocks.append(table(view.header, view.rows, align=_align(view)))
    blocks += [wrap(f"Note: {warning}", indent="  ", hang="    ") for warning in view.warnings]
    blocks += [wrap(line, indent="  ") for line in view.foot]
    return "\n".join(blocks)


def html(obj: Any) -> str:
    """The self-contained HTML form."""
    from perfkit.report._html import render

    view = _view(obj)
    return render("timing.html", view=view, lane="", align=_align(view))


def _view(obj: Any) -> _View:
    return _ab(obj)


def _align(view: _View) -> str:
    return "<" + ">" * (len(view.header) - 1)


def _ab(found: ABResult) -> _View:
    import numpy as np

    rows = []
    for which, name in enumerate(found.names):
        times = [(block.a_ms, block.b_ms)[which] for block in found.blocks]
        runs = found.runs[which::2]
        rates = [run.samples_per_s for run in runs if run.samples_per_s is not None]
        peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
        rows.append(
            (
                name,
                fmt_ms(float(np.median(times))),
                f"{fmt_ms(min(times))} … {fmt_ms(max(times))}",
                _rate(float(np.median(rates))) if rates else "–",
                fmt_bytes(max(peaks, default=None)),
            )
        )
    ratio = found.ratio
    interval = f"{_end(ratio.low)} … {_end(ratio.high)}"
    rows.append((f"ratio, per {ratio.per}", fmt_ratio(ratio.ratio), interval, "", ""))
    lines = [] if found.same is None else [found.same.sentence]
    n = len(found.blocks)
    return _View(
        name="comparison",
        sentence=found.sentence,
        lines=lines,
        header=("", "time per step", "range; 95 % interval", "samples/s", "peak"),
        rows=rows,
        warnings=found.warnings,
        foot=(
            f"Both in turn, {n} blocks of fresh processes, {found.duration_s:.0f} s, ended by: "
            f"{found.stopped}. Drift is in the interval.",
            found.provenance.sentence(),
        ),
    )


def _end(x: float) -> str:
    if not math.isfinite(x):
        return "∞"
    return fmt_ratio(x) if x > 0 else "0"


def _rate(per_s: float) -> str:
    return fmt_count(round(per_s)) if per_s >= 100 else f"{per_s:.3g}"
