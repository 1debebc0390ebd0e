"""What summaries, comparisons and watched runs say."""

from __future__ import annotations

import functools
import math
import re

from perfkit.advice.diagnose import first_clause
from perfkit.base.words import (
    ABSENT,
    fmt_bytes,
    fmt_change,
    fmt_chosen_share,
    fmt_count,
    fmt_ms,
    fmt_number,
    fmt_ratio,
    fmt_s,
    fmt_share,
    plural,
)
from perfkit.measure.compare import Comparison
from perfkit.measure.summary import Summary
from perfkit.measure.verdict import MemoryUse, RunSummary
from perfkit.show import run_picture
from perfkit.show._direction import blocks, headline, told
from perfkit.show.document import Bar, Document, Doubt, Segment, Table, document_for

_INTERVAL = re.compile(r" \[[^\]]*\]")
_WHICH = {False: "first ÷ second", True: "second ÷ first"}
_IN_MS = {"µs": 1e-3, "us": 1e-3, "ms": 1.0, "s": 1e3}


@document_for(Summary)
def _summary(summary: Summary) -> Document:
    return Document(
        name="summary",
        sentence=(
            f"{_amount(summary.median, summary.unit)}, the median of {summary.n}; "
            f"all from {_amount(summary.minimum, summary.unit)} "
            f"to {_amount(summary.maximum, summary.unit)}."
        ),
        figure=f"{_interval(summary)}, {_percent_interval(summary.confidence)}",
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
        headline=headline(c.names, c),
        figure=f"{_amount(c.a.median, c.a.unit)} → {_amount(c.b.median, c.b.unit)} a call",
        doubts=tuple(map(Doubt.of, c.warnings)),
        pictures=blocks(c, c.names, c.ratios),
        tables=(
            Table(
                ("", "median per call", _percent_interval(c.confidence), "range", "timed × calls"),
                tuple(rows),
            ),
        ),
        kind="comparison",
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


def _percent_interval(confidence: float) -> str:
    return f"{fmt_chosen_share(confidence)} interval"
