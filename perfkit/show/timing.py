"""Summaries, comparisons and watched runs as text and as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfkit.show._bar import Segment, bar, text_bar
from perfkit.show._text import one_sentence, table, wrap
from perfkit.timing.compare import Comparison
from perfkit.timing.summary import Summary
from perfkit.timing.verdict import MemoryUse, RunSummary
from perfkit.words import (
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

__all__ = ["counted", "html", "left", "text"]

_IN_MS = {"µs": 1e-3, "us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class _View:
    """What is said, in either form."""

    name: str
    sentence: str
    lines: Sequence[str] = ()
    bar_title: str = ""
    segments: Sequence[Segment] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    warnings: Sequence[str] = ()
    foot: Sequence[str] = ()
    #: whether the HTML form hides the table until it is asked for
    folded: bool = True


def text(obj: Summary | Comparison | RunSummary) -> str:
    """The plain-text form, at most 96 columns wide."""
    view = _view(obj)
    blocks = [wrap(view.sentence), *(wrap(line, indent="  ") for line in view.lines)]
    if view.segments:
        blocks.append(text_bar(view.bar_title, view.segments))
    if view.rows:
        blocks.append(table(view.header, view.rows, align=_align(view)))
    if view.warnings:
        blocks.append(wrap(f"Note: {one_sentence(view.warnings)}", indent="  ", hang="    "))
    blocks += [wrap(line, indent="  ") for line in view.foot]
    return "\n".join(blocks)


def html(obj: Summary | Comparison | RunSummary) -> str:
    """The self-contained HTML form."""
    from markupsafe import Markup

    from perfkit.show._html import render

    view = _view(obj)
    # bar() escapes what it is given: its result is markup
    lane = Markup(bar(view.bar_title, view.segments)) if view.segments else ""
    return render("timing.html", view=view, lane=lane, align=_align(view))


def _view(obj: Summary | Comparison | RunSummary) -> _View:
    if isinstance(obj, Comparison):
        return _comparison(obj)
    if isinstance(obj, RunSummary):
        return _run(obj)
    return _summary(obj)


def _align(view: _View) -> str:
    return "<" + ">" * (len(view.header) - 1)


def _summary(summary: Summary) -> _View:
    return _View(
        name="summary",
        sentence=(
            f"{_amount(summary.median, summary.unit)} {_between(summary)}, n={summary.n}, "
            f"all from {_amount(summary.minimum, summary.unit)} "
            f"to {_amount(summary.maximum, summary.unit)}"
        ),
        warnings=summary.warnings,
    )


def _comparison(c: Comparison) -> _View:
    rows = [
        (
            name,
            _amount(arm.median, arm.unit),
            _interval(arm) if arm.confidence >= c.confidence else ABSENT,
            f"{_amount(arm.minimum, arm.unit)} … {_amount(arm.maximum, arm.unit)}",
            f"{arm.n} × {fmt_count(repeats)}",
        )
        for name, arm, repeats in zip(c.names, (c.slow, c.fast), c.repeats, strict=True)
    ]
    known = c.low > 0 and math.isfinite(c.high)
    interval = f"{fmt_ratio(c.low)} … {fmt_ratio(c.high)}" if known else ABSENT
    rows.append(("ratio", fmt_ratio(c.ratio), interval, "", plural(c.n_blocks, "block")))
    return _View(
        name="comparison",
        sentence=c.sentence,
        header=("", "median per call", _percent_interval(c.confidence), "range", "timed × calls"),
        rows=rows,
        warnings=c.warnings,
        foot=(
            f"Measured in turn (ABBA blocks) for {fmt_s(c.duration_s)}; stopped by: {c.stopped}.",
            *_power(c),
            c.provenance.sentence(),
        ),
    )


def _power(c: Comparison) -> list[str]:
    """What a comparison like this one would have missed."""
    least, of_three = c.detectable, c.power()
    if least is None or of_three is None:
        return []
    return [
        f"Predicted from the spread of the blocks: a difference of {fmt_share(least)} is seen with "
        f"80 % probability, one of 3 % with {fmt_share(of_three)}."
    ]


def _run(run: RunSummary) -> _View:
    segments: Sequence[Segment] = ()
    rows: list[tuple[str, str, str]] = []
    if run.step is not None and run.wait_share is not None and run.mean_step_ms is not None:
        wait_ms = run.wait_share * run.mean_step_ms
        rest_ms = run.mean_step_ms - wait_ms
        segments = (
            Segment("data wait", wait_ms, fmt_ms(wait_ms), "orange"),
            Segment("rest of the step", rest_ms, fmt_ms(rest_ms), "blue"),
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
    return _View(
        name="watched run",
        sentence=run.sentence,
        lines=(_extent(run),),
        bar_title="mean step" if segments else "",
        segments=segments,
        header=("", "", "spread (95 % interval or range)") if rows else (),
        rows=rows,
        # one sentence, not a list of them before every table
        warnings=("; ".join(run.warnings),) if run.warnings else (),
        foot=(
            f"Watching took {fmt_share(run.update_share)} of the run, counted in no step.",
            run.provenance.sentence(),
        ),
    )


def _extent(run: RunSummary) -> str:
    epochs = f" in {run.n_epochs} epochs" if run.n_epochs > 1 else ""
    wall = fmt_ms(1e3 * run.wall_s)
    return f"{run.name}: {counted(run)}{epochs}, {wall}, {run.ended}{left(run)}"


def counted(run: RunSummary) -> str:
    """How many steps there were, in words, and of how many batches where of several."""
    of = f" of {run.group} batches" if run.group > 1 else ""
    return f"{plural(run.n_steps, 'step')}{of}"


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
                f"{fmt_bytes(creep.slope)} a step",
                f"{fmt_bytes(creep.low)} … {fmt_bytes(creep.high)}",
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
