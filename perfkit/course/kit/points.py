"""The key points of a lesson, with the ledger's status of its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.course.kit._recorded import lesson_hashes, recorded_folders, taught_claims
from perfkit.course.kit.message import Message
from perfkit.course.ledger._figures import shown
from perfkit.course.ledger.claims import claims as known_claims
from perfkit.course.ledger.ledger import Row, ledger
from perfkit.course.ledger.records import Records, read_records


class KeyPoints:
    """What to remember from a lesson, as a list.

    Args:
        points: one or two sentences each.
        claims: ids of claims; the ledger's status and figure of each follow the points. These
            change with the records, so do not compare the output of such a cell. Where several
            lessons teach a claim, the record of the lesson that teaches all of these is shown.

    Raises:
        UsageError: there are no points, one is not a text, or a claim is not in the ledger.
    """

    def __init__(self, *points: str, claims: Sequence[str] = ()) -> None:
        if not points:
            raise UsageError("key points need at least one point")
        if isinstance(claims, str):
            raise UsageError(f"claims= is a list of ids: [{claims!r:.60}]")
        if not all(isinstance(text, str) for text in (*points, *claims)):
            raise UsageError("points and claims are texts")
        unknown = [claim for claim in claims if claim not in known_claims()]
        if unknown:
            raise UsageError(f"no claim {unknown[0]!r}; `perfkit claims` lists all")
        self.points = points
        self.claims = tuple(claims)

    def _messages(self) -> list[Message]:
        found = [Message("Key points", items=self.points)]
        if self.claims:
            taught = taught_claims()
            records = self._of_this_lesson(read_records(recorded_folders()), taught or {})
            rows = ledger(records, taught, lesson_hashes()).rows
            said = {row.claim.id: _said(row) for row in rows}
            found.append(
                Message("The ledger says", items=tuple(said[claim] for claim in self.claims))
            )
        return found

    def _of_this_lesson(self, found: Records, taught: Mapping[str, Sequence[str]]) -> Records:
        """Without other lessons' records of a claim, if the lesson of these points has its own."""
        teaching = [set(taught.get(claim, ())) for claim in self.claims]
        lessons = set.intersection(*teaching) if teaching else set()
        if len(lessons) != 1:
            return found
        number = lessons.pop()[:2]
        own = {one.claim for one in found.records if one.number == number}
        kept = (one for one in found.records if one.claim not in own or one.number == number)
        return Records(tuple(kept), found.refused)

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self._messages()))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        return "\n".join(message._repr_html_() for message in self._messages())


def _said(row: Row) -> str:
    figure = row.headline
    value = f", {shown(figure)}" if figure is not None else ""
    where = f", {row.records[0].source(figure)}" if figure is not None else ""
    if row.records and row.records[0] in row.older:
        where += ", older than the lesson"
    tested = f"; tested: {row.tested}" if row.tested else ""
    return f"{row.claim.id} ({row.claim.technique}): {row.status}{value}{where}{tested}"
