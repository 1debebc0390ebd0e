"""A profile and a breakdown as text and as HTML.

The content is worked out once, in :func:`_view`; the two forms only lay it out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.advice.findings import Finding, gain_words
from perfkit.advice.profile import Profile
from perfkit.advice.typical import typical
from perfkit.show import strip as step_strip
from perfkit.show._bar import Segment, bar, text_bar
from perfkit.show._lesson import lesson_here
from perfkit.show._text import one_sentence, table, wrap
from perfkit.show._view import FindingView, LaneView, ProfileView, TableView
from perfkit.trace.breakdown import Breakdown
from perfkit.trace.lines import LineSamples
from perfkit.trace.operators import Operator
from perfkit.trace.syncs import Sync
from perfkit.words import fmt_chosen_share, fmt_count, fmt_ms, fmt_number, fmt_share, plural

__all__ = ["brief", "html", "text"]

# More than three things to change at once help nobody; the rest is one click away.
_MAIN_FINDINGS = 3
_TOP_OPERATORS = 10
_TOP_LINES = 10

# What the engine puts before the name of each of its functions; in a narrow table it hides them.
_ENGINE = "autograd::engine::evaluate_function: "

# One look per class everywhere, so that a reader learns it once. Neighbours in the order of
# the classes differ in lightness as well as in hue, waiting and idling are patterned.
_LOOKS = {
    "data wait": "orange",
    "forward": "sky",
    "backward": "blue",
    "optimizer": "green",
    "sync": "vermilion",
    "copy": "yellow",
    "other": "grey",
    "compute": "blue",
    "communication": "purple",
    "idle": "hollow",
}


def text(obj: Any) -> str:
    """Plain text of a Profile or Breakdown, at most 96 columns wide; ``repr`` of others."""
    if isinstance(obj, Profile):
        return _as_text(_view(obj))
    if isinstance(obj, Breakdown):
        return _as_text(_breakdown_view(obj))
    return repr(obj)


def brief(obj: Any) -> str:
    """The first screen of :func:`text`: the sentence, the bars and at most three findings."""
    if isinstance(obj, Profile):
        return _as_brief_text(_view(obj))
    return text(obj)


def html(obj: Any) -> str:
    """HTML of a Profile or Breakdown: self-contained, escaped, without scripts."""
    from markupsafe import Markup

    from perfkit.show._html import render, render_string

    if isinstance(obj, Profile):
        view = _view(obj)
    elif isinstance(obj, Breakdown):
        view = _breakdown_view(obj)
    else:
        return render_string("<pre>{{ shown }}</pre>", shown=repr(obj))
    # bar() escapes what it is given: its result is markup
    lanes = [Markup(bar(lane.title, lane.segments)) for lane in view.lanes]
    # so does figure()
    strip = Markup(step_strip.figure(view.strip))
    return render("profile.html", view=view, lanes=lanes, strip=strip)


# ---- the content -------------------------------------------------------------------------


def _view(p: Profile) -> ProfileView:
    findings = tuple(_finding_view(f) for f in p.diagnosis.findings)
    n_main = 0 if p.diagnosis.is_tentative else _MAIN_FINDINGS
    return ProfileView(
        sentence=p.diagnosis.headline,
        # the marks of a recording are perfkit's own: that they were found says nothing
        step_line=" ".join(
            filter(
                None,
                (
                    p.diagnosis.no_cure,
                    _step_line(p.breakdown, how=p.cost is None or _by_fetches(p.breakdown)),
                    "" if p.coverage is None else p.coverage.sentence(),
                ),
            )
        ),
        warnings=tuple(dict.fromkeys((*p.warnings, *_step_notes(p)))),
        lanes=_lanes(p.breakdown),
        strip=step_strip.strip_of(p.trace),
        findings=findings[:n_main],
        more_findings=findings[n_main:],
        tables=(
            _operators_table(p.operators, len(p.breakdown.steps)),
            _lines_table(p.lines),
            _syncs_table(p.syncs),
            *_steps_tables(p.breakdown),
        ),
        foot=(*(() if p.cost is None else (p.cost.sentence(),)), p.provenance.sentence()),
    )


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
            note = note.replace(": warm up first", ": raise -w (warm-up steps)")
            note = note.replace("of the others", "of the other steps")
        notes.append(note)
    return tuple(notes)


def _finding_view(f: Finding) -> FindingView:
    return FindingView(
        title=f.title,
        gain=gain_words(f.gain_at_most) if f.has_bound else "",
        evidence=tuple(f.evidence),
        what_to_do=f.what_to_do.strip("\n"),
        formula=f.formula,
        lesson=lesson_here(f.lesson),
        line=f.line or "",
    )


def _operators_table(operators: Sequence[Operator], n_steps: int) -> TableView:
    """The operators with the largest self time; figures per step."""
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
    return TableView(
        title="Top operators",
        note=f"{top}host time per step; share of all operators' self time",
        header=tuple(header),
        rows=tuple(rows),
        align="<" + ">" * (len(header) - 1),
        code="c" + "." * (len(header) - 1),
    )


def _lines_table(lines: LineSamples) -> TableView:
    """The source lines most often seen; below a framework, the package's own."""
    shown = lines.by_line()[:_TOP_LINES]
    rows = []
    for line in shown:
        code = line.source or line.function
        if line.is_inside:
            code = f"{line.inner_function}: {line.inner_text}"
        where = line.inner if line.is_inside else line.where
        rows.append((where, fmt_share(line.share), fmt_count(line.n_samples), code))
    below = dict.fromkeys(line.where for line in shown if line.is_inside)
    note = f"{fmt_count(lines.n_samples)} samples, {lines.samples_per_s:g} a second"
    if below:
        note += f"; lines of packages are called from {' and '.join(below)}"
    return TableView(
        title="Top source lines",
        note=note,
        header=("line", "share", "samples", "code"),
        rows=tuple(rows),
        align="<>><",
        code="...c",
    )


def _syncs_table(syncs: Sequence[Sync]) -> TableView:
    """What made the host wait for the device."""
    rows = tuple(
        (
            _made_by(sync),
            sync.call,
            sync.copy.removeprefix("Memcpy "),
            fmt_count(round(sync.per_step, 1)),
            fmt_ms(sync.cost_us / 1e3 / max(sync.n_steps, 1)),
        )
        for sync in syncs[:_TOP_OPERATORS]
    )
    return TableView(
        title="Host-device syncs",
        note="calls and host time per step",
        header=("operator", "call", "copy", "calls", "host waits"),
        rows=rows,
        align="<<<>>",
        code="cc...",
    )


def _made_by(sync: Sync) -> str:
    """The operator, and the label around it: one operator may sync in several places."""
    label = next((name.strip("# ") for name in reversed(sync.ops) if "::" not in name), "")
    if not sync.op:
        # Labels that are paths differ at their end.
        return f"…{label[-22:]}" if len(label) > 23 else label or "(no operator)"
    return f"{sync.op} in {label}" if label else sync.op


def _breakdown_view(b: Breakdown) -> ProfileView:
    shares = typical(b).breakdown.shares()
    largest = max(shares, key=lambda c: shares[c]) if any(shares.values()) else None
    return ProfileView(
        sentence=(
            f"Largest part of the step: {largest}, {fmt_share(shares[largest])}."
            if largest is not None
            else "No step was found."
        ),
        step_line=_step_line(b),
        warnings=b.warnings,
        lanes=_lanes(b),
        strip=None,
        findings=(),
        more_findings=(),
        tables=_steps_tables(b),
        foot=(),
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


def _lanes(b: Breakdown) -> tuple[LaneView, ...]:
    """Mean time per class over typical steps: means add up to a step, medians would not."""
    if not b.steps:
        return ()
    chosen = typical(b)
    steps = chosen.breakdown
    mean_ms = statistics.fmean(steps.wall_ms)
    host = _without_unused(steps.shares())
    lanes = [LaneView(f"Host ({fmt_ms(mean_ms)}, {chosen.words})", _segments(host, mean_ms))]
    if b.has_device:
        device = _segments(steps.device_shares(), mean_ms)
        lanes.append(LaneView(f"Device (the same {fmt_ms(mean_ms)})", device))
    return tuple(lanes)


def _host_parts(b: Breakdown) -> list[Mapping[str, int]]:
    used = _without_unused(b.shares())
    return [{name: ns for name, ns in s.host_ns.items() if name in used} for s in b.steps]


def _without_unused(host: Mapping[str, float]) -> dict[str, float]:
    """Only jobs of several processes have communication on the host."""
    return {name: share for name, share in host.items() if share or name != "communication"}


def _segments(shares: Mapping[str, float], whole_ms: float) -> tuple[Segment, ...]:
    return tuple(
        Segment(name, share * whole_ms, fmt_ms(share * whole_ms), _LOOKS.get(name, "grey"))
        for name, share in shares.items()
    )


def _steps_tables(b: Breakdown) -> tuple[TableView, ...]:
    """One table per lane, in ms: together they would be too wide for a terminal."""
    if not b.steps:
        return ()
    tables = [
        _steps_table("Every step on the host", b, _host_parts(b)),
    ]
    if b.has_device:
        device = [dict(s.device_ns) for s in b.steps]
        tables.append(_steps_table("Every step on the device", b, device))
    return tuple(tables)


def _steps_table(title: str, b: Breakdown, parts_ns: Sequence[Mapping[str, int]]) -> TableView:
    header = ("step", "whole", *parts_ns[0])
    rows = tuple(
        (_step_name(step.name), *(fmt_number(ns / 1e6) for ns in (step.wall_ns, *parts.values())))
        for step, parts in zip(b.steps, parts_ns, strict=True)
    )
    return TableView(
        title=title,
        note="in ms",
        header=header,
        rows=rows,
        align="<" + ">" * (len(header) - 1),
        code="." * len(header),
    )


def _step_name(name: str) -> str:
    """``step 4`` for the profiler's ``ProfilerStep#4``; other names as they are."""
    mark, _, number = name.partition("#")
    return f"step {number}" if mark == "ProfilerStep" and number.isdigit() else name


# ---- as plain text -----------------------------------------------------------------------


def _as_brief_text(view: ProfileView) -> str:
    more = [t.title.partition(" (")[0].lower() for t in view.tables if t.rows]
    if view.more_findings:
        more.insert(0, plural(len(view.more_findings), "more finding"))
    blocks = [*_lead(view), *_main_findings(view), *_foot(view)]
    if more:
        blocks.append(wrap(f"More with -v or print(): {', '.join(more)}.", hang="  "))
    return "\n\n".join(blocks)


def _as_text(view: ProfileView) -> str:
    blocks = _lead(view)
    if view.strip is not None:
        blocks.append(step_strip.text(view.strip, inline=True))
    blocks += _main_findings(view)
    if view.more_findings:
        titles = [
            wrap(f"{f.title}, {f.gain}", indent="  - ", hang="    ") for f in view.more_findings
        ]
        head = "Also found" if view.findings else "Found, but measure again first"
        blocks.append("\n".join([head, *titles]))
    blocks += [_table_text(t) for t in view.tables if t.rows]
    return "\n\n".join([*blocks, *_foot(view)])


def _lead(view: ProfileView) -> list[str]:
    bars = [f"{lane.title}\n{text_bar('class', lane.segments)}" for lane in view.lanes]
    return ["\n".join(_head(view)), *bars]


def _main_findings(view: ProfileView) -> list[str]:
    if not view.findings:
        return []
    shown = [_finding_text(i, f) for i, f in enumerate(view.findings, 1)]
    return ["What to do\n\n" + "\n\n".join(shown)]


def _foot(view: ProfileView) -> list[str]:
    return ["\n".join(wrap(line, hang="  ") for line in view.foot)] if view.foot else []


def _head(view: ProfileView) -> list[str]:
    lines = [wrap(view.sentence)]
    if view.step_line:
        lines.append(wrap(view.step_line))
    if view.warnings:
        lines.append(wrap(f"Note: {one_sentence(view.warnings)}", hang="  "))
    return lines


def _finding_text(number: int, f: FindingView) -> str:
    lines = [wrap(f"{number}. {f.title}" + (f" ({f.gain})" if f.gain else ""), hang="   ")]
    lines += [wrap(fact, indent="   - ", hang="     ") for fact in f.evidence]
    if f.line:
        lines.append(wrap(f"at {f.line}", indent="   - ", hang="     "))
    # code is never wrapped: a broken line is broken code
    lines += ["", *(f"       {line}".rstrip() for line in f.what_to_do.splitlines()), ""]
    if f.formula:
        lines.append(wrap(f.formula, indent="   ", hang="   "))
    if f.lesson:
        lines.append(wrap(f"lesson {f.lesson}", indent="   ", hang="   "))
    return "\n".join(lines).rstrip()


def _table_text(t: TableView) -> str:
    title = t.title + (f" ({t.note})" if t.note else "")
    return f"{wrap(title)}\n{table(t.header, t.rows, align=t.align)}"
