"""How comparisons and sweeps of a workload look: text, HTML, and a figure with its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.experiment._declared import words
from perfkit.experiment.ab import ABResult
from perfkit.experiment.batch import LargestBatch
from perfkit.experiment.sweep import Sweep
from perfkit.experiment.tune import Tuning
from perfkit.report._text import fmt_bytes, fmt_count, fmt_ms, fmt_ratio, fmt_share, table, wrap

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
        warnings=found.warnings,
        foot=(
            f"Both in turn, {n} blocks of fresh processes, {found.duration_s:.0f} s, ended by: "
            f"{found.stopped}. Drift is in the interval.",
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
            interval = f"{row['ratio_low']:.2f} … {high:.2f}" if high < 100 else "too wide"
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
        f"{n} runs{before}, in interleaved rounds, {found.duration_s:.0f} s, ended by: "
        f"{found.stopped}. Ratio: time ÷ the fastest's; the intervals hold all together with "
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
    foot = [f"{n} runs of search, {found.duration_s:.0f} s in all."]
    if found.verified is not None:
        foot = [
            f"{n} runs of search; then {len(found.verified.blocks)} blocks of start against "
            f"proposal; {found.duration_s:.0f} s in all.",
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
    return fmt_count(round(per_s)) if per_s >= 100 else f"{per_s:.3g}"
