"""What the claims ledger says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.course.ledger._figures import shown
from perfkit.show.document import Cell, Document, Table

if TYPE_CHECKING:
    from perfkit.course.ledger.ledger import Ledger, Row
    from perfkit.course.ledger.records import Record

__all__ = ["ledger_document"]

_PARTS = {"cpu": "CPU part", "gpu": "GPU part", "multi": "several GPUs"}
# The mark beside the status: only where the claim was tested as the source means it.
_MARKS = {"holds here": "✓", "holds": "✓", "does not hold here": "✗", "does not hold": "✗"}


def ledger_document(ledger: Ledger) -> Document:
    """What the ledger says: a table of the claims, each with its status and its records."""
    return Document(
        name="claims ledger",
        sentence=_title(ledger),
        lines=(_summary(ledger),),
        warnings=ledger.refused,
        tables=(
            Table(
                ("claim", "lesson", "status", "what is advised, and what the records say"),
                tuple(map(_row, ledger.rows)),
                title="Claims",
                align="<<<<",
                open=True,
                wrap=True,
                anchors=tuple(f"claim-{row.claim.id}" for row in ledger.rows),
            ),
        ),
        foot=(_foot(ledger),),
    )


def _title(ledger: Ledger) -> str:
    return f"perfkit claims: {len(ledger.rows)} claims, and what the records say of them"


def _summary(ledger: Ledger) -> str:
    return "; ".join(f"{status}: {n}" for status, n in ledger.counts().items())


def _foot(ledger: Ledger) -> str:
    return f"Here: {', '.join(ledger.here)}. A status comes from records only: perfkit record."


def _row(row: Row) -> tuple[str | Cell, ...]:
    claim, figure = row.claim, row.headline
    said: tuple[str, ...] = ()
    if row.records:
        first = row.records[0]
        measured = "" if figure is None else shown(figure)
        where = "; ".join(filter(None, (measured, _where(first, row), *_notes(row))))
        said = (where, first.outcome.sentence)
    behind = (
        f"The source: {claim.source_figure}" if claim.source_figure else "",
        f"{claim.measured}.",
        f"Today: {claim.today}." if claim.today else "",
    )
    return (
        claim.id,
        ", ".join(claim.lessons),
        " ".join(filter(None, (_MARKS.get(row.status, ""), row.status))),
        Cell(
            claim.technique,
            small=tuple(filter(None, said)),
            fold="what is measured",
            folded=tuple(filter(None, behind)),
        ),
    )


def _where(record: Record, row: Row) -> str:
    outcome = record.outcome
    older = ", older than the lesson" if record in row.older else ""
    return f"{record.source(outcome.figures[outcome.headline])}, {record.date}{older}"


def _notes(row: Row) -> list[str]:
    if not row.records:
        return []
    notes = [f"tested: {row.tested}"] if row.tested else []
    for part in row.not_recorded:
        detail = row.claim.where[part]
        notes.append(f"{_PARTS[part]}{f' ({detail})' if detail else ''} not recorded")
    for other in row.records[1:]:
        outcome = other.outcome
        says = "holds" if outcome.holds else "does not hold"
        notes.append(f"lesson {other.number} {says}, {_where(other, row)}")
    if row.taught_in is not None and not row.taught_in:
        notes.append("not yet taught")
    notes += row.records[0].warnings
    return notes
