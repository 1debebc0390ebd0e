"""The claims that the course tests, one row each (``claims.json`` beside this file)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

#: Hardware on which a claim, or a part of it, can be measured.
PARTS = ("cpu", "gpu", "multi")


@dataclass(frozen=True)
class Claim:
    """One row: a piece of advice, and what is measured about it here.

    Attributes:
        id: a letter for the source and a number, e.g. ``"A9"``.
        technique: the advice.
        source_figure: the figure that the source gives; empty if none.
        measured: what the course measures.
        where: parts by ``"cpu"``, ``"gpu"`` or ``"multi"`` (several GPUs); the value says which
            part of the claim, and is empty for all of it.
        tested: what is tested instead, by part as in ``where``; no entry for a part that is tested
            as the source means it.
        today: what has changed since the source was written; empty if nothing has.
        lessons: two digits each; the first lesson settles it.
    """

    id: str
    technique: str
    source_figure: str
    measured: str
    where: Mapping[str, str]
    tested: Mapping[str, str]
    today: str
    lessons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """This claim as plain JSON types."""
        return {
            "id": self.id,
            "technique": self.technique,
            "source_figure": self.source_figure,
            "measured": self.measured,
            "where": dict(self.where),
            "tested": dict(self.tested),
            "today": self.today,
            "lessons": list(self.lessons),
        }


@functools.cache
def claims() -> Mapping[str, Claim]:
    """All claims by id, in the order of the sources."""
    text = (resources.files("perfkit.course.ledger") / "claims.json").read_text(encoding="utf-8")
    found = {}
    for row in json.loads(text)["claims"]:
        row["where"] = MappingProxyType(row["where"])
        row["tested"] = MappingProxyType(row.get("tested", {}))
        row["lessons"] = tuple(row["lessons"])
        found[row["id"]] = Claim(**row)
    return MappingProxyType(found)


def first_lesson(claim: str) -> str:
    """The lesson that settles a claim, in two digits; empty for an unknown id."""
    known = claims().get(claim)
    return known.lessons[0] if known is not None else ""
