"""A claim in a lesson: its criterion, what a cell of the lesson found, and what the records say.

``claim("A9")`` shows the claim with its criterion and records, and ``claim("A9").settle(…)`` judges
what the reader just measured. ``perfkit record`` runs the same cells and keeps what they settle, so
a record is what a reader can run and see.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfkit.base.budget import budget_scale
from perfkit.base.display import Shown
from perfkit.base.errors import MissingError
from perfkit.base.machine import Provenance, stamp
from perfkit.base.printable import printable
from perfkit.course.ledger.claims import Claim
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.course.ledger.records import Record
from perfkit.course.ledger.show_settled import KIND, claim_document, settled_document
from perfkit.show.document import document_for

__all__ = ["KIND", "RECORDS_CLAIMS", "LessonClaim", "Settled", "Verdict", "is_recorded"]

#: ``perfkit record`` sets this variable, in the kernels that it starts, to the claims it wants.
RECORDS_CLAIMS = "PERFKIT_RECORD_CLAIMS"

Verdict = Literal["holds here", "does not hold here", "not decided"]

_LONGEST_REASON = 300


@dataclass(frozen=True)
class Settled(Shown):
    """What a lesson's cell says about a claim on this machine, beside what was recorded.

    Attributes:
        claim: the claim.
        criterion: when it holds.
        verdict: ``"holds here"``, ``"does not hold here"`` or ``"not decided"``.
        outcome: figures and sentence; ``None`` if the criterion could not be applied.
        why: why nothing is decided, if the outcome's sentence does not say; else empty.
        provenance: this machine, versions and time.
        budget_scale: by what ``PERFKIT_BUDGET_SCALE`` multiplied the cell's measuring budgets.
        records: the records of this claim and lesson.
        missing: whether it is undecided because this machine lacks something.
    """

    claim: Claim
    criterion: Criterion
    verdict: Verdict
    outcome: Outcome | None
    why: str
    provenance: Provenance
    budget_scale: float
    records: tuple[Record, ...] = field(repr=False)
    missing: bool = False
    details: str = field(default="", repr=False)

    @property
    def headline(self) -> Figure | None:
        """The figure that stands for the result; ``None`` without an outcome."""
        return None if self.outcome is None else self.outcome.figures[self.outcome.headline]

    @property
    def tested(self) -> str:
        """What is tested here, if that is not what the source means; else empty."""
        part = "cpu" if self.provenance.device == "cpu" else "gpu"
        return self.claim.tested.get(part, "")

    def to_dict(self) -> dict[str, Any]:
        """What the cell's output carries as JSON, for ``perfkit record``."""
        return {
            "claim": self.claim.id,
            "lesson": self.criterion.lesson,
            "title": self.criterion.title,
            "criterion": self.criterion.holds_if,
            "verdict": self.verdict,
            "outcome": None if self.outcome is None else self.outcome.to_dict(),
            "why": self.why,
            "missing": self.missing,
            "details": self.details,
            "provenance": self.provenance.to_dict(),
            "budget_scale": self.budget_scale,
        }


@dataclass(frozen=True)
class LessonClaim(Shown):
    """A claim as one lesson tests it.

    Attributes:
        claim: the claim.
        criterion: when it holds.
        records: the records of this claim and lesson.
    """

    claim: Claim
    criterion: Criterion
    records: tuple[Record, ...] = field(repr=False)

    def settle(self, *measured: Any, **named: Any) -> Settled:
        """Judge what a cell just measured. It never raises: what cannot be judged is not decided.

        Args:
            measured: what the criterion takes; ``help(claim("A9").criterion.judge)`` says what.
            named: the same, by name.
        """
        outcome, why, missing, details = None, "", False, ""
        try:
            outcome = self.criterion.judge(*measured, **named)
            if not isinstance(outcome, Outcome):
                why = f"the criterion returned a {type(outcome).__name__}, not an Outcome"
                outcome = None
        except MissingError as error:
            why, missing = str(error), True
        except Exception as error:
            said = " ".join(str(error).split())
            why = f"the criterion could not be applied ({type(error).__name__}: {said})"
            details = traceback.format_exc()
        return Settled(
            claim=self.claim,
            criterion=self.criterion,
            verdict=_verdict(outcome),
            outcome=outcome,
            why=printable(why, _LONGEST_REASON),
            provenance=stamp(device=_device_of([*measured, *named.values()])),
            budget_scale=budget_scale(),
            records=self.records,
            missing=missing,
            details=details,
        )


def _device_of(measured: Sequence[Any]) -> str | None:
    """``"cpu"`` where all results, also in lists and mappings, are of the CPU; else unknown.

    A GPU that is there but had no part in it is not what the claim was settled on.
    """
    devices: set[str] = set()
    waiting = list(measured)
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        elif not isinstance(one, int | float | str | None):
            origin = getattr(one, "provenance", None)
            devices.add(origin.device if isinstance(origin, Provenance) else "")
    return "cpu" if devices == {"cpu"} else None


document_for(LessonClaim)(claim_document)
document_for(Settled)(settled_document)


def is_recorded(claims: Iterable[str]) -> bool:
    """Whether ``perfkit record`` runs this and wants one of these claims."""
    wanted = set(os.environ.get(RECORDS_CLAIMS, "").split(","))
    return bool(wanted & set(claims))


def _verdict(outcome: Outcome | None) -> Verdict:
    if outcome is None or outcome.holds is None:
        return "not decided"
    return "holds here" if outcome.holds else "does not hold here"
