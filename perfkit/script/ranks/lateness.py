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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.measure.phases import PHASES
from perfkit.script.ranks.record import PhaseRows
from perfkit.trace.ask.late_rank import HARDLY, LEAST_SHARE, more_than_fair

#: No rank waits for another one in these.
ALWAYS_OWN = ("data_wait", "evaluation", "checkpoint")
# Fewer steps in common say little.
_FEWEST_STEPS = 5
# A rank that is late comes last in as many steps at least, and costs its time in as many.
_LEAST_STEPS = 3

# Of the wait for a rank, if it is in few steps …
_NEARLY_ALL = 0.9
# … of which there is at most this share of all.
_MOST_FEW = 0.2
_SHOWN_FEW = 3

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LateRank:
    """A rank that the others wait for.

    Attributes:
        rank: its number.
        lost_ms: what each of the others waits for it, ms a step, mean of all steps.
        last_in: share of the steps in which it comes last and the others wait for it.
        phase: in which it needs more than the others; empty where none stands out.
        phase_ms: its time in that phase, ms a step, in the steps in which it is last.
        others_ms: that of the others, likewise.
        gain_ms: what a step would be shorter if it were never later than the next one.
        n_few: in so few steps the others wait for it for nearly all that time; 0 where it is spread
            over many.
        few: numbers of the first of these, from 1.
    """

    rank: int
    lost_ms: float
    last_in: float
    phase: str
    phase_ms: float
    others_ms: float
    gain_ms: float
    n_few: int = 0
    few: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lateness:
    """Who comes late, in all steps.

    Attributes:
        n_steps: that were compared.
        step_ms: their mean length.
        wait_ms: what a rank waits for the last one, ms a step, mean of all ranks but the last.
        late: the late ranks, the worst first.
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
    own = list(ALWAYS_OWN)
    before, within, after = (any(one[w] for one in asked) for w in ("before", "within", "after"))
    if not after:
        own.append("optimizer")
    if not before:
        own.append("forward")
    if not (before or after):
        own.append("other")
    if not within:
        own.append("backward")
    return tuple(own)


def lateness(
    ranks: Sequence[int],
    read: Callable[[int], PhaseRows | None],
    *,
    own_phases: Sequence[str],
    n_left_out: int = 1,
) -> Lateness | None:
    """Compare the steps of the ranks; None where they have too few in common.

    The steps of one rank are read at a time, twice.

    Args:
        ranks: their numbers.
        read: the phases of a rank's steps.
        own_phases: in which no rank waits for another one; see :func:`own_phases`.
        n_left_out: so many first steps are set-up.
    """
    known = [rank for rank in ranks if read(rank) is not None]
    if len(known) < 2:
        return None
    numbers: npt.NDArray[np.int64] | None = None
    for rank in known:
        mine = _rows(read, rank).numbers
        numbers = mine if numbers is None else np.intersect1d(numbers, mine)
    assert numbers is not None
    numbers = numbers[numbers >= max(n_left_out, 1)]
    if len(numbers) < _FEWEST_STEPS:
        return None
    own = np.isin(PHASES, own_phases)

    def of(rank: int) -> _Array:
        rows = _rows(read, rank)
        at = np.searchsorted(rows.numbers, numbers)
        return np.asarray(rows.phase_ms[at], np.float64)

    n, shape = len(known), (len(numbers), len(PHASES))
    total = np.zeros(shape)
    first, second = np.full(len(numbers), -np.inf), np.full(len(numbers), -np.inf)
    last = np.zeros(len(numbers), np.int64)
    for i, rank in enumerate(known):
        phase_ms = of(rank)
        total += phase_ms
        mine = phase_ms[:, own].sum(axis=1)
        second = np.maximum(second, np.minimum(first, mine))
        last[mine > first] = i
        first = np.maximum(first, mine)
    others_own = (total[:, own].sum(axis=1) - first) / (n - 1)
    wait_ms = first - others_own
    step_ms = float(total.sum(axis=1).mean()) / n
    found, waits = [], {}
    for i, rank in enumerate(known):
        phase_ms = of(rank)
        waits[rank] = float((first - phase_ms[:, own].sum(axis=1)).mean())
        mine_last = (last == i) & (wait_ms > HARDLY * wait_ms.mean())
        lost_ms = float(wait_ms[mine_last].sum()) / len(numbers)
        share = lost_ms / max(float(wait_ms.mean()), 1e-12)
        if (
            mine_last.sum() < _LEAST_STEPS
            or share < more_than_fair(1, n)
            or lost_ms < LEAST_SHARE * step_ms
        ):
            continue
        few = _few(numbers, np.where(mine_last, wait_ms, 0.0))
        if 0 < few.get("n_few", 0) < _LEAST_STEPS:
            continue  # what happened once or twice says nothing of the rank
        mean = phase_ms[mine_last].mean(axis=0)
        others = ((total - phase_ms)[mine_last] / (n - 1)).mean(axis=0)
        more = np.where(own, mean - others, 0.0)
        worst = int(more.argmax())
        # of what it needs more than the others, most is in this phase
        tells = more[worst] >= 0.5 * np.maximum(more, 0.0).sum() > 0
        found.append(
            LateRank(
                rank=rank,
                lost_ms=lost_ms,
                last_in=float(mine_last.mean()),
                phase=PHASES[worst] if tells else "",
                phase_ms=float(mean[worst]),
                others_ms=float(others[worst]),
                gain_ms=float((first - second)[mine_last].sum()) / len(numbers),
                **few,
            )
        )
    return Lateness(
        n_steps=len(numbers),
        step_ms=step_ms,
        wait_ms=float(wait_ms.mean()),
        late=tuple(sorted(found, key=lambda one: -one.lost_ms)),
        wait_by_rank_ms=waits,
    )


def _few(numbers: npt.NDArray[np.int64], waited_ms: _Array) -> dict[str, Any]:
    """The few steps that hold nearly all of the wait, if it is not spread over many."""
    longest = np.argsort(-waited_ms, kind="stable")
    share = np.cumsum(waited_ms[longest]) / waited_ms.sum()
    n = int(np.searchsorted(share, _NEARLY_ALL)) + 1
    if n > _MOST_FEW * len(numbers):
        return {}
    return {"n_few": n, "few": tuple((np.sort(numbers[longest[:n]])[:_SHOWN_FEW] + 1).tolist())}


def _rows(read: Callable[[int], PhaseRows | None], rank: int) -> PhaseRows:
    rows = read(rank)
    assert rows is not None
    return rows
