"""Comparisons and sweeps of a workload as text, HTML, and a figure with its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.experiment._declared import words
from perfkit.experiment.ab import ABResult
from perfkit.experiment.batch import LargestBatch
from perfkit.experiment.sweep import Sweep
from perfkit.experiment.tune import Tuning
from perfkit.show._text import one_sentence, table, wrap
from perfkit.words import fmt_bytes, fmt_interval, fmt_ms, fmt_number, fmt_ratio, fmt_s, fmt_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["alt_text", "figure", "html", "text"]


@dataclass(frozen=True)
class _View:
    """What is said, in either form."""

    name: str
    sentence: str
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    warnings: Sequence[str] = ()
    foot: Sequence[str] = ()
    #: whether the HTML form hides the table until it is asked for
    folded: bool = False


def text(obj: Any) -> str:
    """The plain-text form, at most 96 columns wide."""
    view = _view(obj)
    blocks = [wrap(view.sentence), *(wrap(line, indent="  ") for line in view.lines)]
    if view.rows:
        blocks.append(table(view.header, view.rows, align=_align(view)))
    if view.warnings:
        blocks.append(wrap(f"Note: {one_sentence(view.warnings)}", indent="  ", hang="    "))
    blocks += [wrap(line, indent="  ") for line in view.foot]
    return "\n".join(blocks)


def html(obj: Any) -> str:
    """The self-contained HTML form."""
    from perfkit.show._html import render

    view = _view(obj)
    return render("timing.html", view=view, lane="", align=_align(view))


def _view(obj: Any) -> _View:
    if isinstance(obj, Sweep):
        return _sweep(obj)
    if isinstance(obj, LargestBatch):
        return _batch(obj)
    if isinstance(obj, Tuning):
        return _tuning(obj)
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
        warnings=("; ".join(found.warnings),) if found.warnings else (),
        folded=True,
        foot=(
            f"Measured in turn, {n} blocks of fresh processes, {fmt_s(found.duration_s)}; stopped "
            f"by: {found.stopped}. The interval allows for drift.",
            found.provenance.sentence(),
        ),
    )


def _sweep(found: Sweep) -> _View:
    names = list(found.grid)
    rows = []
    for row in found.table():
        if row["state"] == "skipped":
            continue
        interval = "–"
        if row["ratio"] is not None:
            high = math.inf if row["ratio_high"] is None else row["ratio_high"]
            interval = fmt_interval(row["ratio_low"], high) if high < 100 else "too wide"
            if row["ratio_low"] == row["ratio_high"] == 1:
                interval = "fastest"
        measured = row["state"] == "measured"
        rows.append(
            (
                *(_value(row[name]) for name in names),
                fmt_ms(row["time_ms"]) if measured else row["state"],
                fmt_ratio(row["ratio"]),
                interval,
                "–" if row["samples_per_s"] is None else _rate(row["samples_per_s"]),
                fmt_share(row["wait_share"]),
                fmt_bytes(row["peak_bytes"]),
                str(row["rounds"]),
            )
        )
    n = len(found.runs)
    before = f", {found.n_resumed} of them from the store" if found.n_resumed else ""
    foot = [
        f"{n} runs{before}, in interleaved rounds, {fmt_s(found.duration_s)}; stopped by: "
        f"{found.stopped}. Ratio: time ÷ the fastest's; the intervals hold jointly at "
        "95 %.",
        found.provenance.sentence(),
    ]
    return _View(
        name="sweep",
        sentence=found.sentence,
        header=(
            *names,
            f"per {found.per}",
            "ratio",
            "interval",
            "samples/s",
            "data wait",
            "peak",
            "rounds",
        ),
        rows=rows,
        warnings=[
            *found.warnings,
            *(f"skipped: {words(one.values)}: {one.reason}" for one in found.skipped),
        ],
        foot=foot,
    )


def _batch(found: LargestBatch) -> _View:
    rows = [
        (
            str(run.values[found.setting]),
            "fits" if run.ok else run.state,
            fmt_bytes(run.peak_bytes),
            "–" if run.samples_per_s is None else _rate(run.samples_per_s),
        )
        for run in found.runs
    ]
    return _View(
        name="largest batch",
        sentence=found.sentence,
        header=(found.setting, "", "peak", "samples/s"),
        rows=rows,
        foot=[found.runs[-1].provenance.sentence()] if found.runs else [],
    )


def _tuning(found: Tuning) -> _View:
    rows = [
        (name, _value(value), _value(found.proposed[name])) for name, value in found.start.items()
    ]
    n = sum(len(one.runs) for one in found.sweeps)
    foot = [f"{n} runs of search, {fmt_s(found.duration_s)} in all."]
    if found.verified is not None:
        foot = [
            f"{n} runs of search; then {len(found.verified.blocks)} blocks of start against "
            f"proposal; {fmt_s(found.duration_s)} in all.",
            found.verified.provenance.sentence(),
        ]
    return _View(
        name="tuning",
        sentence=found.sentence,
        header=("setting", "start", "proposed"),
        rows=rows,
        warnings=found.warnings,
        foot=foot,
    )


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _end(x: float) -> str:
    if not math.isfinite(x):
        return "∞"
    return fmt_ratio(x) if x > 0 else "0"


def _rate(per_s: float) -> str:
    return fmt_number(per_s)


# --- the figure --------------------------------------------------------------------------------

# Okabe and Ito's palette, in an order that also differs in lightness; markers differ, too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = "os^Dv*"
_MOST_LINES = 6


def figure(obj: Sweep | ABResult) -> Figure:
    """A sweep: time over the setting with most numbers, a line for each choice of the others.

    A comparison: the ratio of each block, and the interval. :func:`alt_text` says it in words.
    Made with matplotlib's objects, so that the user's own figures and backend stay alone.
    """
    from matplotlib.figure import Figure as MatplotlibFigure

    picture = MatplotlibFigure(figsize=(8, 3.6), dpi=110, layout="constrained")
    axes = picture.subplots()
    if isinstance(obj, ABResult):
        _draw_ab(axes, obj)
    else:
        _draw_sweep(axes, obj)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return picture


def alt_text(obj: Sweep | ABResult) -> str:
    """The figure in words."""
    if isinstance(obj, ABResult):
        ratios = [block.a_ms / block.b_ms for block in obj.blocks]
        return (
            f"Ratio of the times of {obj.names[0]!r} and {obj.names[1]!r} in {len(ratios)} "
            f"blocks, from {fmt_ratio(min(ratios))} to {fmt_ratio(max(ratios))}. {obj.sentence}"
        )
    said = []
    for row in obj.table():
        if row["time_ms"] is not None:
            here = {name: row[name] for name in obj.grid}
            said.append(f"{words(here)}: {fmt_ms(row['time_ms'])}")
    listed = "; ".join(said) or "nothing was measured"
    return f"Time per {obj.per} of {len(said)} points. {listed}. {obj.sentence}"


def _draw_ab(axes: Any, found: ABResult) -> None:
    numbers = range(1, len(found.blocks) + 1)
    ratios = [block.a_ms / block.b_ms for block in found.blocks]
    axes.axhline(1.0, color="#000000", lw=0.8, ls=":", label="no difference")
    if found.ratio.per == "step":
        low, high = found.ratio.low, found.ratio.high
        if math.isfinite(high):
            axes.axhspan(low, high, color=_COLOURS[0], alpha=0.15, label="95 % interval")
    axes.plot(numbers, ratios, "o", color=_COLOURS[0], ms=4, label="a block")
    axes.set(xlabel="block", ylabel="ratio of times per step")
    axes.set_title(f"{found.names[0]} ÷ {found.names[1]}", fontsize="medium")
    axes.legend(fontsize="small", frameon=False)


def _draw_sweep(axes: Any, found: Sweep) -> None:
    rows = [row for row in found.table() if row["time_ms"] is not None]
    axes.set_ylabel(f"ms per {found.per}")
    if not rows:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
        return
    across = _across(found)
    others = [name for name in found.grid if name != across]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(words({name: row[name] for name in others}), []).append(row)
    offered = list(found.grid[across])
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in offered):
        offered.sort()
    for i, (label, line) in enumerate(list(lines.items())[:_MOST_LINES]):
        line.sort(key=lambda row: offered.index(row[across]))
        axes.plot(
            [offered.index(row[across]) for row in line],
            [row["time_ms"] for row in line],
            f"{_MARKERS[i % len(_MARKERS)]}-",
            color=_COLOURS[i % len(_COLOURS)],
            lw=1.2,
            ms=5,
            label=label if others else None,
        )
    axes.set_xticks(range(len(offered)), [_value(v) for v in offered])
    axes.set_xlabel(across)
    axes.set_ylim(bottom=0)
    more = len(lines) - _MOST_LINES
    axes.set_title(
        f"Median over rounds{f'; {more} more lines are in the table' if more > 0 else ''}",
        fontsize="medium",
    )
    if others:
        axes.legend(fontsize="small", frameon=False)


def _across(found: Sweep) -> str:
    """The setting that goes along the axis: with the most values, numbers before others."""

    def rank(name: str) -> tuple[bool, int]:
        values = found.grid[name]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        return numbers, len(values)

    return max(found.grid, key=rank)
