"""Records in one file, for a pull request, and from one.

The schema is ``perfkit.records/1``: ``{"schema", "perfkit", "records": [...]}``, with each record
as in a file of its own (:mod:`perfkit.course.ledger.records`), with its digest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfkit._version import __version__
from perfkit.base.errors import RecordError, UsageError
from perfkit.base.files import read_pipe, write_atomically
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import criteria
from perfkit.course.ledger.records import (
    KeptError,
    Record,
    file_name,
    read_record,
    record_of,
    write_record,
)

SCHEMA = "perfkit.records/1"
_CLOCKS_DIFFER = timedelta(days=1)
_LARGEST_BYTES = 16 << 20  # all claims on a dozen devices have a few megabytes


@dataclass(frozen=True)
class Imported:
    """What became of one record of the file: its path, or why another one stays."""

    record: Record
    path: Path | None
    kept: str = ""


def export_records(records: Sequence[Record], path: Path) -> None:
    """Write these records into one file.

    Raises:
        UsageError: there are none, or the file cannot be written.
    """
    if not records:
        raise UsageError("there is nothing to export: no such record was made on this machine")
    content = {
        "schema": SCHEMA,
        "perfkit": __version__,
        "records": [one.to_dict() for one in records],
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_export(path: Path) -> tuple[Record, ...]:
    """The records of such a file; all of them are sound, or none is returned.

    Raises:
        RecordError: the file cannot be read or has another schema, or a record in it is incomplete,
            was edited, was made on a played GPU, is of an unknown claim or lesson, or of a time in
            the future.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise RecordError(f"{path} has {path.stat().st_size:,} bytes: it is no export")
        piped = read_pipe(path, at_most=_LARGEST_BYTES)
        content = json.loads(path.read_bytes() if piped is None else piped)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{path} cannot be read as an export of records: {reason}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RecordError(
            f"{path} has the schema {schema!r:.60}; --import reads {SCHEMA}, which "
            "`perfkit record --export FILE` writes"
        )
    if not isinstance(content.get("records"), list) or not content["records"]:
        raise RecordError(f"{path} holds no records")
    found: list[Record] = []
    for number, one in enumerate(content["records"], start=1):
        where = f"{path}, record {number}"
        record = record_of(one, where)
        if record.claim not in claims():
            raise RecordError(f"{where}: no claim {record.claim!r:.20}; is it of a newer perfkit?")
        lessons = {c.number for c in criteria(claims=[record.claim])}
        if record.number not in lessons | set(claims()[record.claim].lessons):
            raise RecordError(f"{where}: lesson {record.number} does not test claim {record.claim}")
        if datetime.fromisoformat(record.provenance.when_utc) > datetime.now(UTC) + _CLOCKS_DIFFER:
            raise RecordError(
                f"{where} is of {record.provenance.when_utc}, in the future: nothing is imported, "
                "as it would always be the newest; is this machine's clock right, and theirs?"
            )
        found.append(record)
    return tuple(found)


def import_records(records: Sequence[Record], folder: Path) -> list[Imported]:
    """Write these records under ``folder``; a newer one, or one of a quiet machine, stays.

    Raises:
        UsageError: the folder cannot be written, or a record cannot be told from another lesson's.
    """
    results = []
    for one in records:
        target = folder / one.device.slug / file_name(one.claim, one.lesson)
        kept = _newer(one, target)
        try:
            path = None if kept else write_record(one, folder)
        except KeptError as error:
            path, kept = None, str(error)
        results.append(Imported(one, path, kept))
    return results


def _newer(one: Record, target: Path) -> str:
    """Why what is in ``target`` stays; empty if it does not."""
    try:
        there = read_record(target)
    except RecordError:
        return ""
    if there.to_dict() == one.to_dict():
        return "it is there already"
    if there.provenance.when_utc >= one.provenance.when_utc and not (
        there.was_busy and not one.was_busy
    ):
        return f"the one that is there is newer ({there.date})"
    return ""
