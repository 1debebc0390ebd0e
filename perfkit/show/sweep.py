"""What comparisons, sweeps and tunings of a workload say, and their figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
from perfkit.show._direction import blocks, headline, told
from perfkit.show._plot import Line, Plot, Point
from perfkit.show.document import Document, Doubt, Table, document_for
from perfkit.show.palette import SERIES
from perfkit.show.plain_text import clip

_MOST_LINES = 6
_NAMED = 4


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
        headline=headline(found.names, found),
        figure=f"{rows[0][1]} → {rows[1][1]} a step",
        doubts=(*_another_result(found), *map(Doubt.of, found.warnings)),
        lines=() if found.same is None else (found.same.sentence,),
        pictures=blocks(found, found.names, [b.a_ms / b.b_ms for b in found.blocks], found.per),
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
        headline=_fastest(found),
        figure=_best_time(found),
        doubts=(*_as_fast(found), *map(Doubt.of, found.warnings)),
        pictures=_curve(found),
        warnings=(*(f"skipped: {words(one.values)}: {one.reason}" for one in found.skipped),),
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
        headline=_largest(found),
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
        headline=_recommended(found),
        figure=_verified(found),
        doubts=tuple(map(Doubt.of, found.warnings)),
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


# --- headlines ---------------------------------------------------------------------------------


def _another_result(found: ABResult) -> tuple[Doubt, ...]:
    same = found.same
    if same is None or same.same:
        return ()
    known = (
        "not the same result" if same.same is False else "whether the result is the same: unknown"
    )
    return (Doubt(known, same.sentence),)


def _fastest(found: Sweep) -> str:
    best = found.best
    n = plural(len(found.points), "point")
    return f"None of {n} was measured." if best is None else f"Fastest: {_named(best.values)}."


def _as_fast(found: Sweep) -> tuple[Doubt, ...]:
    """Points that are not shown to be slower than the fastest."""
    others = [found.ratio(p) for p in found.points if p is not found.best and not p.dropped]
    n = sum(ratio is not None and ratio.low <= 1 for ratio in others)
    return (Doubt(f"{plural(n, 'other point')} may be as fast", found.sentence),) if n else ()


def _best_time(found: Sweep) -> str:
    best = found.best
    row = next((r for r in found.table() if best and r["ratio"] == r["ratio_high"] == 1), None)
    return "" if row is None else f"{fmt_ms(row['time_ms'])} a {found.per}"


def _named(values: Mapping[str, Any]) -> str:
    """Values in words, as many as a headline has room for."""
    told = dict(list(values.items())[:_NAMED])
    return clip(words(told), 60) + (" …" if len(values) > len(told) else "")


def _recommended(found: Tuning) -> str:
    if found.recommended:
        changed = {n: v for n, v in found.proposed.items() if found.start.get(n) != v}
        return f"Recommended: {_named(changed or found.proposed)}."
    return "Stay with what you started from."


def _verified(found: Tuning) -> str:
    if found.verified is None:
        return ""
    ratio = found.verified.ratio
    return f"{fmt_ratio(ratio)} as fast" if ratio >= 1 else f"{fmt_ratio(1 / ratio)} slower"


def _largest(found: LargestBatch) -> str:
    if found.batch is None:
        return "No batch fits."
    return f"Largest {found.setting} that fits: {fmt_count(found.batch)}."


# --- the picture -------------------------------------------------------------------------------


def _curve(found: Sweep) -> tuple[Plot, ...]:
    """Time over the setting with most numbers, a line for each choice of the others; its knee."""
    rows = [row for row in found.table() if row["time_ms"] is not None]
    if not rows:
        return ()
    across = _across(found)
    offered = list(found.grid[across])
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in offered)
    if is_number:
        offered.sort()
    others = [name for name in found.grid if name != across]
    lines: dict[str, list[Point]] = {}
    for row in sorted(rows, key=lambda row: offered.index(row[across])):
        label = words({name: row[name] for name in others}) if others else ""
        best_ms = row["time_ms"] / row["ratio"] if row["ratio"] else None
        ends = row["ratio_low"], row["ratio_high"]
        known = best_ms is not None and None not in ends
        low, high = (best_ms * end for end in ends) if known else (None, None)
        told = f"{words({name: row[name] for name in found.grid})}: {fmt_ms(row['time_ms'])}"
        point = Point(offered.index(row[across]), row["time_ms"], low, high, told)
        lines.setdefault(label, []).append(point)
    listed = "; ".join(p.label for points in lines.values() for p in points)
    more = len(lines) - _MOST_LINES
    knee = found.knee(across) if is_number and len(offered) > 2 else None
    return (
        Plot(
            title=f"Time per {found.per}"
            + (f"; {more} more lines are in the table" if more > 0 else ""),
            words=listed + ("" if knee is None else f". {knee.sentence}"),
            lines=tuple(
                Line(label, tuple(points), SERIES[i % len(SERIES)])
                for i, (label, points) in enumerate(list(lines.items())[:_MOST_LINES])
            ),
            x_label=across,
            y_label=f"time per {found.per}, with its interval against the fastest",
            x_names=tuple(map(_value, offered)),
            places=()
            if knee is None or knee.value == offered[-1]  # what lies beyond it was not tried
            else ((offered.index(knee.value), "no gain beyond"),),
            show=fmt_ms,
        ),
    )


def _across(found: Sweep) -> str:
    """The setting that goes along the axis: with the most values, numbers before others."""

    def rank(name: str) -> tuple[bool, int]:
        values = found.grid[name]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        return numbers, len(values)

    return max(found.grid, key=rank)
