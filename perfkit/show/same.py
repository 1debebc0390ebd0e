"""What the answer to "same result?" says."""

from __future__ import annotations

import math

from perfkit.base.words import fmt_count, fmt_deviation, fmt_share
from perfkit.experiment.compare.same import Checked, SameResult
from perfkit.show.document import Document, Doubt, Table, document_for


@document_for(SameResult)
def _same(same: SameResult) -> Document:
    checks = [*same.losses, *same.gradients]
    if same.first is not None and same.first not in checks:
        checks.insert(0, same.first)
    rows = tuple(_row(c) for c in sorted(checks, key=lambda c: c.step))
    return Document(
        name="same result",
        sentence=same.sentence,
        headline=_headline(same),
        lines=(_own_noise(same),) if checks else (),
        doubts=tuple(map(Doubt.of, same.warnings)),
        tables=(Table(("compared", "step", "differs by", "rounding explains"), rows, open=True),),
        foot=(f"Allowed: {same.rule}.",),
    )


def _headline(same: SameResult) -> str:
    if same.same is None:
        return "Whether the result is the same is not known."
    first = same.first
    if same.same or first is None:
        return f"Same result as far as {same.precision} can tell."
    differs = f"{first.what} of step {first.step + 1} differs"
    return f"Not the same: {differs} by {_percent(first.difference)}."


def _own_noise(same: SameResult) -> str:
    if same.own_noise is None:
        return "Neither ran twice: whether they agree with themselves is not known."
    if same.own_noise == 0:
        return "Run twice, each agrees with itself to the last digit."
    return f"Run twice, each agrees with itself to {fmt_share(same.own_noise)} of what is allowed."


def _row(c: Checked) -> tuple[str, str, str, str]:
    return c.what, fmt_count(c.step + 1), _percent(c.difference), _percent(c.tolerance)


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "∞"
    return fmt_deviation(share)
