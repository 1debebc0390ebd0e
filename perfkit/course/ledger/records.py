"""Recorded results: what an experiment found, on which machine, when, and with what command.

There is one file per experiment, ``<device>/<claim>.json``; if two lessons test one claim, the
second one's file is ``<claim>-<lesson>.json``. The schema is ``perfkit.record/1``::

    schema        "perfkit.record/1"
    claim         "A9"
    lesson        "06-host-to-device"
    title         what was measured, in one line
    holds         whether the claim's direction holds on this machine
    headline      name of the figure that the ledger shows
    sentence      the outcome in one sentence
    figures       {name: {value, unit, low, high, kind}}; low and high may be null
    device        {slug, name, type: "cpu" or "cuda", gpus: how many were visible}
    provenance    kind "recorded", machine, device, versions, when_utc, command, seed
    budget_s, duration_s
    warnings      reasons to doubt it
    digest        "sha256:…" of everything else

The digest tells an edited file from a measured one. It is not a signature: it cannot prevent
forgery, but it catches a figure that someone tidied up and forgot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from perfkit.base.errors import RecordError, UsageError
from perfkit.base.files import write_atomically
from perfkit.base.machine import Provenance, facts
from perfkit.base.printable import printable
from perfkit.course.ledger.claims import first_lesson
from perfkit.course.ledger.recording import Figure, Outcome, lesson_number

__all__ = [
    "SCHEMA",
    "Device",
    "Record",
    "Records",
    "file_name",
    "read_record",
    "read_records",
    "slug",
    "write_record",
]

SCHEMA = "perfkit.record/1"
_LARGEST_BYTES = 1 << 20  # a record has a few kilobytes; a file this large is not one
_LONGEST_REASON = 200


DeviceType = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Device:
    """Where an experiment ran.

    Attributes:
        name: the processor's or GPU's name as its vendor writes it.
        type: ``"cpu"`` or ``"cuda"``.
        gpus: number of GPUs that the experiment could see.
    """

    name: str
    type: DeviceType
    gpus: int = 0

    @property
    def slug(self) -> str:
        """Its folder name."""
        return slug(self.name) if self.type == "cuda" else f"cpu-{slug(self.name)}"

    @property
    def is_here(self) -> bool:
        """Whether this machine has a device of this name."""
        machine = facts()
        if self.type == "cpu":
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
    budget_s: float
    duration_s: float
    warnings: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """The lesson's two digits."""
        return lesson_number(self.lesson)

    @property
    def date(self) -> str:
        """The day of the recording, in UTC: ``2026-01-31``."""
        return self.provenance.when_utc[:10]

    def source(self, figure: Figure) -> str:
        """Where this figure comes from, in words: ``measured here``, ``recorded on NVIDIA
        H200``, ``counted here`` (exact), ``simulated`` or ``predicted``.
        """
        if figure.kind in ("simulated", "predicted"):
            return figure.kind
        if self.device.is_here:
            return "counted here" if figure.kind == "exact" else "measured here"
        how = "counted" if figure.kind == "exact" else "recorded"
        return f"{how} on {self.device.name}"

    def to_dict(self) -> dict[str, Any]:
        """The content of its file, with the digest."""
        content = {
            "schema": SCHEMA,
            "claim": self.claim,
            "lesson": self.lesson,
            "title": self.title,
            "holds": self.outcome.holds,
            "headline": self.outcome.headline,
            "sentence": self.outcome.sentence,
            "figures": {name: f.to_dict() for name, f in self.outcome.figures.items()},
            "device": {
                "slug": self.device.slug,
                "name": self.device.name,
                "type": self.device.type,
                "gpus": self.device.gpus,
            },
            "provenance": self.provenance.to_dict(),
            "budget_s": self.budget_s,
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
        UsageError: it was made on a played GPU, it cannot be written, or another lesson's record of
            this claim on this device has a figure of the same name, which would make
            ``figure("A16.name")`` ambiguous.
    """
    if record.provenance.kind != "recorded":
        raise UsageError(REFUSED)
    place = folder / record.device.slug
    target = place / file_name(record.claim, record.lesson)
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
    if not isinstance(content, dict) or "schema" not in content:
        raise RecordError(f"{path} is not a record: it names no schema")
    if content["schema"] != SCHEMA:
        raise RecordError(
            f"{path} has the schema {content['schema']!r:.60}; this perfkit reads {SCHEMA}"
        )
    told = content.pop("digest", None)
    if told != _digest(content):
        raise RecordError(
            f"{path} was changed since it was recorded (its digest does not fit): records are "
            f"never edited; run `perfkit record --claim {content.get('claim', 'ID')}` again, or "
            "take the file away"
        )
    try:
        return _record(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = printable(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        raise RecordError(f"{path} is not a complete record: {said}") from None


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


def _record(content: Mapping[str, Any]) -> Record:
    figures = {name: Figure(**values) for name, values in content["figures"].items()}
    device = content["device"]
    texts = [content[name] for name in ("claim", "lesson", "title")]
    texts += [device["name"], *content["warnings"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text of it is none")
    if device["type"] not in get_args(DeviceType) or type(device["gpus"]) is not int:
        raise ValueError(
            f"no device of type {device['type']!r:.40} with {device['gpus']!r:.40} GPUs"
        )
    if any(type(content[name]) not in (int, float) for name in ("budget_s", "duration_s")):
        raise ValueError("a duration is not a number")
    lesson_number(content["lesson"])  # refuses an invalid lesson
    if content["provenance"]["kind"] != "recorded":
        raise ValueError(f"its figures are {content['provenance']['kind']!r:.40}, not recorded")
    return Record(
        claim=content["claim"],
        lesson=content["lesson"],
        title=content["title"],
        outcome=Outcome(content["holds"], figures, content["headline"], content["sentence"]),
        device=Device(device["name"], device["type"], device["gpus"]),
        provenance=Provenance.from_dict(content["provenance"]),
        budget_s=content["budget_s"],
        duration_s=content["duration_s"],
        warnings=tuple(content["warnings"]),
    )


def _digest(content: Mapping[str, Any]) -> str:
    # sorted keys and no white space: order and layout of the file do not matter
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(f"{SCHEMA}\n{plain}".encode()).hexdigest()
