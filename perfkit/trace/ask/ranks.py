"""Several ranks of one job: which is slow, who waits for whom.

Each rank's trace is read in a process of its own (:mod:`perfkit.trace.ask.rank_pool`), a few at a
time, so that memory is bounded however many ranks there are; only summaries come back.

*Who waits for whom* needs no common clock. The k-th collective of a step is the same on all ranks
and ends everywhere at about the same time: who arrives last spends the least time in it, and what
the others spend more than that is their wait for that rank. That is its *skew*; what remains, the
time of the last one, is its *transfer*. Collectives of a group are compared within the group, where
the trace says which ranks it has.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.display import Shown
from perfkit.base.errors import TraceError, UsageError
from perfkit.base.words import plural
from perfkit.trace.ask.late_rank import HARDLY, LEAST_SHARE, more_than_fair
from perfkit.trace.ask.rank_pool import read_ranks
from perfkit.trace.ask.rank_summary import IN_GROUP, summarize
from perfkit.trace.read.events import together

# A rank's trace takes some times its own size while it is read: more of them at once than this
# would make memory, not the processor, the limit.
_MOST_AT_ONCE = 4

# Of more ranks than this, pairs are kept only for those that most time is lost by waiting for.
_ALL_PAIRS = 64
_PAIRS_FOR = 8
# Of many ranks a fair share is less than one collective: to be last once is chance, twice is not.
_LEAST_OFTEN = 2

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rank:
    """One rank; all times are means per step.

    Attributes:
        rank: its number: from the trace, else the position among the given paths.
        path: of its trace.
        n_steps: steps in the trace.
        step_ms: median length of a step in ms.
        host_ms: host class → ms a step.
        device_ms: device class → ms a step; empty without a device.
        idle_ms: cause of device idling → ms a step; likewise.
        communication_ms: time in collectives, ms a step.
        overlapped_ms: of this, while computing, ms a step.
        waited_ms: of the time in collectives, the wait for later ranks, ms a step.
        last_in: number of collectives in which it came last and others waited for it.
    """

    rank: int
    path: str
    n_steps: int
    step_ms: float
    host_ms: Mapping[str, float]
    device_ms: Mapping[str, float]
    idle_ms: Mapping[str, float]
    communication_ms: float
    overlapped_ms: float
    waited_ms: float
    last_in: int


@dataclass(frozen=True)
class Ranks(Shown):
    """Several ranks of one job.

    Attributes:
        ranks: by number.
        waits_ms: (who waits, for whom) → ms a step, the longest first; of more than 64 ranks, for
            the eight that most time is lost by waiting for.
        n_collectives: collectives that could be matched over all ranks.
        stragglers: ranks that the others wait for, the worst first.
        imbalance: longest over mean compute time of the ranks; 1.0 is balance. None without a
            device.
        skew_ms: of the time in these collectives, the wait for later ranks, ms a step, mean of the
            ranks; None where none could be matched.
        transfer_ms: the rest of it: what they take once all ranks have come; likewise.
        on_host: whether they run on the host (gloo, MPI).
        warnings: what is doubtful, and which traces could not be read.
    """

    ranks: tuple[Rank, ...]
    waits_ms: Mapping[tuple[int, int], float]
    n_collectives: int
    stragglers: tuple[int, ...]
    imbalance: float | None
    warnings: tuple[str, ...] = ()
    skew_ms: float | None = None
    transfer_ms: float | None = None
    on_host: bool = False

    @property
    def waits(self) -> list[dict[str, float]]:
        """``waits_ms`` as JSON has it."""
        return [
            {"rank": who, "for_rank": whom, "ms_per_step": ms}
            for (who, whom), ms in self.waits_ms.items()
        ]


def ranks(paths: Sequence[str | os.PathLike[str]], *, at_once: int | None = None) -> Ranks:
    """Compare the ranks of one job.

    Args:
        paths: one trace per rank.
        at_once: how many are read at the same time; by default as many as there are cores, four
            at most.

    Raises:
        TraceError: none of the traces can be read.
        UsageError: there are no paths, or ``at_once`` is below 1.
    """
    if not paths:
        raise UsageError("ranks needs the files of the traces: give at least one path")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = min(cores or 1, _MOST_AT_ONCE) if at_once is None else at_once
    if limit < 1:
        raise UsageError(f"at_once is {at_once}; give a whole number of at least 1")
    answers = _read([os.fspath(p) for p in paths], min(limit, len(paths)))
    good = [a for a in answers if "error" not in a]
    if not good:
        raise TraceError(f"none of {len(answers)} traces can be read: {answers[0]['error']}")
    doubts = [f"left out: {a['error']}" for a in answers if "error" in a]
    return _compare(good, doubts)


def ranks_of(summaries: Sequence[dict[str, Any]]) -> Ranks:
    """Compare the ranks of one job, of which each has been summarized where it was read.

    Args:
        summaries: of each rank what :func:`perfkit.trace.ask.rank_summary.summary_of` says.
    """
    return _compare(list(summaries), [])


def _read(paths: list[str], n_processes: int) -> list[dict[str, Any]]:
    """Summaries in the order of the paths."""
    if len(paths) == 1:
        try:
            return [summarize(paths[0])]
        except TraceError as error:
            return [{"path": paths[0], "error": str(error)}]
    return read_ranks(paths, f"{summarize.__module__}:{summarize.__name__}", n_processes)


def _compare(answers: list[dict[str, Any]], doubts: list[str]) -> Ranks:
    numbers = [a["rank"] for a in answers]
    if None in numbers or len(set(numbers)) < len(numbers):
        if len(answers) > 1:
            doubts.append("the traces do not say which rank they are: numbered in the order given")
        numbers = list(range(len(answers)))
    met = _who_waits(answers, doubts)
    found = []
    for at, (number, a) in enumerate(zip(numbers, answers, strict=True)):
        n = max(len(a["wall_us"]), 1)
        found.append(
            Rank(
                rank=number,
                path=a["path"],
                n_steps=len(a["wall_us"]),
                step_ms=statistics.median(a["wall_us"]) / 1e3 if a["wall_us"] else 0.0,
                host_ms=_mean(a["host_us"], n),
                device_ms=_mean(a["device_us"], n),
                idle_ms={k: v / 1e3 / n for k, v in a["idle_us"].items()},
                communication_ms=_communication_ms(a, n),
                overlapped_ms=a["overlapped_us"] / 1e3 / n,
                waited_ms=float(met.waited_us[at]) / 1e3 / n,
                last_in=int(met.last_in[at]),
            )
        )
        doubts += [f"rank {number}: {w}" for w in a["warnings"]]
    found.sort(key=lambda r: r.rank)
    if not met.n and len(found) > 1 and any(r.communication_ms for r in found):
        doubts.append("no collective of one rank was matched with another rank's")
    n_steps = max(max(r.n_steps for r in found), 1)
    per_step = {
        (numbers[who], numbers[whom]): us / 1e3 / n_steps for (who, whom), us in met.pairs_us()
    }
    lost_ms = {numbers[i]: us / 1e3 / n_steps for i, us in enumerate(met.lost_us.tolist())}
    compute = [r.device_ms["compute"] for r in found if r.device_ms]
    mean = sum(compute) / len(compute) if compute else 0.0
    return Ranks(
        ranks=tuple(found),
        waits_ms=dict(sorted(per_step.items(), key=lambda item: -item[1])),
        n_collectives=met.n,
        stragglers=_stragglers(found, lost_ms, met.n_decided),
        imbalance=max(compute) / mean if mean else None,
        warnings=together(doubts),
        skew_ms=float(met.waited_us.mean()) / 1e3 / n_steps if met.n else None,
        transfer_ms=float(met.transfer_us.mean()) / 1e3 / n_steps if met.n else None,
        on_host=any(a["collectives"]["on_host"] and a["collectives"]["step"] for a in answers),
    )


def _communication_ms(answer: dict[str, Any], n: int) -> float:
    """On the device; of collectives that run on the host (gloo, MPI) there."""
    on_device = float(answer["communication_us"]) / 1e3 / n
    return on_device or _mean(answer["host_us"], n).get("communication", 0.0)


def _mean(steps: list[dict[str, float]], n: int) -> dict[str, float]:
    classes = steps[0] if steps else {}
    return {c: sum(s[c] for s in steps) / 1e3 / n for c in classes}


@dataclass
class _Met:
    """Collectives that several ranks took part in; arrays have an entry per rank."""

    waited_us: _Array
    transfer_us: _Array
    lost_us: _Array  # by others, waiting for it
    last_in: npt.NDArray[np.int64]
    n: int = 0
    n_decided: int = 0
    of: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], _Array]] = field(
        default_factory=list
    )

    def add(self, members: list[int], dur_us: _Array) -> None:
        """Collectives of the same ranks: a row per member, a column per collective."""
        at = np.array(members, np.intp)
        last = dur_us.argmin(axis=0)
        least = dur_us.min(axis=0)
        waits = dur_us - least
        self.n += dur_us.shape[1]
        self.waited_us[at] += waits.sum(axis=1)
        self.transfer_us[at] += least.sum()
        np.add.at(self.lost_us, at[last], waits.sum(axis=0))
        self.of.append((at, at[last], waits))

    def count(self) -> None:
        """Who came last how often; in a collective for which hardly anybody waits, nobody did."""
        if not self.n:
            return
        limit_us = HARDLY * float(self.lost_us.sum()) / self.n
        for _, last, waits in self.of:
            waited_for = waits.sum(axis=0)
            decided = last[(waited_for > 0) & (waited_for >= limit_us)]
            self.n_decided += len(decided)
            np.add.at(self.last_in, decided, 1)

    def pairs_us(self) -> list[tuple[tuple[int, int], float]]:
        """(who waits, for whom), by positions, and how long."""
        n = len(self.waited_us)
        worst = np.argsort(-self.lost_us, kind="stable")
        worst = worst[: n if n <= _ALL_PAIRS else _PAIRS_FOR]
        column = np.full(n, -1)
        column[worst] = np.arange(len(worst))
        table = np.zeros((n, len(worst)))
        for members, last, waits in self.of:
            for k in np.flatnonzero(column[last] >= 0).tolist():
                table[members, column[last[k]]] += waits[:, k]
        return [
            ((who, whom), float(table[who, i]))
            for i, whom in enumerate(worst.tolist())
            for who in range(n)
            if who != whom and table[who, i] > 0
        ]


def _who_waits(answers: list[dict[str, Any]], doubts: list[str]) -> _Met:
    """Match the collectives of the ranks; time and memory grow with their number alone."""
    n = len(answers)
    met = _Met(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, np.int64))
    lanes: dict[tuple[str, str], list[tuple[int, _Array]]] = {}
    for i, answer in enumerate(answers):
        for key, dur_us in _lanes(answer).items():
            lanes.setdefault(key, []).append((i, dur_us))
    if n < 2:
        return met
    left = set()
    for key in sorted(lanes):
        members = [i for i, _ in lanes[key]]
        whole = len(members) == n or (IN_GROUP in key[1] and len(members) > 1)
        if not whole or len({len(dur_us) for _, dur_us in lanes[key]}) > 1:
            left.add(key[1])
            continue
        met.add(members, np.stack([dur_us for _, dur_us in lanes[key]]))
    met.count()
    if left:
        kinds = plural(len(left), "kind")
        doubts.append(f"not compared: {kinds} of collectives, which differ between the ranks")
    return met


def _lanes(answer: dict[str, Any]) -> dict[tuple[str, str], _Array]:
    """(step, collective) → durations in the order of time."""
    c = answer["collectives"]
    step, name = np.array(c["step"], np.int64), np.array(c["name"], np.int64)
    dur_us = np.array(c["dur_us"], np.float64)
    if not len(step):
        return {}
    kind = step * len(c["names"]) + name
    order = np.argsort(kind, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
    return {
        (answer["step_names"][step[rows[0]]], c["names"][name[rows[0]]]): dur_us[rows]
        for rows in parts
    }


def _stragglers(found: list[Rank], lost: Mapping[int, float], n_matched: int) -> tuple[int, ...]:
    if len(found) < 2 or not n_matched:
        return ()
    others_ms = sum(r.step_ms for r in found) * (len(found) - 1) / len(found)
    often = max(more_than_fair(n_matched, len(found)), min(_LEAST_OFTEN, n_matched))
    bad = [r.rank for r in found if r.last_in >= often and lost[r.rank] > LEAST_SHARE * others_ms]
    return tuple(sorted(bad, key=lambda number: -lost[number]))
