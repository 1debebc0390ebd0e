"""Which rank comes late to the others, by the phases of the steps.

Ranks that train together make each step in the same time, because each waits for the last one where
they meet. What a rank does before is its own: who needs longest for that in a step is late, and
what the others need less is their wait for it. Which phases are a rank's own depends on where it
meets the others: gradients meet in the backward pass (DDP), sharded parameters before, too (FSDP),
and with a device the host waits wherever it asks for a result. The wait for data is always its own.

That needs no profiler, so it is known of all steps; but a rank whose backward pass itself is slow
shows only in collectives (:mod:`perfkit.trace.ask.ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from perfkit.measure.phases import PHASES
from perfkit.script.ranks.record import RankRecord
from perfkit.trace.ask.late_rank import HARDLY, LEAST_SHARE, more_than_fair

#: No rank waits for another one in these.
ALWAYS_OWN = ("data_wait", "evaluation", "checkpoint")
# Fewer steps in common say little.
_FEWEST_STEPS = 5
# A rank that is late comes last in as many steps at least; nearly all of the wait for it in fewer
# says nothing of the rank.
_LEAST_STEPS = 3
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class LateRank:
    """A rank that the others wait for.

    Attributes:
        lost_ms: what each of the others waits for it, ms a step, mean of all steps.
        last_in: share of the steps in which it comes last and the others wait for it.
        phase: in which it needs more than the others; empty where none stands out.
        phase_ms, others_ms: its time in that phase, and the others', ms a step where it is last.
        gain_ms: what a step would be shorter if it were never later than the next one.
    """

    rank: int
    lost_ms: float
    last_in: float
    phase: str
    phase_ms: float
    others_ms: float
    gain_ms: float


@dataclass(frozen=True)
class Lateness:
    """Who comes late, in all steps.

    Attributes:
        n_steps, step_ms: that were compared, and their mean length.
        wait_ms: what a rank waits for the last one, ms a step, mean of all ranks but the last.
        wait_by_rank_ms: rank → its own wait, ms a step.
    """

    n_steps: int
    step_ms: float
    wait_ms: float
    late: tuple[LateRank, ...]
    wait_by_rank_ms: dict[int, float]


def own_phases(asked: Sequence[Mapping[str, int]], *, on_device: bool) -> tuple[str, ...]:
    """The phases in which a rank does not wait for others, as far as that is known.

    Args:
        asked: of each rank's recorded steps, how many collectives it asked for ``"before"``,
            ``"within"`` and ``"after"`` the backward pass.
        on_device: whether steps compute on a device that the host runs ahead of.
    """
    if on_device or not any(sum(one.values()) for one in asked):
        return ALWAYS_OWN
    before, within, after = (any(one[w] for one in asked) for w in ("before", "within", "after"))
    meets_in = {
        "optimizer": after, "forward": before, "other": before or after, "backward": within
    }  # fmt: skip
    return (*ALWAYS_OWN, *(phase for phase, meets in meets_in.items() if not meets))


def lateness(
    records: Mapping[int, RankRecord], *, own_phases: Sequence[str], n_left_out: int = 1
) -> Lateness | None:
    """Compare the steps of the ranks but the first ones; None where they have too few in common."""
    ranks, n = sorted(records), len(records)
    if n < 2:
        return None
    numbers = reduce(np.intersect1d, [np.array(one.numbers) for one in records.values()])
    numbers = numbers[numbers >= max(n_left_out, 1)]
    if len(numbers) < _FEWEST_STEPS:
        return None
    own = np.isin(PHASES, own_phases)
    # rank × step × phase
    of_ranks = (records[rank] for rank in ranks)
    spent_ms = np.stack(
        [np.asarray(one.phase_ms)[np.searchsorted(one.numbers, numbers)] for one in of_ranks]
    )
    own_ms = spent_ms[:, :, own].sum(axis=2)
    second, first = np.sort(own_ms, axis=0)[-2:]
    last = own_ms.argmax(axis=0)
    wait_ms = first - (own_ms.sum(axis=0) - first) / (n - 1)
    step_ms, mean_wait_ms = float(spent_ms.sum(axis=2).mean()), float(wait_ms.mean())
    found = []
    for i, rank in enumerate(ranks):
        at = (last == i) & (wait_ms > HARDLY * mean_wait_ms)
        waits_ms = np.sort(wait_ms[at])
        lost_ms = float(waits_ms.sum()) / len(numbers)
        if (
            len(waits_ms) < _LEAST_STEPS
            or lost_ms < max(more_than_fair(1, n) * mean_wait_ms, LEAST_SHARE * step_ms)
            or waits_ms[1 - _LEAST_STEPS :].sum() >= _NEARLY_ALL * waits_ms.sum()
        ):
            continue
        mean = spent_ms[i, at].mean(axis=0)
        others = np.delete(spent_ms[:, at], i, axis=0).mean(axis=(0, 1))
        more = np.where(own, np.maximum(mean - others, 0.0), 0.0)
        worst = int(more.argmax())
        found.append(
            LateRank(
                rank=rank,
                lost_ms=lost_ms,
                last_in=float(at.mean()),
                # of what it needs more than the others, most is in this phase
                phase=PHASES[worst] if more[worst] >= 0.5 * more.sum() > 0 else "",
                phase_ms=float(mean[worst]),
                others_ms=float(others[worst]),
                gain_ms=float((first - second)[at].sum()) / len(numbers),
            )
        )
    return Lateness(
        n_steps=len(numbers),
        step_ms=step_ms,
        wait_ms=mean_wait_ms,
        late=tuple(sorted(found, key=lambda one: -one.lost_ms)),
        wait_by_rank_ms=dict(zip(ranks, (first - own_ms).mean(axis=1).tolist(), strict=True)),
    )
