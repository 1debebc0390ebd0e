"""What summaries, comparisons and watched runs say."""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING

from perfkit.advice.diagnose import first_clause
from perfkit.base.printable import printable
from perfkit.base.words import (
    ABSENT,
    fmt_bytes,
    fmt_change,
    fmt_chosen_share,
    fmt_count,
    fmt_interval,
    fmt_ms,
    fmt_ms_interval,
    fmt_number,
    fmt_ratio,
    fmt_s,
    fmt_share,
    plural,
    time_unit,
)
from perfkit.measure.compare import Comparison
from perfkit.measure.summary import Summary
from perfkit.measure.verdict import MemoryUse, RunSummary
from perfkit.show import run_picture
from perfkit.show._direction import told
from perfkit.show.document import Bar, Document, Segment, Table, document_for
from perfkit.show.palette import INK, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INTERVAL = re.compile(r" \[[^\]]*\]")
_WHICH = {False: "first ÷ second", True: "second ÷ first"}
_IN_MS = {"µs": 1e-3, "us": 1e-3, "ms": 1.0, "s": 1e3}


@document_for(Summary)
def _summary(summary: Summary) -> Document:
    return Document(
        name="summary",
        sentence=(
            f"{_amount(summary.median, summary.unit)} {_between(summary)}, n={summary.n}, "
            f"all from {_amount(summary.minimum, summary.unit)} "
            f"to {_amount(summary.maximum, summary.unit)}"
        ),
        warnings=summary.warnings,
    )


@document_for(Comparison)
def _comparison(c: Comparison) -> Document:
    rows = [
        (
            name,
            _amount(arm.median, arm.unit),
            _interval(arm) if arm.confidence >= c.confidence else ABSENT,
            f"{_amount(arm.minimum, arm.unit)} … {_amount(arm.maximum, arm.unit)}",
            f"{arm.n} × {fmt_count(repeats)}",
        )
        for name, arm, repeats in zip(c.names, (c.a, c.b), c.repeats, strict=True)
    ]
    turned, ratio, low, high = told(c)
    known = low > 0 and math.isfinite(high)
    interval = f"{fmt_ratio(low)} … {fmt_ratio(high)}" if known else ABSENT
    rows.append((_WHICH[turned], fmt_ratio(ratio), interval, "", plural(c.n_blocks, "block")))
    return Document(
        name="comparison",
        sentence=c.sentence,
        tables=(
            Table(
                ("", "median per call", _percent_interval(c.confidence), "range", "timed × calls"),
                tuple(rows),
            ),
        ),
        kind="comparison",
        draw=functools.partial(_draw, c),
        drawn=_words(c),
        warnings=c.warnings,
        foot=(
            f"Measured in turn (ABBA blocks) for {fmt_s(c.duration_s)}; stopped by: {c.stopped}.",
            *_power(c),
            c.provenance.sentence(),
        ),
    )


def _power(c: Comparison) -> list[str]:
    """What a comparison like this one would have missed."""
    if c.detectable is None:
        return []
    return [
        f"Predicted from the spread of the blocks: a difference of {fmt_share(c.detectable)} is "
        "seen with 80 % probability."
    ]


@document_for(RunSummary)
def _run(run: RunSummary) -> Document:
    segments: tuple[Segment, ...] = ()
    rows: list[tuple[str, str, str]] = []
    if run.step is not None and run.wait_share is not None and run.mean_step_ms is not None:
        wait_ms = run.wait_share * run.mean_step_ms
        rest_ms = run.mean_step_ms - wait_ms
        segments = (
            Segment("data wait", wait_ms, fmt_ms(wait_ms)),
            Segment("rest of the step", rest_ms, fmt_ms(rest_ms), "other"),
        )
        rows.append(("step, median", _amount(run.step.median, "ms"), _interval(run.step)))
        between = (
            f"{fmt_share(run.wait_low)} … {fmt_share(run.wait_high)}"
            if run.wait_low is not None
            else "too few steps"
        )
        rows.append(("data wait, share of the time", fmt_share(run.wait_share), between))
    if run.samples_per_s is not None:
        rows.append(("throughput", f"{_rate(run.samples_per_s)} samples/s", _batch(run)))
    elif run.steps_per_s is not None:
        rows.append(("throughput", f"{_rate(run.steps_per_s)} steps/s", "no batch size found"))
    if run.starts_ms:
        rows.append(
            (
                "first batch of an epoch",
                fmt_ms(sorted(run.starts_ms)[len(run.starts_ms) // 2]),
                f"{fmt_ms(min(run.starts_ms))} … {fmt_ms(max(run.starts_ms))}",
            )
        )
    if run.drift is not None:
        rows.append(("drift of the step", fmt_change(run.drift.relative), "over the run"))
    if run.memory is not None:
        rows += _memory(run.memory)
    return Document(
        name="watched run",
        sentence=run.sentence,
        headline=first_clause(_INTERVAL.sub("", run.sentence)),
        figure=f"{fmt_ms(run.step.median)} a step" if run.step is not None else "",
        lines=(_extent(run), *phase_lines(run)),
        bars=(Bar(f"Mean step, {fmt_ms(run.mean_step_ms)}", segments),) if segments else (),
        tables=(Table(("", "", "spread (95 % interval or range)"), tuple(rows), brief=False),),
        kind="run",
        draw=None if run.step is None else functools.partial(run_picture.drawn, run),
        drawn=run_picture.alternative(run),
        # one sentence, not a list of them before every table
        warnings=("; ".join(run.warnings),) if run.warnings else (),
        foot=(
            f"Watching took {fmt_share(run.update_share)} of the run, counted in no step.",
            f"{_extent(run)}. {run.provenance.sentence()}",
        ),
    )


def _extent(run: RunSummary) -> str:
    epochs = f" in {run.n_epochs} epochs" if run.n_epochs > 1 else ""
    wall = fmt_ms(1e3 * run.wall_s)
    return f"{run.name}: {plural(run.n_steps, 'step')}{epochs}, {wall}, {run.ended}{left(run)}"


def phase_lines(run: RunSummary) -> tuple[str, ...]:
    """Where the time of the whole run went, in one line; none where that was not watched."""
    told = [one for one in run.phases if one.seconds]  # a short one has run, too
    if not told:
        return ()
    said = ", ".join(f"{one.name.replace('_', ' ')} {fmt_share(one.share)}" for one in told)
    return (f"All of its time, on the host: {said}.",)


def left(run: RunSummary) -> str:
    """Last steps that are not timed, in words; nothing where there was none."""
    if not run.n_unfinished:
        return ""
    last = "the last one" if run.n_unfinished == 1 else f"{fmt_count(run.n_unfinished)} last ones"
    return f" ({last} not timed: no further batch was asked for)"


def _batch(run: RunSummary) -> str:
    return "" if run.batch_size is None else f"batches of up to {fmt_count(run.batch_size)}"


def _memory(memory: MemoryUse) -> list[tuple[str, str, str]]:
    rows = [
        (
            f"{memory.kind} memory, at the end",
            fmt_bytes(memory.last_bytes),
            f"{fmt_bytes(memory.first_bytes)} at first, {fmt_bytes(memory.highest_bytes)} highest",
        )
    ]
    creep = memory.creep
    if creep is not None:
        rows.append(
            (
                "memory creep",
                f"{fmt_bytes(creep.per_step)} a step",
                f"from {fmt_bytes(creep.before_bytes)} to {fmt_bytes(creep.after_bytes)}",
            )
        )
    return rows


def _rate(per_s: float) -> str:
    return fmt_number(per_s)


def _amount(value: float, unit: str) -> str:
    factor = _IN_MS.get(unit)
    return f"{fmt_number(value)} {unit}".rstrip() if factor is None else fmt_ms(value * factor)


def _interval(s: Summary) -> str:
    return f"{_amount(s.low, s.unit)} … {_amount(s.high, s.unit)}"


def _between(s: Summary) -> str:
    low, high = _amount(s.low, s.unit), _amount(s.high, s.unit)
    return f"[{low}, {high}] ({_percent_interval(s.confidence)})"


def _percent_interval(confidence: float) -> str:
    return f"{fmt_chosen_share(confidence)} interval"


def _words(c: Comparison) -> str:
    """The figure in words."""
    medians = [
        f"{name!r} takes {fmt_ms(arm.median)}, interval {fmt_ms_interval(arm.low, arm.high)}"
        for name, arm in zip(c.names, (c.a, c.b), strict=True)
    ]
    return f"Median time per call: {'; '.join(medians)}. {c.sentence}"


def _draw(found: Comparison) -> Figure:
    """The ratio with its interval against 1, and the times of both arms."""
    from perfkit.show._page_figure import PageFigure

    picture = PageFigure(figsize=(8, 2.8), dpi=110)
    left, right = picture.subplots(1, 2, width_ratios=[3, 2])
    arms = (found.a, found.b)
    unit, size = time_unit(max(arm.median for arm in arms))
    for row, (arm, colour) in enumerate(zip(arms, SERIES, strict=False)):
        at = [row, row]
        left.plot([arm.minimum / size, arm.maximum / size], at, color=colour, lw=1, alpha=0.5)
        left.plot([arm.low / size, arm.high / size], at, color=colour, lw=6, alpha=0.5)
        left.plot([arm.median / size], [row], "os"[row], color=colour, ms=9, mew=2)
    # a dollar sign would begin a formula
    names = [printable(name, 30).replace("$", r"\$") for name in found.names]
    left.set_yticks([0, 1], names)
    left.set(ylim=(1.6, -0.6), xlabel=f"time per call [{unit}]")
    left.set_xlim(left=0)
    turned, ratio, low, high = told(found)
    if low > 0 and math.isfinite(high):
        right.plot([low, high], [0, 0], color=INK, lw=6, alpha=0.5)
    right.plot([ratio], [0], "o", color=INK, ms=9)
    right.axvline(1.0, color="black", lw=0.8, ls=":")
    right.set_yticks([])
    right.set(ylim=(-1, 1), xlabel=f"{_WHICH[turned]} (dotted: equal)")
    left.set_title("median, 95 % interval, range", fontsize="medium")
    ends = fmt_interval(low, high) if math.isfinite(high) else "(no interval)"
    right.set_title(f"{fmt_ratio(ratio)} {ends}", fontsize="medium")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return picture
