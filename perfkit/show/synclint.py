"""What a list of syncs says."""

from __future__ import annotations

from perfkit.base.words import fmt_ms, plural
from perfkit.show.document import Document, Doubt, Finding, document_for
from perfkit.synclint.find import AS_PREDICTED, NOT_PREDICTED, NOT_SEEN, SyncLine, SyncLines

_MAIN_FINDINGS = 3


@document_for(SyncLine)
def _one(sync: SyncLine) -> Document:
    return Document(
        name="sync",
        sentence=f"{sync.place}: {sync.op}",
        findings=(_finding(sync),),
        findings_title="",
    )


@document_for(SyncLines)
def _all(syncs: SyncLines) -> Document:
    sentence = _measured(syncs) if syncs.is_measured else _sentence(syncs)
    headline = _headline(syncs)
    if syncs.ended_by:  # what came after that is not known
        sentence, headline = (
            f"Until {syncs.ended_by}: {said[0].lower()}{said[1:]}" for said in (sentence, headline)
        )
    found = tuple(map(_finding, syncs))
    return Document(
        name="sync lint",
        sentence=sentence,
        headline=headline,
        doubts=tuple(map(Doubt.of, syncs.warnings)),
        lines=(syncs.seen,) if syncs.seen else (),
        findings=found[:_MAIN_FINDINGS],
        findings_title="",
        more_findings=found[_MAIN_FINDINGS:],
        more_title="Other lines",
        foot=(syncs.provenance.sentence(),),
        kind="synclint",
    )


def _headline(syncs: SyncLines) -> str:
    n = len(syncs) - len(syncs.of(NOT_SEEN)) if syncs.is_measured else len(syncs)
    if syncs.is_measured:
        return f"The host waited on {plural(n, 'line') if n else 'no line'}."
    return f"{plural(n, 'line')} would make the host wait for a GPU." if n else _sentence(syncs)


def _finding(sync: SyncLine) -> Finding:
    below = f", called from {sync.below}" if sync.below else ""
    asked_for = (f"asked for in {sync.inside}",) if sync.inside else ()
    return Finding(
        title=f"{sync.place}{below}: {sync.op}",
        tag=_waited(sync),
        source=sync.code,
        facts=(sync.why, *asked_for, f"instead: {sync.instead}"),
        code=sync.example,
        lead="for example:" if sync.example else "",
    )


def _measured(syncs: SyncLines) -> str:
    """Where the host waited, and how many of the lines were predicted, in one sentence."""
    n = len(syncs) - len(syncs.of(NOT_SEEN))
    waits = f"The host waited on {plural(n, 'line') if n else 'no line'}"
    if n:
        waited_ms = sum(sync.waited_ms or 0.0 for sync in syncs)
        waits += f" ({fmt_ms(waited_ms)} in all, while watched)"
    counts = [(len(syncs.of(x)), x) for x in (AS_PREDICTED, NOT_PREDICTED, NOT_SEEN)]
    told = ", ".join(f"{count} {outcome}" for count, outcome in counts if count)
    return f"{waits}: {told}." if told else f"{waits}, as predicted."


def _sentence(syncs: SyncLines) -> str:
    """How many lines would wait, in one sentence."""
    if not syncs:
        line = "No line of what was seen" if syncs.seen else "No line of this code"
        return f"{line} would make the host wait for a GPU."
    n, times = len(syncs), sum(sync.count for sync in syncs)
    often = "once" if times == 1 else f"{times} times"
    where = "in what was seen" if syncs.seen else "in this run"
    copies = sum(sync.kind == "copy" for sync in syncs)
    more = ""
    if copies:
        of_them = "for a copy to it" if copies == n else f"{copies} of these lines for a copy to it"
        more += f", {of_them}"
    return f"{plural(n, 'line')} would make the host wait for a GPU, {often} {where}{more}."


def _waited(sync: SyncLine) -> str:
    """Say how often the line waited, and how long if it was traced: ``3 times, 1.2 ms in all``."""
    times = f"{sync.count} times" if sync.count > 1 else ""
    took = "" if sync.waited_ms is None else fmt_ms(sync.waited_ms)
    if took:
        took = f"{took} in all" if times else f"waited {took}"
    outcome = "" if sync.outcome == AS_PREDICTED else sync.outcome
    return ", ".join(filter(None, (times, took, outcome)))
