"""Several ranks of one job: which is slow, who waits for whom.

Each rank's trace is read in a process of its own (:mod:`perfkit.trace.ask.rank_pool`), a few at a
time, so that memory is bounded however many ranks there are; only summaries come back.

*Who waits for whom* needs no common clock. The k-th collective of a step is the same on all ranks
and ends everywhere at about the same time: who arrives last spends the least time in it, and what
the others spend more than that is their wait for that rank.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.errors import TraceError, UsageError
from perfkit.trace.ask.rank_pool import read_ranks
from perfkit.trace.ask.rank_summary import summarize
from perfkit.trace.read.lookups import together

# A rank's trace takes some times its own size while it is read: more of them at once than this
# would make memory, not the processor, the limit.
_MOST_AT_ONCE = 4

# A rank is a straggler if it comes last in more than twice its fair share of the collectives (in
# two of them at least), and the others together lose more than this share of their steps by
# waiting for it.
_STRAGGLER_WAIT_SHARE = 0.02


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
        last_in: number of collectives in which it came last.
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
        waits_ms: (who waits, for whom) → ms a step, the longest first.
        n_collectives: collectives that could be matched over all ranks.
        stragglers: ranks that the others wait for, the worst first.
        imbalance: longest over mean compute time of the ranks; 1.0 is balance. None without a
            device.
        warnings: what is doubtful, and which traces could not be read.
    """

    ranks: tuple[Rank, ...]
    waits_ms: Mapping[tuple[int, int], float]
    n_collectives: int
    stragglers: tuple[int, ...]
    imbalance: float | None
    warnings: tuple[str, ...] = ()


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
    waits, waited, last_in, n_matched = _who_waits(answers, numbers, doubts)
    found = []
    for number, a in zip(numbers, answers, strict=True):
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
                waited_ms=waited[number] / 1e3 / n,
                last_in=last_in[number],
            )
        )
        doubts += [f"rank {number}: {w}" for w in a["warnings"]]
    found.sort(key=lambda r: r.rank)
    if not n_matched and len(found) > 1 and any(r.communication_ms for r in found):
        doubts.append(
            "the collectives run on the host (gloo, MPI): who waits for whom is not known"
            if not any(r.device_ms.get("communication") for r in found)
            else "no collective of one rank was matched with another rank's"
        )
    n_steps = max(max(r.n_steps for r in found), 1)
    per_step = {pair: us / 1e3 / n_steps for pair, us in waits.items()}
    compute = [r.device_ms["compute"] for r in found if r.device_ms]
    mean = sum(compute) / len(compute) if compute else 0.0
    return Ranks(
        ranks=tuple(found),
        waits_ms=dict(sorted(per_step.items(), key=lambda item: -item[1])),
        n_collectives=n_matched,
        stragglers=_stragglers(found, per_step, n_matched),
        imbalance=max(compute) / mean if mean else None,
        warnings=together(doubts),
    )


def _communication_ms(answer: dict[str, Any], n: int) -> float:
    """On the device; of collectives that run on the host (gloo, MPI) there."""
    on_device = float(answer["communication_us"]) / 1e3 / n
    return on_device or _mean(answer["host_us"], n).get("communication", 0.0)


def _mean(steps: list[dict[str, float]], n: int) -> dict[str, float]:
    classes = steps[0] if steps else {}
    return {c: sum(s[c] for s in steps) / 1e3 / n for c in classes}


def _who_waits(
    answers: list[dict[str, Any]], numbers: list[int], doubts: list[str]
) -> tuple[dict[tuple[int, int], float], dict[int, float], dict[int, int], int]:
    """µs by (who, for whom) and by who; how often each came last; matched collectives."""
    waits: dict[tuple[int, int], float] = defaultdict(float)
    waited: dict[int, float] = defaultdict(float)
    last_in: dict[int, int] = dict.fromkeys(numbers, 0)
    lanes = [_lanes(a) for a in answers]
    if len(answers) < 2 or not any(lanes):
        return waits, waited, last_in, 0
    shared = set(lanes[0]).intersection(*lanes[1:])
    n_matched, n_left = 0, 0
    for key in sorted(shared):
        sizes = {len(lane[key]) for lane in lanes}
        if len(sizes) > 1:
            n_left += 1
            continue
        for durations in zip(*(lane[key] for lane in lanes), strict=True):
            n_matched += 1
            least = min(range(len(durations)), key=durations.__getitem__)
            last = numbers[least]
            last_in[last] += 1
            for number, dur in zip(numbers, durations, strict=True):
                if number != last:
                    waits[number, last] += dur - durations[least]
                    waited[number] += dur - durations[least]
    n_left += len(set().union(*lanes)) - len(shared)
    if n_left:
        doubts.append(f"{n_left} kinds of collectives differ between the ranks: not compared")
    return waits, waited, last_in, n_matched


def _lanes(answer: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    """(step, collective) → durations in the order of time."""
    c = answer["collectives"]
    order = sorted(range(len(c["start_us"])), key=c["start_us"].__getitem__)
    lanes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i in order:
        lanes[answer["step_names"][c["step"][i]], c["name"][i]].append(c["dur_us"][i])
    return lanes


def _stragglers(
    found: list[Rank], waits_ms: Mapping[tuple[int, int], float], n_matched: int
) -> tuple[int, ...]:
    if len(found) < 2 or not n_matched:
        return ()
    others_ms = sum(r.step_ms for r in found) * (len(found) - 1) / len(found)
    lost: dict[int, float] = defaultdict(float)
    for (_, last), ms in waits_ms.items():
        lost[last] += ms
    # Of two ranks a fair share is a half already: there a straggler comes last in 3 of 4.
    fair = n_matched / len(found)
    # Of many ranks it is less than one collective: to be last once is chance, twice is not.
    often = max(min(2 * fair, (n_matched + fair) / 2), min(2, n_matched))
    bad = [
        r.rank
        for r in found
        if r.last_in >= often and lost[r.rank] > _STRAGGLER_WAIT_SHARE * others_ms
    ]
    return tuple(sorted(bad, key=lambda number: -lost[number]))
