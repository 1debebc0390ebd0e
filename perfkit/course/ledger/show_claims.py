"""What the claims ledger says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit.course.ledger._figures import shown
from perfkit.show.document import Bar, Cell, Document, Segment, Table

if TYPE_CHECKING:
    from perfkit.course.ledger.ledger import Ledger, Row
    from perfkit.course.ledger.records import Record

_PARTS = {"cpu": "CPU part", "gpu": "GPU part", "multi": "several GPUs"}
# The mark beside the status: only where the claim was tested as the source means it.
_MARKS = {"holds here": "✓", "holds": "✓", "does not hold here": "✗", "does not hold": "✗"}
# what the page counts, in its order
_GROUPS = (
    "holds",
    "holds, with a caveat",
    "does not hold",
    "does not hold, with a caveat",
    "needs a GPU",
    "no record yet",
)


def ledger_document(ledger: Ledger) -> Document:
    """What the ledger says: how many claims hold, those that do not, then all by lesson.

    On a page the lessons are folded, so that the first two parts are what one reads.
    """
    by_lesson: dict[str, list[Row]] = {}
    for row in sorted(ledger.rows, key=lambda row: row.claim.lessons[0]):
        by_lesson.setdefault(row.claim.lessons[0], []).append(row)
    return Document(
        name="claims ledger",
        sentence=_title(ledger.rows),
        lines=tuple(filter(None, (_caveats(ledger.rows),))),
        warnings=ledger.refused,
        bars=_bars(ledger.rows),
        tables=(
            _fallen([row for row in ledger.rows if row.status.startswith("does not hold")]),
            *(_of_lesson(lesson, rows) for lesson, rows in by_lesson.items()),
        ),
        foot=(_summary(ledger), _foot(ledger)),
    )


def _group(row: Row) -> str:
    status = row.status
    if "hold" in status:
        word = "does not hold" if status.startswith("does not") else "holds"
        return f"{word}, with a caveat" if "," in status else word
    return "needs a GPU" if status.startswith("needs") else "no record yet"


def _counted(rows: Sequence[Row]) -> dict[str, int]:
    found = Counter(map(_group, rows))
    return {group: found[group] for group in _GROUPS if found[group]}


def _title(rows: Sequence[Row]) -> str:
    found = Counter(map(_group, rows))
    holds = found["holds"] + found["holds, with a caveat"]
    falls = found["does not hold"] + found["does not hold, with a caveat"]
    gpu, none = found["needs a GPU"], found["no record yet"]
    return (
        f"{_many(len(rows), 'claim')}: {holds} {_verb(holds, 'hold')}, {falls} "
        f"{_verb(falls, 'do')} not, {gpu} {_verb(gpu, 'need')} a GPU, {none} "
        f"{_verb(none, 'have')} no record yet"
    )


def _many(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _verb(n: int, plural: str) -> str:
    singular = {"hold": "holds", "do": "does", "need": "needs", "have": "has"}
    return singular[plural] if n == 1 else plural


def _caveats(rows: Sequence[Row]) -> str:
    found = Counter(map(_group, rows))
    n = found["holds, with a caveat"] + found["does not hold, with a caveat"]
    if not n:
        return ""
    return (
        f"{n} of the verdicts {_verb(n, 'have')} a caveat in the status: “as tested” means that "
        "something else was tested than the source means, and the row says what; “simulated” and "
        "“predicted” are what the figure is."
    )


def _summary(ledger: Ledger) -> str:
    return "; ".join(f"{status}: {n}" for status, n in ledger.counts().items())


def _bars(rows: Sequence[Row]) -> tuple[Bar, ...]:
    counted = _counted(rows)
    if len(counted) < 2:
        return ()
    segments = tuple(Segment(group, n, str(n)) for group, n in counted.items())
    return (Bar("Claims", segments, parts="verdict", quantity="claims"),)


def _fallen(rows: Sequence[Row]) -> Table:
    return Table(
        ("claim", "taught in", "what was found"),
        tuple(
            (
                row.claim.id,
                f"lesson {row.records[0].number}",
                Cell(row.claim.technique, small=(row.records[0].outcome.sentence,)),
            )
            for row in rows
        ),
        title="What does not hold",
        align="<<<",
        open=True,
        wrap=True,
    )


def _of_lesson(lesson: str, rows: Sequence[Row]) -> Table:
    said = "; ".join(f"{group}: {n}" for group, n in _counted(rows).items())
    return Table(
        ("claim", "status", "what is advised, and what the records say"),
        tuple(map(_row, rows)),
        title=f"Lesson {lesson}: {_topics().get(lesson, 'a lesson')}",
        note=said,
        align="<<<",
        wrap=True,
        anchors=tuple(f"claim-{row.claim.id}" for row in rows),
    )


@cache
def _topics() -> dict[str, str]:
    """Lesson → what it is about, as its folder says."""
    found = {}
    for folder in (Path(__file__).parents[1] / "lessons").glob("lesson_*_*"):
        _, number, topic = folder.name.split("_", 2)
        found[number] = topic.replace("_", " ").replace("cpu", "CPU")
    return found


def _foot(ledger: Ledger) -> str:
    return f"Here: {', '.join(ledger.here)}. A status comes from records only: perfkit record."


def _row(row: Row) -> tuple[str | Cell, ...]:
    claim, figure = row.claim, row.headline
    said: tuple[str, ...] = ()
    if row.records:
        first = row.records[0]
        measured = "" if figure is None else shown(figure)
        where = "; ".join(filter(None, (measured, _where(first, row), *_notes(row))))
        tested = f"Tested differently from what the source means: {row.tested}."
        said = (where, first.outcome.sentence, tested if row.tested else "")
    behind = (
        f"The source: {claim.source_figure}" if claim.source_figure else "",
        f"{claim.measured}.",
        f"Today: {claim.today}." if claim.today else "",
    )
    return (
        claim.id,
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
    notes: list[str] = []
    if len(row.claim.lessons) > 1:
        notes.append(f"lessons {', '.join(row.claim.lessons)}")
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
