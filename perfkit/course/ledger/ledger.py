"""The claims ledger: what the records say about each claim. No claim holds without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from perfkit._version import __version__
from perfkit.base.display import Shown
from perfkit.base.machine import facts
from perfkit.course.ledger.claims import PARTS, Claim, claims
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import Record, Records
from perfkit.course.ledger.show_claims import ledger_document
from perfkit.show.document import document_for

SCHEMA = "perfkit.claims/1"

Status = Literal[
    "holds here",
    "does not hold here",
    "holds",
    "does not hold",
    "holds here, as tested",
    "does not hold here, as tested",
    "holds, as tested",
    "does not hold, as tested",
    "holds, simulated",
    "does not hold, simulated",
    "holds, predicted",
    "does not hold, predicted",
    "not recorded",
    "needs a GPU",
    "needs several GPUs",
    "not yet taught",
]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Row:
    """One claim and what is known about it.

    Attributes:
        claim: the claim itself.
        taught_in: lessons whose notebook lists it; ``None`` if no notebooks are available.
        status: with "here" if it comes from this machine's records; "as tested" if they test
            something other than the source means (``tested`` says what); "simulated" or
            "predicted" if the figure behind it is.
        records: all its records, those behind the status first.
        not_recorded: parts of its ``where`` that no record covers.
        older: records, of ``records``, whose lesson has changed since.
    """

    claim: Claim
    taught_in: tuple[str, ...] | None
    status: Status
    records: tuple[Record, ...]
    not_recorded: tuple[str, ...]
    older: tuple[Record, ...] = ()

    @property
    def headline(self) -> Figure | None:
        """The figure that the ledger shows; ``None`` without a record."""
        return _headline(self.records[0]) if self.records else None

    @property
    def tested(self) -> str:
        """What its first record tests, if that is not what the source means; else empty."""
        return _tested(self.claim, self.records[0]) if self.records else ""

    def to_dict(self) -> dict[str, Any]:
        """This row as plain JSON types."""
        figure = self.headline
        return {
            **self.claim.to_dict(),
            "taught_in": None if self.taught_in is None else list(self.taught_in),
            "status": self.status,
            "as_tested": self.tested,
            "figure": None if figure is None else figure.to_dict(),
            "records": [
                _record(one) | {"older_than_lesson": one in self.older} for one in self.records
            ],
            "not_recorded": list(self.not_recorded),
        }


@dataclass(frozen=True)
class Ledger(Shown):
    """All claims, in the order of the sources.

    Attributes:
        rows: one per claim.
        refused: one line per record that was not read, with the reason.
        here: this machine's processor and GPUs, by name.
    """

    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    here: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """Status → number of rows; statuses without rows are left out."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in STATUSES if found[status]}

    def to_dict(self) -> dict[str, Any]:
        """What ``perfkit claims --json`` prints."""
        return {
            "schema": SCHEMA,
            "perfkit": __version__,
            "here": list(self.here),
            "counts": self.counts(),
            "claims": [row.to_dict() for row in self.rows],
            "refused": list(self.refused),
        }


document_for(Ledger)(ledger_document)


def ledger(
    records: Records,
    taught: Mapping[str, Sequence[str]] | None,
    hashes: Mapping[str, str] | None = None,
) -> Ledger:
    """What these records say about every claim, as seen from this machine.

    Args:
        records: from :func:`perfkit.course.ledger.records.read_records`.
        taught: the lessons that teach each claim; ``None`` if unknown.
        hashes: file name of a notebook → hash of its code today; a record with another one is older
            than its lesson.
    """
    machine = facts()
    rows = []
    for claim in claims().values():
        known = None if taught is None else tuple(taught.get(claim.id, ()))
        row = _row(claim, known, records.of(claim.id))
        older = tuple(one for one in row.records if _is_older(one, hashes or {}))
        rows.append(replace(row, older=older))
    here = (machine.cpu, *dict.fromkeys(gpu.name for gpu in machine.gpus))
    return Ledger(tuple(rows), tuple(records.refused.values()), here)


def _is_older(record: Record, hashes: Mapping[str, str]) -> bool:
    today = hashes.get(record.notebook)
    return today is not None and record.notebook_hash != today


def _row(claim: Claim, taught_in: tuple[str, ...] | None, found: list[Record]) -> Row:
    if not found:
        return Row(claim, taught_in, _unrecorded(claim, taught_in), (), tuple(claim.where))
    # a model of a GPU shows what would follow, not what a GPU does
    telling = [one for one in found if "cpu" in claim.where or not _only_simulated(one)]
    if not telling:
        missing = _unrecorded(claim, taught_in)
        if missing == "needs a GPU" and any(not one.device.is_cpu for one in found):
            missing = "not recorded"  # there was a GPU, but only the model was recorded
        return Row(claim, taught_in, missing, tuple(found), tuple(claim.where))
    decisive = _decisive(claim, telling)
    status = _status(claim, decisive)
    rest = [one for one in found if one not in decisive]
    parts = tuple(part for part in PARTS if part in claim.where and not _covers(found, part))
    return Row(claim, taught_in, status, (*decisive, *rest), parts)


def _status(claim: Claim, decisive: list[Record]) -> Status:
    """The status from the first decisive record, which is the one the ledger shows."""
    first = decisive[0]
    word = "holds" if all(one.outcome.holds for one in decisive) else "does not hold"
    kind = _headline(first).kind
    if kind in ("simulated", "predicted"):
        said = f"{word}, {kind}"
    else:
        here = " here" if first.is_here else ""
        said = f"{word}{here}{', as tested' if _tested(claim, first) else ''}"
    return cast(Status, said)


def status_of(record: Record) -> Status:
    """The status that this record alone gives its claim."""
    return _status(claims()[record.claim], [record])


def _tested(claim: Claim, record: Record) -> str:
    if record.device.is_cpu:
        return claim.tested.get("cpu", "")
    several = record.device.gpus > 1 and "multi" in claim.tested
    return claim.tested.get("multi" if several else "gpu", "")


def _headline(record: Record) -> Figure:
    return record.outcome.figures[record.outcome.headline]


def _decisive(claim: Claim, found: list[Record]) -> list[Record]:
    """This machine's records, GPU first; else those of the device recorded last, a GPU if the claim
    is about one.

    Records that do not hold come before those that do, because they decide the status.
    """
    own = [one for one in found if one.is_here]
    if not own:
        on_gpu = [one for one in found if not one.device.is_cpu and not _only_simulated(one)]
        asked = on_gpu if on_gpu and "gpu" in claim.where else found
        newest = max(asked, key=lambda one: one.provenance.when_utc).device
        own = [one for one in asked if one.device == newest]
    return sorted(own, key=lambda one: (one.outcome.holds, one.device.is_cpu))


def _only_simulated(one: Record) -> bool:
    return _headline(one).kind == "simulated"


def _unrecorded(claim: Claim, taught_in: tuple[str, ...] | None) -> Status:
    if taught_in is not None and not taught_in:
        return "not yet taught"
    if "cpu" in claim.where:
        return "not recorded"
    return "needs a GPU" if "gpu" in claim.where else "needs several GPUs"


def _covers(found: list[Record], part: str) -> bool:
    if part == "multi":
        return any(not one.device.is_cpu and one.device.gpus > 1 for one in found)
    return any(one.device.is_cpu == (part != "gpu") for one in found)


def _record(one: Record) -> dict[str, Any]:
    return {
        "device": one.device.name,
        "device_type": one.device.type,
        "gpus": one.device.gpus,
        "here": one.is_here,
        "lesson": one.lesson,
        "when_utc": one.provenance.when_utc,
        "holds": one.outcome.holds,
        "headline": one.outcome.headline,
        "figures": {name: figure.to_dict() for name, figure in one.outcome.figures.items()},
        "sentence": one.outcome.sentence,
        "provenance": one.provenance.to_dict(),
        "warnings": list(one.warnings),
    }
