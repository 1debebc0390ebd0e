"""Recorded figures in a lesson, and the numbers in its prose that they back.

``figure("A9.bytes_ratio")`` shows a figure from the newest record of claim A9, preferring this
machine's own. In Markdown, a number backed by a record is written
``<data value="A9.bytes_ratio">5.0×</data>``: readers see the number, and :func:`disagreements`
finds where it is not what was recorded (:mod:`perfkit.course.kit._prose` has the rules).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.base.errors import RecordError, UsageError
from perfkit.course.kit._prose import Disagreement, disagreements
from perfkit.course.kit._recorded import recorded_folders
from perfkit.course.ledger._figures import shown
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.recording import Figure
from perfkit.course.ledger.records import Record, Records, read_records

__all__ = ["Disagreement", "RecordedFigure", "disagreements", "figure"]

_NEAR = 4  # similar names to list for an unknown one


@dataclass(frozen=True, repr=False)
class RecordedFigure:
    """One recorded figure; its ``repr`` is one line.

    Attributes:
        key: claim and name, ``"A9.bytes_ratio"``.
        figure: the number; ``None`` if it is not recorded yet.
        source: ``"recorded here"``, ``"recorded on NVIDIA H200"``, ``"counted here"``,
            ``"simulated"``, ``"predicted"``, or ``"not recorded yet"``.
        date: the day of the record, in UTC; empty if there is none.
    """

    key: str
    figure: Figure | None
    source: str
    date: str = ""

    @property
    def recorded(self) -> bool:
        """Whether there is a record of it."""
        return self.figure is not None

    @property
    def value(self) -> float | None:
        """The number; ``None`` if it is not recorded yet."""
        return None if self.figure is None else self.figure.value

    def __repr__(self) -> str:
        if self.figure is None:
            return f"{self.key}: {self.source} (perfkit record --claim {self.key.split('.')[0]})"
        return f"{self.key}: {shown(self.figure)}, {self.source}, {self.date}"


def figure(
    key: str, *, device: str | None = None, folders: Iterable[Path] | None = None
) -> RecordedFigure:
    """The recorded figure with this key.

    Args:
        key: claim and name, as in ``"A9.bytes_ratio"``.
        device: use only records made on a device of this type: ``"cpu"``, ``"cuda"`` …
        folders: folders of records; by default the clone's ``data/recorded`` and the user's.

    Returns:
        The figure from this machine's newest record, else from the newest one of any machine. If
        the claim has no record (of that kind of device), it says "not recorded yet".

    Raises:
        UsageError: there is no such claim, or its records have no figure of that name; the message
            has similar names.
        RecordError: the claim's only record was edited by hand or cannot be read.
    """
    claim, name = _split(key)
    records = read_records(recorded_folders() if folders is None else folders)
    found = [r for r in records.of(claim) if device in (None, r.device.type)]
    if not found:
        _raise_refused(claim, records)
        return RecordedFigure(key, None, "not recorded yet")
    having = [r for r in found if name in r.outcome.figures]
    if not having:
        raise UsageError(f"no record of {claim} has a figure {name!r}; {_near(key, found)}")
    record = max(having, key=lambda r: (r.is_here, r.provenance.when_utc))
    found_figure = record.outcome.figures[name]
    return RecordedFigure(key, found_figure, record.source(found_figure), record.date)


def _split(key: str) -> tuple[str, str]:
    claim, dot, name = key.partition(".")
    if not dot or not name:
        raise UsageError(f"no figure {key!r}: a key is claim.name, as in 'A9.bytes_ratio'")
    if claim not in claims():
        near = difflib.get_close_matches(claim.upper(), claims(), n=_NEAR, cutoff=0.5)
        raise UsageError(
            f"no claim {claim!r}; near ones: {', '.join(near) or 'none'}; "
            "`perfkit claims` lists all"
        )
    return claim, name


def _near(key: str, records: Sequence[Record]) -> str:
    known = sorted({f"{r.claim}.{name}" for r in records for name in r.outcome.figures})
    near = difflib.get_close_matches(key, known, n=_NEAR, cutoff=0.3) or known[:_NEAR]
    return f"near ones: {', '.join(near)}"


def _raise_refused(claim: str, records: Records) -> None:
    for path, reason in records.refused.items():
        if path.stem.partition("-")[0] == claim:
            raise RecordError(reason)
