"""What a list of syncs says, and a comparison of prediction with reality."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.base.words import fmt_ms
from perfkit.show.document import Document, Finding, Table, document_for
from perfkit.synclint.find import SyncLine, SyncLines
from perfkit.synclint.reality import SyncCheck


@document_for(SyncLine)
def _one(sync: SyncLine) -> Document:
    return Document(
        name="sync",
        sentence=f"{sync.place}: {sync.op}",
        findings=(_finding(sync),),
        findings_title="",
    )


@document_for(SyncLines)
@document_for(SyncCheck)
def _all(obj: SyncLines | SyncCheck) -> Document:
    differences: tuple[tuple[str, Sequence[SyncLine]], ...] = ()
    if isinstance(obj, SyncCheck):
        differences = (
            ("Happened, and was not predicted", obj.only_happened),
            ("Predicted, and did not happen here", obj.only_predicted),
        )
    return Document(
        name="sync lint",
        sentence=_until(obj, _sentence(obj)),
        lines=tuple(filter(None, (_seen(obj),))),
        warnings=tuple(obj.warnings),
        findings=tuple(map(_finding, obj.happened if isinstance(obj, SyncCheck) else obj)),
        findings_title="",
        tables=tuple(
            Table(
                ("line", "code"),
                tuple((sync.place, sync.code) for sync in syncs),
                title=title,
                note=str(len(syncs)),
                align="<<",
                code=".c",
                open=True,
            )
            for title, syncs in differences
        ),
        foot=(obj.provenance.sentence(),),
        kind="synclint",
    )


def _finding(sync: SyncLine) -> Finding:
    asked_for = (f"asked for in {sync.inside}",) if sync.inside else ()
    return Finding(
        title=f"{sync.place}, called from {sync.below}" if sync.below else sync.place,
        tag=_waited(sync),
        source=sync.code,
        facts=(f"{sync.op}: {sync.why}", *asked_for, f"instead: {sync.instead}"),
        code=sync.example,
        lead="for example:" if sync.example else "",
    )


def _seen(obj: SyncLines | SyncCheck) -> str:
    """Say which part of the program was watched; empty where it was all."""
    return obj.predicted.seen if isinstance(obj, SyncCheck) else obj.seen


def _until(obj: SyncLines | SyncCheck, sentence: str) -> str:
    """The sentence, of code that an exception ended: what came after that is not known."""
    ended_by = obj.predicted.ended_by if isinstance(obj, SyncCheck) else obj.ended_by
    return f"Until {ended_by}: {sentence[0].lower()}{sentence[1:]}" if ended_by else sentence


def _sentence(obj: SyncLines | SyncCheck) -> str:
    """The result in one sentence."""
    if isinstance(obj, SyncCheck):
        return obj.sentence
    if not obj:
        line = "No line of what was seen" if _seen(obj) else "No line of this code"
        return f"{line} would make the host wait for a GPU."
    n, times = len(obj), sum(sync.count for sync in obj)
    lines = "1 line" if n == 1 else f"{n} lines"
    often = "once" if times == 1 else f"{times} times"
    where = "in what was seen" if _seen(obj) else "in this run"
    copies = sum(sync.kind == "copy" for sync in obj)
    more = ""
    if copies:
        of_them = "for a copy to it" if copies == n else f"{copies} of these lines for a copy to it"
        more += f", {of_them}"
    return f"{lines} would make the host wait for a GPU, {often} {where}{more}."


def _waited(sync: SyncLine) -> str:
    """Say how often the line waited, and how long if it was traced: ``3 times, 1.2 ms in all``."""
    times = f"{sync.count} times" if sync.count > 1 else ""
    if sync.waited_ms is None:
        return times
    took = fmt_ms(sync.waited_ms)
    return f"{times}, {took} in all" if times else f"waited {took}"
