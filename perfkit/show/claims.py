"""How the claims ledger looks."""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.experiment.ledger import Ledger, Row
from perfkit.experiment.records import Record
from perfkit.show import _text
from perfkit.show._figures import shown

__all__ = ["html", "text"]

_PARTS = {"cpu": "CPU part", "gpu": "GPU part", "multi": "several GPUs"}
_STATUS_WIDTH = 29
# The mark beside the status in HTML: only where the claim was tested as the source means it.
_TONES = {"holds here": "yes", "holds": "yes", "does not hold here": "no", "does not hold": "no"}


@dataclass(frozen=True)
class _RowView:
    """What is said of a row, for both forms."""

    id: str
    lesson: str
    taught: bool
    status: str
    tone: str
    technique: str
    source: str
    measured: str
    today: str
    figure: str
    sentence: str
    where: str
    notes: tuple[str, ...]


def text(ledger: Ledger) -> str:
    """The plain-text form: a line a claim, and under those with a record what it says."""
    lines = [_title(ledger), _summary(ledger), ""]
    for view in map(_view, ledger.rows):
        lead = f"{view.id:<4} {view.lesson:<6} {view.status:<{_STATUS_WIDTH}}  "
        lines.append(lead + _text.clip(view.technique, _text.WIDTH - len(lead)))
        said = "; ".join(part for part in (view.figure, view.where, *view.notes) if part)
        if said:
            lines.append(_text.wrap(said, indent=" " * 12))
    lines += ["", *_text.notes(ledger.refused)]
    lines.append(_foot(ledger))
    return "\n".join(lines)


def html(ledger: Ledger) -> str:
    """The HTML form."""
    from perfkit.show._html import render

    return render(
        "claims.html",
        title=_title(ledger),
        summary=_summary(ledger),
        rows=[_view(row) for row in ledger.rows],
        warnings=ledger.refused,
        foot=_foot(ledger),
    )


def _title(ledger: Ledger) -> str:
    return f"perfkit claims: {len(ledger.rows)} claims, and what the records say of them"


def _summary(ledger: Ledger) -> str:
    return "; ".join(f"{status}: {n}" for status, n in ledger.counts().items())


def _foot(ledger: Ledger) -> str:
    return f"Here: {', '.join(ledger.here)}. A status comes from records only: perfkit record."


def _view(row: Row) -> _RowView:
    claim = row.claim
    figure = row.headline
    first = row.records[0] if row.records else None
    return _RowView(
        id=claim.id,
        lesson=", ".join(claim.lessons),
        taught=bool(row.taught_in) or row.taught_in is None,
        status=row.status,
        tone=_TONES.get(row.status, "open"),
        technique=claim.technique,
        source=claim.source_figure,
        measured=claim.measured,
        today=claim.today,
        figure=shown(figure) if figure is not None else "",
        sentence=first.outcome.sentence if first is not None else "",
        where=_where(first) if first is not None else "",
        notes=tuple(_notes(row)),
    )


def _where(record: Record) -> str:
    outcome = record.outcome
    return f"{record.source(outcome.figures[outcome.headline])}, {record.date}"


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
        notes.append(f"lesson {other.number} {says}, {_where(other)}")
    if row.taught_in is not None and not row.taught_in:
        notes.append("not yet taught")
    notes += row.records[0].warnings
    return notes
