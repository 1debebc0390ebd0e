"""What a claim in a lesson says, and what a cell that settles it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.course.ledger._figures import shown, shown_undecided, timed, undecided
from perfkit.course.ledger.ledger import status_of
from perfkit.course.ledger.records import Record
from perfkit.show.document import Cell, Document, Table

if TYPE_CHECKING:
    from perfkit.course.ledger.recording import Figure
    from perfkit.course.ledger.settle import LessonClaim, Settled

#: The type of the JSON that a settling cell's output carries.
KIND = "settled"

_HEADER = ("where", "verdict", "figure", "origin")


def claim_document(one: LessonClaim) -> Document:
    """The claim, when it holds, and what was recorded of it."""
    claim = one.claim
    figure = f"The source: {claim.source_figure}." if claim.source_figure else ""
    tested = tuple(f"Tested instead ({part}): {what}." for part, what in claim.tested.items())
    lines = (
        figure,
        f"Measured here: {one.criterion.title}.",
        *tested,
        f"It holds if {one.criterion.holds_if}.",
    )
    rows = tuple(map(_record, one.records))
    return Document(
        name=f"claim {claim.id}",
        sentence=f"{claim.id}: {claim.technique}",
        lines=tuple(filter(None, lines)),
        tables=(Table(_HEADER, rows, title="Recorded", open=True),) if rows else (),
        foot=() if rows else ("No record of this lesson: perfkit record.",),
    )


def settled_document(one: Settled) -> Document:
    """The verdict, and the own figure beside the recorded ones."""
    outcome = one.outcome
    said = one.why
    if outcome is not None:
        decides = outcome.holds is not None
        said = outcome.sentence if decides else f"Not decided: {undecided(outcome)}"
    warnings = []
    if one.provenance.kind == "played":
        warnings.append("a played GPU ran this: counts and bytes are true, times are not a GPU's")
    if one.budget_scale < 1 and outcome is not None and timed(outcome):
        warnings.append(
            f"measured with {one.budget_scale:g} of the usual budget: expect wide intervals"
        )
    rows = (_own(one), *map(_record, one.records))
    lines: tuple[str, ...] = (said, f"It holds if {one.criterion.holds_if}.")
    if one.tested:
        lines += (f"Tested instead of what the source means: {one.tested}.",)
    return Document(
        name=f"claim {one.claim.id}",
        sentence=f"{one.claim.id} ({one.claim.technique}): {one.verdict}",
        headline=f"{one.claim.id}: {one.verdict}.",
        lines=tuple(filter(None, lines)),
        warnings=tuple(warnings),
        tables=(Table(_HEADER, rows, title="Here and recorded", open=True),),
        kind=KIND,
    )


def _own(one: Settled) -> tuple[str | Cell, ...]:
    figure = one.headline
    if figure is None:
        return ("this run", one.verdict, "–", "–")
    value = shown_undecided(figure) if one.verdict == "not decided" else shown(figure)
    return ("this run", one.verdict, value, _origin_now(one, figure))


def _origin_now(one: Settled, figure: Figure) -> str:
    if one.provenance.kind == "played":
        return "played"
    if figure.kind in ("simulated", "predicted"):
        return figure.kind
    return "counted here" if figure.kind == "exact" else "measured here"


def _record(one: Record) -> tuple[str | Cell, ...]:
    figure = one.outcome.figures[one.outcome.headline]
    where = "this machine" if one.is_here else one.device.name
    return (f"{where}, {one.date}", status_of(one), shown(figure), _origin(one))


def _origin(one: Record) -> str:
    figure = one.outcome.figures[one.outcome.headline]
    return figure.kind if figure.kind in ("simulated", "predicted") else "recorded"
