"""What a profile and a breakdown say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfkit.advice.findings import Finding, gain_words
from perfkit.advice.profile import Profile
from perfkit.advice.profiling import Profiling
from perfkit.base.lessons import lesson_of
from perfkit.base.line_sampler import SAMPLES_PER_S
from perfkit.base.words import fmt_chosen_share, fmt_count, fmt_ms, fmt_number, fmt_share, plural
from perfkit.show import strip as step_strip
from perfkit.show.document import Bar, Document, Doubt, Segment, Table, document_for
from perfkit.show.document import Finding as ShownFinding
from perfkit.show.plain_text import a_step, per_step
from perfkit.show.waterfall import waterfall_picture, waterfall_table
from perfkit.trace.ask.breakdown import Breakdown
from perfkit.trace.ask.operators import Operator, Operators
from perfkit.trace.ask.typical import typical
from perfkit.trace.record.lines import LineSamples

# More than three things to change at once help nobody; the rest is one click away.
_MAIN_FINDINGS = 3
_TOP_OPERATORS = 10
_TOP_LINES = 10
# A tiny model that waits for a slow disk takes thousands of times its lower bound; a step that
# takes more than this many did not do the work that was counted.
_FARTHEST = 100_000

# What the engine puts before the name of each of its functions; in a narrow table it hides them.
_ENGINE = "autograd::engine::evaluate_function: "


@document_for(Profile)
def _profile(p: Profile) -> Document:
    if p.nothing:
        return Document("profile", p.nothing, warnings=p.warnings)
    findings = tuple(shown_finding(f) for f in p.diagnosis.findings)
    strip = step_strip.strip_of(p.trace)
    fall = p.waterfall if p.waterfall is not None and p.waterfall.step_ms else None
    compiled, compile_tables = _compiled(p)
    next_steps = (*(p.diagnosis.first if p.is_piece else ()), *_next_steps(p))
    return Document(
        name="profile",
        sentence=p.diagnosis.headline,
        headline=p.diagnosis.verdict,
        figure=_figure(p),
        doubts=_doubts(p),
        lines=_lines(
            "" if not p.diagnosis.findings else p.diagnosis.no_cure,
            # the marks of a recording are perfkit's own: that they were found says nothing
            ""
            if p.is_piece and p.cost is not None
            else _step_line(p.breakdown, how=p.cost is None or _by_fetches(p.breakdown)),
            "" if p.coverage is None else p.coverage.sentence(),
            compiled,
            _limit_line(p),
            _costliest(p),
        ),
        warnings=tuple(dict.fromkeys((*p.warnings, *_step_notes(p)))),
        advice=next_steps,
        advice_title="What to do",
        bars=_bars(p.breakdown, p) if p.whole is None else _bar_of_all(p),
        pictures=(
            *(() if strip is None else (_picture(strip, p),)),
            *(() if fall is None else (waterfall_picture(fall, folds=True),)),
        ),
        findings=findings[:_MAIN_FINDINGS],
        more_findings=findings[_MAIN_FINDINGS:],
        more_title="Also found",
        tables=(
            *compile_tables,
            _operators_table(p.operators, len(p.breakdown.steps)),
            *(() if fall is None else (replace(waterfall_table(fall), open=False, brief=False),)),
            *line_tables(p.lines, p.worker_lines, p.process_lines),
            *_syncs_tables(p),
            *(() if p.is_piece else _steps_tables(p.breakdown)),
        ),
        foot=(*(() if p.cost is None else (p.cost.sentence(),)), p.provenance.sentence()),
        kind="profile",
    )


def _figure(p: Profile) -> str:
    if p.is_piece:
        return f"{fmt_ms(p.step.median)} in all"
    return f"{fmt_ms(p.diagnosis.step_ms)} a step"


def _doubts(p: Profile) -> tuple[Doubt, ...]:
    """What the machine did meanwhile; a sentence's beginning is its chip."""
    chips = []
    if p.diagnosis.is_ahead:
        ahead = f"the host ran ahead: its own median is {fmt_ms(p.step.median)} a step"
        chips.append(Doubt("host ran ahead", f"The step is the device's; {ahead}."))
    for sentence in p.diagnosis.doubts:
        if p.busy is not None and sentence == p.busy.sentence():
            chip = f"busy machine: up to {fmt_share(p.busy.lost)} of the time lost to others"
            chips.append(Doubt(chip, sentence))
        else:
            chips.append(Doubt.of(sentence))
    return tuple(chips)


def _next_steps(p: Profile) -> tuple[str, ...]:
    """What to do where no rule knows anything to change: a verdict is not left alone."""
    d = p.diagnosis
    if d.findings or not d.no_cure:
        return ()
    if d.bound_by == "communication" or d.is_one_sided:
        return (d.no_cure,)  # its operators are not what takes the time
    said = [f"{d.no_cure} {_costliest(p)}".rstrip()]
    if d.bound_by == "compute":
        said.append(
            "Compute the same in another way (precision, batch size, torch.compile), and measure "
            "each change: `perfkit.compare(old_step, new_step)`."
        )
    if p.cost is not None and p.limit is None and not p.is_piece:
        said.append(
            "Ask how much there is to gain: call `perfkit.peaks()` once, with as many threads as "
            "here (in a shell, `perfkit doctor --peaks` takes torch's default number); from then "
            "on `%%torchprof`, `perfkit.profile` and `perfkit run` say how far a step is from "
            "its lower bound on this machine."
        )
    return tuple(said)


def _compiled(p: Profile) -> tuple[str, tuple[Table, ...]]:
    """What torch.compile did, in a line and in tables; empty if nothing was compiled."""
    if p.compiled is None:
        return "", ()
    from perfkit.show.counted import compile_sentence, compile_tables

    return f"torch.compile: {compile_sentence(p.compiled)}", compile_tables(p.compiled)


def _picture(strip: step_strip.Strip, p: Profile) -> step_strip.StepStrip:
    if p.is_piece:
        return step_strip.StepStrip(strip, title="All of it over time")
    return step_strip.StepStrip(strip)


@document_for(Profiling)
def _profiling(p: Profiling) -> Document:
    if not p.is_done:
        return Document("profile", "Recording: the profile is there after the `with` block.")
    return _profile(p.result)


_MEASURE_AGAIN = (
    "These peaks were measured on a busy machine: `perfkit doctor --peaks` measures them again."
)


def _limit_line(p: Profile) -> str:
    """How far the step is from the lower bound; nothing where its own time says little."""
    spoiled = p.busy is not None and p.busy.spoils
    if p.limit is None or p.is_piece or spoiled:
        return ""
    if (p.limit.ratio or 0.0) > _FARTHEST:
        return ""  # hardly anything of the work ran on the device, or could be counted
    from perfkit.show.limit import limit_sentence

    said = limit_sentence(p.limit)
    low = any("peaks are too low" in words for words in p.limit.warnings)
    return f"{said} {_MEASURE_AGAIN}" if said and low else said


def _costliest(p: Profile) -> str:
    """The operator that takes the most: of the device's time where it launched some."""
    named = [o for o in p.operators if "(no operator)" not in o.name]
    on_device_us = sum(o.device_us for o in p.operators)
    first = max(named, key=lambda o: o.device_us if on_device_us else o.self_us, default=None)
    if first is None or not (first.device_us if on_device_us else first.self_us):
        return ""
    share = (
        f"{fmt_share(first.device_us / on_device_us)} of the device's work"
        if on_device_us
        else f"{fmt_share(first.share)} of what operators take"
    )
    return f"Costliest operator: {first.name.replace(_ENGINE, 'autograd: ')}, {share}."


def _lines(*parts: str) -> tuple[str, ...]:
    """What there is to say, as one paragraph."""
    said = " ".join(filter(None, parts))
    return (said,) if said else ()


def _step_notes(p: Profile) -> tuple[str, ...]:
    """The doubts of the steps' summary, in words of steps and of what can be done here."""
    if p.step.n == 1:
        return ()  # the step line says so
    notes = []
    for note in p.step.warnings:
        if note.startswith("only "):
            note = (
                f"only {p.step.n} steps: the interval is their whole range "
                f"({fmt_chosen_share(p.step.confidence)})"
            )
        elif note.endswith(": warm up first"):
            note = note.replace("the first value is", "the first profiled step took")
            note = note.replace(
                ": warm up first", ": skip more steps first (-w, in Python: `warmup`)"
            )
            note = note.replace("of the others", "of the other steps")
        notes.append(note)
    return tuple(notes)


_CHANGES = "changes the training"


def shown_finding(f: Finding) -> ShownFinding:
    """A finding as it is shown."""
    lesson = lesson_of("rule", f.rule)
    return ShownFinding(
        title=f.title,
        tag="; ".join(
            filter(None, (gain_words(f.gain_at_most) * f.has_bound, _CHANGES * bool(f.changes)))
        ),
        source=f.line or "",
        facts=(*f.evidence, *((f"This changes the training: {f.changes}",) if f.changes else ())),
        code=f.what_to_do.strip("\n"),
        small=tuple(
            filter(None, (f"{f.formula}." if f.formula else "", lesson and f"Lesson: {lesson}"))
        ),
    )


@document_for(Operators)
def _operators(of: Operators) -> Document:
    if not of.operators:
        return Document("operators", "No operator is recorded.", warnings=of.warnings)
    first = of.operators[0]
    name = first.name.replace(_ENGINE, "autograd: ")
    return Document(
        "operators",
        f"Most host time of its own: {name}; {fmt_share(first.share)} of all operators'.",
        figure=f"{fmt_ms(first.self_us / 1e3 / max(of.n_steps, 1))} {a_step(of.n_steps)}",
        warnings=of.warnings,
        tables=(replace(_operators_table(of.operators, of.n_steps), open=True, brief=True),),
    )


def _operators_table(operators: Sequence[Operator], n_steps: int) -> Table:
    """The operators with the largest self time; figures per step, or in all of one step."""
    n = max(n_steps, 1)
    with_device = any(o.device_us for o in operators)
    header = ["operator", "self", "share", "with callees", "calls"]
    if with_device:
        header += ["device", "launches"]
    rows = []
    for o in operators[:_TOP_OPERATORS]:
        row = [
            o.name.replace(_ENGINE, "autograd: "),
            fmt_ms(o.self_us / 1e3 / n),
            fmt_share(o.share),
            fmt_ms(o.total_us / 1e3 / n),
            fmt_count(round(o.count / n, 1)),
        ]
        if with_device:
            row += [fmt_ms(o.device_us / 1e3 / n), fmt_count(round(o.n_launches / n, 1))]
        rows.append(tuple(row))
    top = f"{len(rows)} of {len(operators)}, " if len(operators) > len(rows) else ""
    return Table(
        title="Top operators",
        note=f"{top}host time {per_step(n_steps)}; share of all operators' self time",
        header=tuple(header),
        rows=tuple(rows),
        align="<" + ">" * (len(header) - 1),
        code="c" + "." * (len(header) - 1),
        brief=False,
    )


def _lines_table(lines: LineSamples, title: str) -> Table:
    """The source lines most often seen; below a framework, the package's own."""
    shown = lines.by_line()[:_TOP_LINES]
    rows = []
    for line in shown:
        code = line.source or line.function
        if line.is_inside:
            code = f"{line.inner_function}: {line.inner_text}"
        if line.mostly:
            code += f"  ({fmt_share(line.mostly_share)} in {line.mostly})"
        where = line.inner if line.is_inside else line.where
        within = "–".join(f"{100 * x:.0f}" for x in line.interval) + " %"
        rows.append((where, fmt_share(line.share), within, fmt_count(line.n_samples), code))
    below = dict.fromkeys(line.where for line in shown if line.is_inside)
    note = f"{plural(lines.n_samples, 'sample')}, {SAMPLES_PER_S:g} a second"
    if below:
        note += f"; lines of packages are called from {' and '.join(below)}"
    return Table(
        title=title,
        note=note,
        header=("line", "share", "95 %", "samples", "code"),
        rows=tuple(rows),
        align="<>>><",
        code="....c",
        brief=False,
    )


def line_tables(
    lines: LineSamples, of_workers: LineSamples, of_processes: LineSamples
) -> tuple[Table, ...]:
    """The lines of the code, of its DataLoader's workers, of other processes."""
    found = (
        (lines, "Top source lines"),
        (of_workers, "Lines of the DataLoader's workers"),
        (of_processes, "Lines of other processes that it started"),
    )
    return tuple(_lines_table(some, title) for some, title in found if some.lines)


def _syncs_tables(p: Profile) -> tuple[Table, ...]:
    if not p.syncs:
        return ()
    from perfkit.show.syncs import syncs_table

    return (syncs_table(p.syncs),)


@document_for(Breakdown)
def _breakdown(b: Breakdown) -> Document:
    shares = typical(b).breakdown.shares()
    largest = max(shares, key=lambda c: shares[c]) if any(shares.values()) else None
    return Document(
        name="breakdown",
        sentence=(
            f"Largest part of the step: {largest}, {fmt_share(shares[largest])}."
            if largest is not None
            else "No step was found."
        ),
        lines=_lines(_step_line(b)),
        warnings=b.warnings,
        bars=_bars(b),
        tables=_steps_tables(b),
    )


def _by_fetches(b: Breakdown) -> bool:
    return "DataLoader" in b.how_found


def _step_line(b: Breakdown, *, how: bool = True) -> str:
    """How many steps the figures are from, how they spread, and how they were found."""
    if not b.steps:
        return ""
    found = f", found by {b.how_found}" if how else ""
    steps_ms = [s.wall_ns / 1e6 for s in b.steps if not s.is_empty] or list(b.wall_ms)
    n, n_empty = len(steps_ms), len(b.steps) - len(steps_ms)
    if n_empty:
        found += f"; {n_empty} more in which nothing ran {'is' if n_empty == 1 else 'are'} left out"
    if n == 1:
        return f"One step profiled, so no interval: {fmt_ms(steps_ms[0])}{found}."
    return f"{n} steps profiled: {fmt_ms(min(steps_ms))} … {fmt_ms(max(steps_ms))}{found}."


def _bars(b: Breakdown, of: Profile | None = None) -> tuple[Bar, ...]:
    """Mean shares of typical steps, in the time of the step that is told; a host may run ahead."""
    if not b.steps:
        return ()
    chosen = typical(b)
    steps, words = chosen.breakdown, chosen.words
    host_ms = device_ms = statistics.fmean(steps.wall_ms)
    if of is not None:
        device_ms = of.diagnosis.step_ms
        host_ms = of.step.median if of.diagnosis.is_ahead else device_ms
        words = "all of it" if of.is_piece else f"shares: {words}"
    host = _segments(_without_unused(steps.shares()), host_ms)
    bars = [Bar(f"Host ({fmt_ms(host_ms)}; {words})", host)]
    if b.has_device:
        same = "the same " * (device_ms == host_ms)
        device = _segments(steps.device_shares() if of is None else of.device_shares, device_ms)
        bars.append(Bar(f"Device ({same}{fmt_ms(device_ms)})", device))
    return tuple(bars)


def _bar_of_all(p: Profile) -> tuple[Bar, ...]:
    """Classes of all steps of a run, in the time of the median one."""
    shares = p.whole or {}
    return (Bar(f"All steps (median {fmt_ms(p.step.median)})", _segments(shares, p.step.median)),)


def _host_parts(b: Breakdown) -> list[Mapping[str, int]]:
    used = _without_unused(b.shares())
    return [{name: ns for name, ns in s.host_ns.items() if name in used} for s in b.steps]


def _without_unused(host: Mapping[str, float]) -> dict[str, float]:
    """Only jobs of several processes have communication on the host."""
    return {name: share for name, share in host.items() if share or name != "communication"}


def _segments(shares: Mapping[str, float], whole_ms: float) -> tuple[Segment, ...]:
    return tuple(
        Segment(name, share * whole_ms, fmt_ms(share * whole_ms))
        for name, share in shares.items()
        if share
    )


def _steps_tables(b: Breakdown) -> tuple[Table, ...]:
    """One table per lane, in ms: together they would be too wide for a terminal."""
    if not b.steps:
        return ()
    tables = [_steps_table("Every step on the host", b, _host_parts(b))]
    if b.has_device:
        device = [dict(s.device_ns) for s in b.steps]
        tables.append(_steps_table("Every step on the device", b, device))
    return tuple(tables)


def _steps_table(title: str, b: Breakdown, parts_ns: Sequence[Mapping[str, int]]) -> Table:
    header = ("step", "whole", *parts_ns[0])
    rows = tuple(
        (_step_name(step.name), *(fmt_number(ns / 1e6) for ns in (step.wall_ns, *parts.values())))
        for step, parts in zip(b.steps, parts_ns, strict=True)
    )
    return Table(
        title=title,
        note="in ms",
        header=header,
        rows=rows,
        align="<" + ">" * (len(header) - 1),
        code="." * len(header),
        brief=False,
    )


def _step_name(name: str) -> str:
    """``step 4`` for the profiler's ``ProfilerStep#4``; other names as they are."""
    mark, _, number = name.partition("#")
    return f"step {number}" if mark == "ProfilerStep" and number.isdigit() else name
