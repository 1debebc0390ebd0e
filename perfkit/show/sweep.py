"""What comparisons, sweeps and tunings of a workload say, and their figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.base.words import (
    fmt_bytes,
    fmt_count,
    fmt_interval,
    fmt_ms,
    fmt_number,
    fmt_ratio,
    fmt_s,
    fmt_share,
    plural,
)
from perfkit.experiment.compare.ab import ABResult
from perfkit.experiment.compare.batch import LargestBatch
from perfkit.experiment.compare.sweep import Sweep
from perfkit.experiment.compare.tune import Tuning
from perfkit.experiment.settings._declared import words
from perfkit.show._direction import told
from perfkit.show.document import Document, Table, document_for
from perfkit.show.palette import SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@document_for(ABResult)
def _ab(found: ABResult) -> Document:
    import numpy as np

    rows = []
    counts = "malloc" in found.a
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
                *((_faults([run.faults_per_step for run in runs]),) if counts else ()),
            )
        )
    turned, ratio, low, high = told(found)
    way = "second ÷ first" if turned else "first ÷ second"
    rows.append(
        (
            f"{way}, per {found.per}",
            fmt_ratio(ratio),
            f"{_end(low)} … {_end(high)}",
            *[""] * (3 if counts else 2),
        )
    )
    n = len(found.blocks)
    return Document(
        name="comparison",
        sentence=found.sentence,
        lines=() if found.same is None else (found.same.sentence,),
        warnings=found.warnings,
        tables=(
            Table(
                (
                    *("", "time per step", "range; 95 % interval", "samples/s", "peak"),
                    *(("page faults",) if counts else ()),
                ),
                tuple(rows),
            ),
        ),
        kind="ab",
        draw=functools.partial(_figure, found, _draw_ab),
        drawn=_ab_words(found),
        foot=(
            f"Measured in turn, {plural(n, 'block')}, {fmt_s(found.duration_s)}; stopped by: "
            f"{found.stopped}.{' The interval allows for drift.' if math.isfinite(high) else ''}",
            found.provenance.sentence(),
        ),
    )


@document_for(Sweep)
def _sweep(found: Sweep) -> Document:
    names = list(found.grid)
    counts = "malloc" in names
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
                *((_faults([row["faults_per_step"]]),) if counts else ()),
                str(row["rounds"]),
            )
        )
    n = len(found.runs)
    before = f", {found.n_resumed} of them from the store" if found.n_resumed else ""
    return Document(
        name="sweep",
        sentence=found.sentence,
        warnings=(
            *found.warnings,
            *(f"skipped: {words(one.values)}: {one.reason}" for one in found.skipped),
        ),
        tables=(
            Table(
                (
                    *names,
                    f"per {found.per}",
                    "ratio",
                    "interval",
                    "samples/s",
                    "data wait",
                    "peak",
                    *(("page faults",) if counts else ()),
                    "rounds",
                ),
                tuple(rows),
                open=True,
            ),
        ),
        foot=(
            f"{n} runs{before}, in interleaved rounds, {fmt_s(found.duration_s)}; stopped by: "
            f"{found.stopped}. Ratio: time ÷ the fastest's; the intervals hold jointly at "
            "95 %.",
            found.provenance.sentence(),
        ),
        kind="sweep",
        draw=functools.partial(_figure, found, _draw_sweep),
        drawn=_sweep_words(found),
    )


def _faults(found: Sequence[float | None]) -> str:
    """The median of what runs had in a step."""
    known = sorted(one for one in found if one is not None)
    return fmt_count(round(known[len(known) // 2])) if known else "–"


@document_for(LargestBatch)
def _batch(found: LargestBatch) -> Document:
    rows = [
        (
            str(run.values[found.setting]),
            "fits" if run.ok else run.state,
            fmt_bytes(run.peak_bytes),
            "–" if run.samples_per_s is None else _rate(run.samples_per_s),
        )
        for run in found.runs
    ]
    return Document(
        name="largest batch",
        sentence=found.sentence,
        tables=(Table((found.setting, "", "peak", "samples/s"), tuple(rows), open=True),),
        foot=(found.runs[-1].provenance.sentence(),) if found.runs else (),
    )


@document_for(Tuning)
def _tuning(found: Tuning) -> Document:
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
    return Document(
        name="tuning",
        sentence=found.sentence,
        warnings=found.warnings,
        tables=(Table(("setting", "start", "proposed"), tuple(rows), open=True),),
        foot=tuple(foot),
        kind="tuning",
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

_MARKERS = "os^Dv*"
_MOST_LINES = 6


def _figure(found: Any, draw: Callable[[Any, Any], None]) -> Figure:
    """Made with matplotlib's objects, so that the user's own figures and backend stay alone."""
    from perfkit.show._page_figure import PageFigure

    picture = PageFigure(figsize=(8, 3.6), dpi=110)
    axes = picture.subplots()
    draw(axes, found)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return picture


def _ab_words(found: ABResult) -> str:
    turned = told(found).turned
    first, second = found.names[:: -1 if turned else 1]
    ratios = [(block.a_ms / block.b_ms) ** (-1 if turned else 1) for block in found.blocks]
    return (
        f"Ratio of the times of {first!r} and {second!r} in {len(ratios)} "
        f"blocks, from {fmt_ratio(min(ratios))} to {fmt_ratio(max(ratios))}. {found.sentence}"
    )


def _sweep_words(found: Sweep) -> str:
    said = []
    for row in found.table():
        if row["time_ms"] is not None:
            here = {name: row[name] for name in found.grid}
            said.append(f"{words(here)}: {fmt_ms(row['time_ms'])}")
    listed = "; ".join(said) or "nothing was measured"
    return f"Time per {found.per} of {len(said)} points. {listed}. {found.sentence}"


def _draw_ab(axes: Any, found: ABResult) -> None:
    """The ratio of each block, and the interval."""
    numbers = range(1, len(found.blocks) + 1)
    turned, _, low, high = told(found)
    ratios = [(block.a_ms / block.b_ms) ** (-1 if turned else 1) for block in found.blocks]
    axes.axhline(1.0, color="#000000", lw=0.8, ls=":", label="no difference")
    if found.per == "step" and math.isfinite(high):
        axes.axhspan(low, high, color=SERIES[0], alpha=0.15, label="95 % interval")
    axes.plot(numbers, ratios, "o", color=SERIES[0], ms=4, label="a block")
    axes.set(xlabel="block", ylabel="ratio of times per step")
    first, second = found.names[:: -1 if turned else 1]
    axes.set_title(f"{first} ÷ {second}", fontsize="medium")
    axes.legend(fontsize="small", frameon=False)


def _draw_sweep(axes: Any, found: Sweep) -> None:
    """Time over the setting with most numbers, a line for each choice of the others."""
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
            color=SERIES[i % len(SERIES)],
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
