"""What a comparison of two stores of runs says."""

from __future__ import annotations

import math

from perfkit.base.words import fmt_chosen_share, fmt_interval, fmt_ms, fmt_ratio
from perfkit.experiment.compare.compare_runs import Matched, RunsComparison
from perfkit.experiment.settings._declared import words
from perfkit.show.document import Document, Doubt, Table, document_for


@document_for(RunsComparison)
def _compared(found: RunsComparison) -> Document:
    lines = [
        f"{one.verdict}: {words(one.values)}: {one.message}" for one in found.matched if one.message
    ]
    lonely = ((found.names[0], found.only_before), (found.names[1], found.only_after))
    for name, several in lonely:
        lines += [f"only in {name}: {words(values)}" for values in several]
    per_sample = any(one.per == "sample" for one in found.matched)
    return Document(
        name="runs compared",
        sentence=found.sentence,
        headline=f"{found.sentence.partition(' (')[0].partition(';')[0].rstrip('.')}.",
        lines=tuple(lines),
        doubts=tuple(map(Doubt.of, found.warnings)),
        tables=(
            Table(
                ("configuration", "before", "after", "× as fast", "interval", "verdict"),
                tuple(_row(one) for one in found.matched),
                align="<>>>><",
                open=True,
            ),
        ),
        foot=(
            f"Time per step{' (per sample where batches differ)' if per_sample else ''}, before ÷ "
            "after; a regression is an interval that is beyond "
            f"{fmt_chosen_share(found.margin)} as "
            f"a whole; the intervals hold jointly at {fmt_chosen_share(found.confidence)}.",
            f"before: {found.names[0]}, {found.provenance[0]}",
            f"after: {found.names[1]}, {found.provenance[1]}",
        ),
    )


def _row(one: Matched) -> tuple[str, ...]:
    interval = "–"
    if one.low is not None and one.high is not None:
        interval = fmt_interval(one.low, one.high if one.high < 1e3 else math.inf)
    return (
        words(one.values),
        f"{fmt_ms(one.before_ms)} ({one.n_before})",
        f"{fmt_ms(one.after_ms)} ({one.n_after})",
        fmt_ratio(one.ratio),
        interval,
        one.verdict,
    )
