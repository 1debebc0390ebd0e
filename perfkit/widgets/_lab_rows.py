"""The Lab's table of runs in words: the same figures for the browser, plain text and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.experiment.result import ONE_AFTER_THE_OTHER, SPEED, Ratio, RunResult, ratio
from perfkit.report._text import table
from perfkit.words import fmt_bytes, fmt_interval, fmt_ms, fmt_number, fmt_ratio, fmt_share

Cell = dict[str, str]


def words(value: Any) -> str:
    """A setting's value as a person says it: ``on``, ``off``, ``4``."""
    if value is True:
        return "on"
    if value is False:
        return "off"
    return "none" if value is None else str(value)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """``num_workers 0 → 2, fused off → on``; empty where nothing differs."""
    return ", ".join(
        f"{name} {words(before[name])} → {words(value)}"
        for name, value in after.items()
        if name in before and before[name] != value
    )


def all_values(values: Mapping[str, Any]) -> str:
    """``num_workers 0, fused off``."""
    return ", ".join(f"{name} {words(value)}" for name, value in values.items())


def baseline(runs: Sequence[RunResult]) -> RunResult | None:
    """The run that the others are compared with: the first that was measured."""
    return next((run for run in runs if run.step is not None and run.counted.any()), None)


def against(base: RunResult | None, run: RunResult) -> Ratio | None:
    """How many times faster than the first one; None where there is nothing to compare."""
    if base is None or run is base or run.step is None or not run.counted.any():
        return None
    return ratio(base, run)


def browser_rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """What ``js/src/runs.js`` shows: a text and a smaller detail for each cell."""
    base = baseline(runs)
    rows = [_browser_row(base, runs[0], run) for run in runs]
    told = ""
    for row in rows:  # what the peak is, once
        kind = row["peak"]["detail"]
        row["peak"]["detail"] = "" if kind == told else kind
        told = kind or told
    return rows


def _browser_row(base: RunResult | None, first: RunResult, run: RunResult) -> dict[str, Any]:
    step = run.step
    return {
        "run": run.run_id,
        "state": run.state,
        "changed": _cell(_settings_text(first, run)),
        "step": _cell(fmt_ms(step.median), _interval_ms(run)) if step else _cell("–"),
        "wait": _cell(fmt_share(run.wait_share)),
        "rate": _cell(_rate(run)),
        "peak": _cell(fmt_bytes(run.peak_bytes), run.peak_kind if run.peak_bytes else ""),
        "ratio": _ratio_cell(base, run),
        "message": run.message,
        "notes": " · ".join(dict.fromkeys((*run.warnings, *(step.warnings if step else ())))),
        "traceback": run.traceback_text,
    }


def _cell(text: str, detail: str = "") -> Cell:
    return {"text": text, "detail": detail}


def _settings_text(first: RunResult, run: RunResult) -> str:
    if run is first:
        return all_values(run.values) or "no settings"
    return changes(first.values, run.values) or f"as run {first.run_id}"


def _interval_ms(run: RunResult) -> str:
    step = run.step
    if step is None:
        return ""
    interval = _between(fmt_ms(step.low), fmt_ms(step.high))
    return f"{_unbroken(interval)}, {_unbroken(f'n = {run.n_counted}')}"


def _unbroken(text: str) -> str:
    return text.replace(" ", "\u00a0")


def _between(low: str, high: str) -> str:
    """``70 – 79 ms``: the unit once where both have the same."""
    number, _, unit = low.partition(" ")
    return f"{number} – {high}" if high.endswith(f" {unit}") else f"{low} – {high}"


def _rate(run: RunResult) -> str:
    rate = run.samples_per_s
    if rate is None:
        return "–"
    return fmt_number(rate)


def _ratio_cell(base: RunResult | None, run: RunResult) -> Cell:
    if run is base:
        return _cell("1", "baseline")
    compared = against(base, run)
    if compared is None or base is None:
        return _cell("–")
    interval = _unbroken(f"{fmt_ratio(compared.low)} – {fmt_ratio(compared.high)}")
    if not compared.different:
        detail = f"no difference seen ({interval})"
    else:
        detail = f"{'faster' if compared.ratio > 1 else 'slower'} ({interval})"
    if compared.per == "sample":
        detail += "; per sample, as batches differ"
    return _cell(fmt_ratio(compared.ratio), detail)


_HEADER = (
    "run",
    "settings",
    "state",
    "median step",
    "interval",
    "data wait",
    "samples/s",
    "peak",
    "speed",
)


def _plain_rows(runs: Sequence[RunResult]) -> list[list[str]]:
    base = baseline(runs)
    rows = []
    for run in runs:
        compared = against(base, run)
        speed = "1" if run is base else fmt_ratio(compared.ratio) if compared else "–"
        if compared is not None:
            speed += f" {fmt_interval(compared.low, compared.high)}"
            speed += " per sample" * (compared.per == "sample")
        step = run.step
        rows.append(
            [
                str(run.run_id),
                _settings_text(runs[0], run),
                run.state,
                fmt_ms(step.median) if step else "–",
                _between(fmt_ms(step.low), fmt_ms(step.high)) if step else "–",
                fmt_share(run.wait_share),
                _rate(run),
                fmt_bytes(run.peak_bytes),
                speed,
            ]
        )
    return rows


def _footnotes(runs: Sequence[RunResult]) -> list[str]:
    notes = [f"run {run.run_id} {run.state}: {run.message}" for run in runs if run.message]
    kinds = list(dict.fromkeys(run.peak_kind for run in runs if run.peak_bytes is not None))
    if kinds:
        notes.append(f"peak: {'; '.join(kinds)}")
    base = baseline(runs)
    if base is not None:
        notes.append("median step: of quiet windows, with its 95 % interval")
        if len(runs) > 1:
            notes.append(
                f"{SPEED}: run {base.run_id}'s ÷ the run's, with its 95 % interval; "
                f"{ONE_AFTER_THE_OTHER}"
            )
        notes += [
            f"run {run.run_id}: {warning}"
            for run in runs
            for warning in run.warnings
            if warning.startswith("steps are uneven")
        ]
        notes.append(base.provenance.sentence())
    return notes


def plain_table(runs: Sequence[RunResult]) -> str:
    """The runs as aligned text."""
    if not runs:
        return "no run yet"
    body = table(_HEADER, _plain_rows(runs), align="><<>>>>>>", width=140, indent="")
    return "\n".join([body, *_footnotes(runs)])


def markdown_table(title: str, runs: Sequence[RunResult]) -> str:
    """The runs as a Markdown document."""
    lines = [f"# {_escaped(title)}", ""]
    if not runs:
        return "\n".join([*lines, "No run yet.", ""])
    lines.append("| " + " | ".join(_HEADER) + " |")
    lines.append("|" + "|".join(" ---: " if i != 1 else " --- " for i in range(len(_HEADER))) + "|")
    lines += ["| " + " | ".join(map(_escaped, row)) + " |" for row in _plain_rows(runs)]
    lines.append("")
    lines += [f"- {_escaped(note)}" for note in _footnotes(runs)]
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "<", "*", "`"):
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())
