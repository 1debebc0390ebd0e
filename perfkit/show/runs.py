"""What runs of a workload say, one or several, and their figure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.base.words import (
    fmt_bytes,
    fmt_count,
    fmt_interval,
    fmt_ms,
    fmt_number,
    fmt_ratio,
    fmt_share,
    no_difference,
)
from perfkit.experiment.process.result import ONE_AFTER_THE_OTHER, SPEED, Ratio, RunResult, ratio
from perfkit.show.document import Document, Doubt, Fold, Table, document_for
from perfkit.show.palette import SERIES
from perfkit.show.plain_text import clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Enough of a failed run's output to see why.
_OUTPUT_LINES = 8
# lines differ in dash, too
_DASHES = ("-", "--", "-.", ":")


@document_for(RunResult)
def _run(run: RunResult) -> Document:
    return document_of([run])


@document_for(list)
@document_for(tuple)
def _listed(runs: Sequence[Any]) -> Document | None:
    """Of several runs; a list of anything else says nothing."""
    known = runs and all(isinstance(run, RunResult) for run in runs)
    return document_of(runs) if known else None


@document_for(Ratio)
def _ratio(compared: Ratio) -> Document:
    said = _ratio_sentence(compared)
    return Document(name="ratio", sentence=f"{said[:1].upper()}{said[1:]}.")


def figure(runs: Sequence[RunResult]) -> Figure:
    """Step time and data wait over the steps of each run; :func:`alt_text` says it in words.

    Made with matplotlib's objects, so that the user's own figures and backend stay alone.
    Steps that count are drawn full, the others pale.
    """
    import numpy as np

    from perfkit.show._page_figure import PageFigure

    drawn = [run for run in runs if run.n_steps]
    picture = PageFigure(figsize=(8, 4.2), dpi=110)
    upper, lower = picture.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    highest = 0.0
    for i, run in enumerate(drawn):
        colour, dash = SERIES[i % len(SERIES)], _DASHES[i % len(_DASHES)]
        label = f"run {run.run_id}: {clip(_words_of(run.values), 48)}"
        upper.plot(run.index, run.step_ms, dash, color=colour, alpha=0.25, lw=0.8)
        counted = np.where(run.counted, run.step_ms, np.nan)
        upper.plot(run.index, counted, dash, color=colour, lw=1.4, label=label)
        lower.plot(run.index, run.wait_ms, dash, color=colour, lw=1.0)
        # one slow first step must not flatten all others
        highest = max(highest, float(np.percentile(run.step_ms, 98)))
    if drawn:
        upper.set_ylim(0, 1.25 * highest or None)
        upper.legend(fontsize="small", frameon=False, loc="upper right")
    else:
        upper.text(0.5, 0.5, "no step was measured", ha="center", transform=upper.transAxes)
    upper.set(ylabel="step [ms]", title=_figure_title(drawn))
    lower.set(ylabel="data wait [ms]", xlabel="step")
    lower.set_ylim(bottom=0)
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return picture


def alt_text(runs: Sequence[RunResult]) -> str:
    """The figure in words."""
    drawn = [run for run in runs if run.n_steps]
    if not drawn:
        return "No step was measured."
    said = [
        f"run {run.run_id} ({_words_of(run.values)}): median step "
        f"{fmt_ms(run.step.median if run.step else None)}, {fmt_share(run.wait_share)} of it "
        f"data wait, {run.n_steps} steps"
        for run in drawn
    ]
    return f"Step time and data wait over the steps of {_n_runs(len(drawn))}. {'; '.join(said)}."


def document_of(runs: Sequence[RunResult]) -> Document:
    """What these runs say together."""
    base = next((run for run in runs if run.step is not None), None)
    best = max(
        (run for run in runs if run.step is not None),
        key=lambda run: ratio(base or run, run).ratio,
        default=None,
    )
    warnings = []
    for run in runs:
        lead = f"run {run.run_id}: " if len(runs) > 1 else ""
        if run.message and len(runs) > 1:
            warnings.append(f"{lead}{run.state}: {run.message}")
        warnings += [f"{lead}{warning}" for warning in run.warnings]
    foot = []
    kinds = dict.fromkeys(run.peak_kind for run in runs if run.peak_bytes is not None)
    if kinds:
        foot.append("; ".join(kinds))
    if base is not None and len(runs) > 1:
        foot.append(f"{SPEED}: run {base.run_id}'s ÷ the run's; {ONE_AFTER_THE_OTHER}")
    if runs:
        foot.append(runs[-1].provenance.sentence())
    return Document(
        name="runs" if len(runs) != 1 else f"run {runs[0].run_id}",
        sentence=_sentence(runs, best),
        headline=_headline(runs, base, best),
        figure=_figure(runs, best),
        doubts=tuple(Doubt.of(run.message) for run in runs if run.message and len(runs) == 1),
        warnings=tuple(dict.fromkeys(warnings)),
        tables=_tables(runs, base),
        folds=tuple(_details(runs)),
        foot=tuple(foot),
        draw=functools.partial(figure, runs),
        drawn=alt_text(runs),
    )


def _headline(runs: Sequence[RunResult], base: RunResult | None, best: RunResult | None) -> str:
    """How much waits for data; of several, which is the fastest, by the table's speed."""
    if base is None or best is None:
        return f"Run {runs[0].run_id} {runs[0].state}." if len(runs) == 1 else ""
    if len(runs) == 1:
        done = "" if best.state == "done" else f" {best.state}"
        return f"Run {best.run_id}{done}: {fmt_share(best.wait_share)} of each step waits for data."
    if best is base:
        return f"Run {best.run_id} is the fastest of {len(runs)}."
    compared = ratio(base, best)
    if not compared.different:
        return f"No run is distinguishably faster than run {base.run_id}."
    per = " per sample" if compared.per == "sample" else ""
    return f"Run {best.run_id}: {fmt_ratio(compared.ratio)} as fast as run {base.run_id}{per}."


def _figure(runs: Sequence[RunResult], best: RunResult | None) -> str:
    if best is None or best.step is None:
        return ""
    return f"{fmt_ms(best.step.median if len(runs) == 1 else best.mean_ms)} a step"


def _tables(runs: Sequence[RunResult], base: RunResult | None) -> tuple[Table, ...]:
    """The figures, and the settings below them: beside them they would be cut off."""
    if len(runs) < 2:
        return ()
    faults = any("malloc" in run.values for run in runs)
    extra = ("page faults",) if faults else ()
    header = (
        *("run", "median step", "95 % interval", "data wait", "samples/s", "peak"),
        *(*extra, "speed"),
    )
    rows = tuple(_row(base, run, faults=faults) for run in runs)
    settings = tuple((str(run.run_id), _said(runs[0], run)) for run in runs)
    return (
        Table(header, rows, open=True),
        Table(("run", "settings"), settings, align="<<", open=True, wrap=True),
    )


def _sentence(runs: Sequence[RunResult], best: RunResult | None) -> str:
    if not runs:
        return "No run yet."
    if len(runs) > 1:
        if best is None:
            return f"{_n_runs(len(runs))}, none with a measured step."
        rate = "" if best.samples_per_s is None else f", {_rate(best)} samples/s"
        return (
            f"{_n_runs(len(runs))}; the fastest was run {best.run_id} "
            f"({_words_of(best.values)}): {fmt_ms(best.mean_ms)} per step on average{rate}."
        )
    (run,) = runs
    lead = f"Run {run.run_id} ({_words_of(run.values)}) {run.state}"
    if run.message:
        lead += f": {run.message}"
    if run.step is None:
        return f"{lead}."
    parts = [
        f"{fmt_ms(run.step.median)} a step (median) "
        f"[{fmt_ms(run.step.low)}, {fmt_ms(run.step.high)}]",
        f"{fmt_share(run.wait_share)} of it data wait",
        *([] if run.samples_per_s is None else [f"{_rate(run)} samples/s"]),
        f"peak {fmt_bytes(run.peak_bytes)}",
        *([f"{_faults(run)} page faults a step"] if "malloc" in run.values else []),
        f"n={run.n_counted} of {run.n_steps} steps",
    ]
    return f"{lead}: {', '.join(parts)}."


def _details(runs: Sequence[RunResult]) -> list[Fold]:
    """Of runs that went wrong: the traceback, or else the end of what they printed."""
    found = []
    for run in runs:
        if run.state in ("done", "stopped") and not run.traceback_text:
            continue
        body = run.traceback_text.rstrip()
        title = f"run {run.run_id}, where it was"
        if not body:
            title = f"run {run.run_id}, the end of its output"
            body = "\n".join(run.output.rstrip().splitlines()[-_OUTPUT_LINES:])
        if body:
            found.append(Fold(title, body))
    return found


def _said(first: RunResult, run: RunResult) -> str:
    """A run's settings; of all but the first, what differs from the first."""
    said = _words_of(run.values) if run is first else _changes(first.values, run.values)
    if run.state not in ("done", "stopped"):
        said = f"{said}: {run.state}" if said else run.state
    return said or f"as run {first.run_id}"


def _row(base: RunResult | None, run: RunResult, *, faults: bool) -> tuple[str, ...]:
    step = run.step
    return (
        str(run.run_id),
        fmt_ms(step.median) if step else "–",
        f"{fmt_ms(step.low)} – {fmt_ms(step.high)}" if step else "–",
        fmt_share(run.wait_share),
        _rate(run),
        fmt_bytes(run.peak_bytes),
        *((_faults(run),) if faults else ()),
        _speed(base, run),
    )


def _faults(run: RunResult) -> str:
    found = run.faults_per_step
    return "–" if found is None else fmt_count(round(found))


def _speed(base: RunResult | None, run: RunResult) -> str:
    if base is None or run.step is None:
        return "–"
    if run is base:
        return "1"
    compared = ratio(base, run)
    said = f"{fmt_ratio(compared.ratio)} {fmt_interval(compared.low, compared.high)}"
    return f"{said} per sample" if compared.per == "sample" else said


def _ratio_sentence(compared: Ratio) -> str:
    said = f"{fmt_ratio(compared.ratio)} as fast {fmt_interval(compared.low, compared.high)}"
    none = no_difference(compared.low, compared.high)
    seen = said if compared.different else f"{none}: {said}"
    return f"{seen} per {compared.per}; {ONE_AFTER_THE_OTHER}"


def _rate(run: RunResult) -> str:
    rate = run.samples_per_s
    if rate is None:
        return "–"
    return fmt_number(rate)


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _words_of(values: Mapping[str, Any]) -> str:
    said = ", ".join(f"{name} {_word(value)}" for name, value in values.items())
    return said or "no settings"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {_word(value)}" for name, value in after.items() if before.get(name) != value
    )


def _figure_title(runs: Sequence[RunResult]) -> str:
    return f"Step time of {_n_runs(len(runs))} (pale: steps that do not count)" if runs else ""


def _n_runs(n: int) -> str:
    return "1 run" if n == 1 else f"{n} runs"
