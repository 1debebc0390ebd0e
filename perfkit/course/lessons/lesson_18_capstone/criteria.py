"""When the claim of lesson 18 holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfkit.course.ledger.criteria import all_of, criterion
from perfkit.course.ledger.recording import Figure, Outcome
from perfkit.measure.compare import Comparison

#: The source says a fifth to a tenth of the time.
_AT_LEAST = 5


@criterion(
    "C1",
    lesson="18-capstone",
    title="an epoch of one script with eight faults, before and after, with the same losses",
    holds_if="the epoch takes at most a fifth of the time, and losses and gradients of the first "
    "steps are the same to rounding with each of three seeds",
)
def all_together(
    timed: Comparison,
    same: Sequence[bool | None],
    operators: Mapping[str, int],
    waits: Mapping[str, int],
    sent: Mapping[str, int],
) -> Outcome:
    """Judge the script with all eight faults against the one with none.

    Args:
        timed: an epoch with the faults against one without.
        same: what ``perfkit.same_result`` says, one for each seed.
        operators: ``"slow"`` and ``"fast"`` → operators of a training step.
        waits: the same → times in a step that the host waits for a GPU, predicted.
        sent: the same → bytes of a batch on its way to the device.
    """
    enough = True if timed.low >= _AT_LEAST else False if timed.high < _AT_LEAST else None
    return Outcome(
        holds=all_of(enough, *same),
        figures={
            "ratio": Figure.of(timed),
            "operators_slow": Figure.exact(operators["slow"]),
            "operators_fast": Figure.exact(operators["fast"]),
            "waits_slow": Figure(waits["slow"], "1", kind="predicted"),
            "waits_fast": Figure(waits["fast"], "1", kind="predicted"),
            "bytes_ratio": Figure.exact(sent["slow"] / sent["fast"], "×"),
        },
        headline="ratio",
        sentence=f"Without its eight faults an epoch is {timed.ratio:.1f}× as fast; a step asks "
        f"for {operators['fast']:,} operators instead of {operators['slow']:,}, and a batch has "
        f"{sent['fast']:,} B instead of {sent['slow']:,}.",
    )
