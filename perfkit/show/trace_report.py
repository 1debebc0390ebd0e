"""What a trace report says: the profile, and the ranks before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfkit.advice.open_trace import OpenTrace, Questions
from perfkit.advice.trace_report import TraceReport
from perfkit.base.printable import printable
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.show import profile, syncs, trace_answers  # noqa: F401 - they tell what its parts say
from perfkit.show.document import Document, Table, document_for, registered

_RANKS_HEADER = ("rank", "file", "bound by", "step", "compute", "communication", "idle")
# Of a hundred ranks, those that the others wait for and the slowest say what there is to say.
_MOST_RANKS = 16


@document_for(TraceReport)
def _report(of: TraceReport) -> Document:
    if of.diff is not None:  # what was asked for is the answer; the file by itself comes after it
        alone = _report(replace(of, diff=None))
        compared = f"From {_name(of.other)} (before) to {_name(of.file)} (after)."
        diff = _needed(of.diff)
        return replace(diff, name=alone.name, sections=(alone,), foot=(*diff.foot, compared))
    others = () if of.comparison is None else (_needed(of.comparison),)
    ranks = Table(_RANKS_HEADER, _ranks(of), title="All ranks", align="><<>>>>", open=True)
    told = _needed(of.profile)
    which = f"{_head(of)}. {_chosen(of)}" if of.ranks else f"{_head(of)}."
    return replace(
        told,
        name=f"trace {_name(of.file)}",
        lines=(which, *told.lines),
        tables=(ranks, *told.tables, _more_answers(of)),
        sections=others,
        kind="",
    )


@document_for(OpenTrace)
def _open_trace(of: OpenTrace) -> Document:
    report = _report(TraceReport(of.file, of.profile))
    return report if of.file else replace(report, name="trace")


@document_for(Questions)
def _questions(of: Questions) -> Document:
    return Document(
        "questions to a trace",
        f"{len(of.names)} questions: `perfkit trace FILE --ask NAME`, or in Python "
        '`perfkit.open_trace(FILE).ask("NAME")`.',
        tables=(_questions_table(of),),
    )


def _questions_table(of: Questions) -> Table:
    return Table(
        ("name", "question", "options in Python"),
        tuple(zip(of.names, of.asks, of.options, strict=True)),
        title="More answers",
        note="--ask NAME",
        align="<<<",
        code="c.c",
        open=True,
    )


def _more_answers(of: TraceReport) -> Table:
    """What else the trace can tell, behind the first screen: the answers, or how to ask."""
    how = "more of each: `perfkit trace FILE --ask NAME`, or `perfkit.open_trace(FILE)` in Python"
    if not of.answers:
        return replace(_questions_table(Questions.all()), note=how, open=False, brief=False)
    import perfkit.show.limit  # noqa: F401 - its document is one of the answers'

    rows = tuple((name, _needed(answer).sentence) for name, answer in of.answers.items())
    return Table(
        ("name", "answer"), rows, title="More answers", note=how, align="<<", code="c.",
        brief=False, wrap=True,
    )  # fmt: skip


def _needed(result: Any) -> Document:
    said = registered(result)
    if said is None:  # all three are results of perfkit
        raise TypeError(f"{type(result).__name__} has no document")
    return said


def _name(file: str) -> str:
    return printable(Path(file).name)


def _head(of: TraceReport) -> str:
    name = _name(of.file)
    if not of.ranks:
        return f"{name}: {plural(len(of.profile.trace), 'event')}"
    shown = (
        f"; shown are the {_MOST_RANKS} that the others wait for or that are slowest"
        if len(of.ranks) > _MOST_RANKS
        else ""
    )
    return f"{len(of.ranks)} ranks: {name} and {len(of.ranks) - 1} more{shown}"


def _chosen(of: TraceReport) -> str:
    name = _name(of.file)
    waits = "communication" in of.profile.breakdown.device_shares()
    late = of.comparison.stragglers if of.comparison is not None else ()
    why = (
        "the others wait for it"
        if late
        else "it waits least for the others"
        if waits
        else "the slowest of them"
    )
    return f"Explained: {name} ({why})."


def _ranks(of: TraceReport) -> tuple[tuple[str, ...], ...]:
    rows = []
    late = of.comparison.stragglers if of.comparison is not None else ()
    first = sorted(
        range(len(of.ranks)),
        key=lambda i: (
            of.ranks[i]["file"] != of.file,
            of.ranks[i]["rank"] not in late,
            -of.ranks[i]["step_ms"]["median"],
        ),
    )
    for rank in (of.ranks[i] for i in sorted(first[:_MOST_RANKS])):
        device = rank["device_shares"]
        rows.append(
            (
                "–" if rank["rank"] is None else str(rank["rank"]),
                _name(rank["file"]),
                rank["bound_by"],
                fmt_ms(rank["step_ms"]["median"]),
                *(fmt_share(device.get(c)) for c in ("compute", "communication", "idle")),
            )
        )
    return tuple(rows)
