"""Recorded results: what a lesson found for a claim, on which machine, when, and with what command.

There is one file per claim, ``<device>/<claim>.json``; if two lessons test one claim, the
second one's file is ``<claim>-<lesson>.json``. The schema is ``perfkit.record/2``::

    schema        "perfkit.record/2"
    claim         "A9"
    lesson        "06-host-to-device"
    title         what was measured, in one line
    holds         whether the claim's direction holds on this machine
    headline      name of the figure that the ledger shows
    sentence      the outcome in one sentence
    figures       {name: {value, unit, low, high, kind}}; low and high may be null
    device        {slug, name, type: torch's, as "cpu" or "cuda", gpus: how many were visible}
    provenance    kind "recorded", machine, device, versions, when_utc as
                  2026-01-31T12:00:00+00:00, command, seed
    notebook      file name of the notebook whose cell settled the claim
    notebook_hash "sha256:…" of the code that was run (:mod:`perfkit.course.ledger.notebook`)
    budget_scale  by what PERFKIT_BUDGET_SCALE multiplied the cells' measuring budgets
    duration_s    how long the cell took
    warnings      reasons to doubt it
    digest        "sha256:…" of everything else

``perfkit.record/1`` is read, too: there a program of its own measured what the lesson's cell
measures today. It names no notebook, and has ``budget_s``, the seconds that it was given.

The digest tells an edited file from a measured one. It is not a signature: it cannot prevent
forgery, but it catches a figure that someone tidied up and forgot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from perfkit.base.errors import RecordError, UsageError
from perfkit.base.files import write_atomically
from perfkit.base.machine import Provenance, facts, machine_sentence
from perfkit.base.printable import printable
from perfkit.base.structs import as_struct
from perfkit.course.ledger.claims import first_lesson
from perfkit.course.ledger.recording import Figure, Outcome, lesson_number

SCHEMA = "perfkit.record/2"
_OF_A_PROGRAM = "perfkit.record/1"
_SCHEMAS = (_OF_A_PROGRAM, SCHEMA)
#: How the warning begins that makes a record one of a busy machine.
BUSY = "the machine was busy"
_LARGEST_BYTES = 1 << 20  # a record has a few kilobytes; a file this large is not one
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Device:
    """Where it was measured.

    Attributes:
        name: the processor's or GPU's name as its vendor writes it.
        type: torch's type of device: ``"cpu"``, ``"cuda"`` …
        gpus: number of GPUs that could be seen there.
    """

    name: str
    type: str
    gpus: int = 0

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor, and no accelerator."""
        return self.type == "cpu"

    @property
    def slug(self) -> str:
        """Its folder name."""
        return f"cpu-{slug(self.name)}" if self.is_cpu else slug(self.name)

    @property
    def is_here(self) -> bool:
        """Whether this machine has a device of this name."""
        machine = facts()
        if self.is_cpu:
            return self.name == machine.cpu
        return self.name in {gpu.name for gpu in machine.gpus}


@dataclass(frozen=True)
class Record:
    """One recorded result; for the fields see the schema in this module's docstring."""

    claim: str
    lesson: str
    title: str
    outcome: Outcome
    device: Device
    provenance: Provenance
    budget_s: float | None
    duration_s: float
    warnings: tuple[str, ...] = ()
    notebook: str = ""
    notebook_hash: str = ""
    budget_scale: float = 1.0

    @property
    def was_busy(self) -> bool:
        """Whether something else kept the machine busy."""
        return any(warning.startswith(BUSY) for warning in self.warnings)

    @property
    def number(self) -> str:
        """The lesson's two digits."""
        return lesson_number(self.lesson)

    @property
    def date(self) -> str:
        """The day of the recording, in UTC: ``2026-01-31``."""
        return self.provenance.when_utc[:10]

    @property
    def is_here(self) -> bool:
        """Whether a machine like this one made it: the same device, processor, cores and memory.

        Names alone are shared: an "AMD EPYC" has 2 cores or 192.
        """
        return self.device.is_here and self.provenance.machine == machine_sentence()

    def source(self, figure: Figure) -> str:
        """Where this figure comes from, in words: ``recorded here``, ``recorded on NVIDIA
        H200``, ``counted here`` (exact), ``simulated`` or ``predicted``.
        """
        if figure.kind in ("simulated", "predicted"):
            return figure.kind
        word = "counted" if figure.kind == "exact" else "recorded"
        return f"{word} {'here' if self.is_here else f'on {self.device.name}'}"

    def to_dict(self) -> dict[str, Any]:
        """The content of its file, with the digest."""
        run: dict[str, Any] = {"budget_s": self.budget_s}
        if self.notebook:
            run = {
                "notebook": self.notebook,
                "notebook_hash": self.notebook_hash,
                "budget_scale": self.budget_scale,
            }
        content = {
            "schema": SCHEMA if self.notebook else _OF_A_PROGRAM,
            "claim": self.claim,
            "lesson": self.lesson,
            "title": self.title,
            **self.outcome.to_dict(),
            "device": {
                "slug": self.device.slug,
                "name": self.device.name,
                "type": self.device.type,
                "gpus": self.device.gpus,
            },
            "provenance": self.provenance.to_dict(),
            **run,
            "duration_s": self.duration_s,
            "warnings": list(self.warnings),
        }
        return content | {"digest": _digest(content)}


@dataclass(frozen=True)
class Records:
    """All readable records, and one line per file that could not be read."""

    records: tuple[Record, ...] = ()
    refused: Mapping[Path, str] = field(default_factory=dict)

    def of(self, claim: str) -> list[Record]:
        """Records of one claim: its first lesson's first, newest first within a lesson."""
        found = [record for record in self.records if record.claim == claim]
        found.sort(key=lambda r: r.provenance.when_utc, reverse=True)
        home = first_lesson(claim)
        return sorted(found, key=lambda r: (r.number != home, r.number))


class KeptError(UsageError):
    """A record was not written, so that a better one stays."""


def slug(name: str) -> str:
    """A device name as a folder name: ``NVIDIA H100 80GB HBM3`` → ``nvidia-h100-…``."""
    plain = re.sub(r"\((?:r|tm|c)\)", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:80] or "unknown"


def file_name(claim: str, lesson: str) -> str:
    """``A9.json``; ``A16-08.json`` for a lesson that is not the first to teach the claim."""
    number = lesson_number(lesson)
    return f"{claim}.json" if number == first_lesson(claim) else f"{claim}-{number}.json"


REFUSED = "it ran on a played GPU, whose times are not a GPU's: no record is written"


def write_record(record: Record, folder: Path) -> Path:
    """Write a record under ``folder`` atomically and return its path.

    Raises:
        KeptError: the machine was busy, and the record that is there is of a quiet one.
        UsageError: it was made on a played GPU, it cannot be written, or another lesson's record of
            this claim on this device has a figure of the same name, which would make
            ``figure("A16.name")`` ambiguous.
    """
    if record.provenance.kind != "recorded":
        raise UsageError(REFUSED)
    place = folder / record.device.slug
    target = place / file_name(record.claim, record.lesson)
    _keep_the_quiet_one(record, target)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place}: {error.strerror or error}") from error
    for other in read_records([folder]).of(record.claim):
        if other.device.slug != record.device.slug or other.number == record.number:
            continue
        twice = sorted(set(other.outcome.figures) & set(record.outcome.figures))
        if twice:
            raise UsageError(
                f"{record.claim} of lesson {record.number} and of lesson {other.number} both have "
                f"a figure {twice[0]!r}: give one of them another name"
            )
    text = json.dumps(record.to_dict(), indent=1, ensure_ascii=False) + "\n"
    write_atomically(target, lambda part: part.write_text(text, encoding="utf-8"))
    return target


def _keep_the_quiet_one(record: Record, target: Path) -> None:
    if not record.was_busy or not target.exists():
        return
    try:
        before = read_record(target)
    except RecordError:
        return  # nothing to keep
    if not before.was_busy:
        raise KeptError(
            f"{record.warnings[0]}; the record of {before.date}, of a quiet machine, stays"
        )


def read_record(path: Path) -> Record:
    """Read one file.

    Raises:
        RecordError: it is not a record, has an unknown schema, is incomplete, or was edited.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise RecordError(f"{path} is not a record: it has {path.stat().st_size:,} bytes")
        content = json.loads(path.read_bytes(), parse_constant=_no_number)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{path} cannot be read as a record: {reason}") from None
    return record_of(content, str(path))


def record_of(content: Any, where: str) -> Record:
    """The record with this content, as a file of it holds it.

    Args:
        content: from JSON.
        where: what an error names as its place.

    Raises:
        RecordError: it is not a record, has an unknown schema, is incomplete, or was edited.
    """
    if not isinstance(content, dict) or "schema" not in content:
        raise RecordError(f"{where} is not a record: it names no schema")
    if content["schema"] not in _SCHEMAS:
        raise RecordError(
            f"{where} has the schema {content['schema']!r:.60}; this perfkit reads "
            f"{' and '.join(_SCHEMAS)}"
        )
    content = dict(content)
    told = content.pop("digest", None)
    if told != _digest(content):
        raise RecordError(
            f"{where} was changed since it was recorded (its digest does not fit): records are "
            f"never edited; run `perfkit record --claim {content.get('claim', 'ID')}` again, or "
            "take the file away"
        )
    try:
        json.dumps(content, ensure_ascii=False).encode()  # half a character cannot be written
        return _record(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        said = printable(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        raise RecordError(f"{where} is not a complete record: {said}") from None


def read_records(folders: Iterable[Path]) -> Records:
    """All records under these folders; a claim in two of them counts twice if they differ."""
    records: list[Record] = []
    refused: dict[Path, str] = {}
    seen: set[str] = set()
    for folder in folders:
        for path in sorted(folder.glob("*/*.json")):
            try:
                record = read_record(path)
            except RecordError as error:
                refused[path] = str(error)
                continue
            identity = record.to_dict()["digest"]
            if identity not in seen:
                seen.add(identity)
                records.append(record)
    return Records(tuple(records), MappingProxyType(refused))


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class _SavedDevice(Struct):
    name: str
    # of another machine, so not only those that this torch or perfkit knows
    type: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,30}\Z")]
    gpus: int


class _Saved(Struct, tag_field="schema"):
    """What all records hold. A whole number stays one: the digest tells 2 from 2.0."""

    claim: str
    lesson: str
    title: str
    holds: bool
    figures: dict[str, dict[str, Any]]
    headline: str
    sentence: str
    device: _SavedDevice
    provenance: Provenance
    duration_s: int | float
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        lesson_number(self.lesson)  # refuses an invalid lesson
        if self.provenance.kind != "recorded":
            raise ValueError(f"its figures are {self.provenance.kind!r:.40}, not recorded")
        _check_time(self.provenance.when_utc)

    def record(self, **more: Any) -> Record:
        return Record(
            claim=self.claim,
            lesson=self.lesson,
            title=self.title,
            outcome=Outcome.from_dict(structs.asdict(self)),
            device=Device(self.device.name, self.device.type, self.device.gpus),
            provenance=self.provenance,
            duration_s=self.duration_s,
            warnings=self.warnings,
            **more,
        )


class _SavedOfAProgram(_Saved, tag=_OF_A_PROGRAM):
    budget_s: int | float

    def record(self, **more: Any) -> Record:
        return super().record(budget_s=self.budget_s, **more)


class _SavedOfANotebook(_Saved, tag=SCHEMA):
    notebook: Annotated[str, Meta(min_length=1)]
    notebook_hash: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    budget_scale: int | float

    def record(self, **more: Any) -> Record:
        return super().record(
            budget_s=None,
            notebook=self.notebook,
            notebook_hash=self.notebook_hash,
            budget_scale=self.budget_scale,
            **more,
        )


def _record(content: Mapping[str, Any]) -> Record:
    kind: Any = _SavedOfAProgram | _SavedOfANotebook
    found: _Saved = as_struct(content, kind)
    return found.record()


def _check_time(when: str) -> None:
    # as perfkit writes it, so that of two texts the later time is the greater
    with suppress(ValueError):
        time = datetime.fromisoformat(when)
        if time.tzinfo is not None and time.astimezone(UTC).isoformat(timespec="seconds") == when:
            return
    raise ValueError(f"its when_utc {when!r:.60} is no time like 2026-01-31T12:00:00+00:00")


def _digest(content: Mapping[str, Any]) -> str:
    # sorted keys and no white space: order and layout of the file do not matter
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(f"{content.get('schema')}\n{plain}".encode()).hexdigest()
