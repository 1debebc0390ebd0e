"""One report on all ranks of a run: who waits for whom, who holds up the others, who ended it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.display import Shown
from perfkit.base.machine import Provenance, stamp
from perfkit.base.machine.cpu_contention import SPOILS_FROM
from perfkit.base.plain import fields
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_s, fmt_share
from perfkit.measure.phases import PHASE_WORDS
from perfkit.script.ranks.heartbeat import FINISHED, Status, lives, quiet_s, read_statuses
from perfkit.script.ranks.lateness import Lateness, LateRank, lateness, own_phases
from perfkit.script.ranks.record import RankRecord, read_record
from perfkit.trace.ask.ranks import Ranks, ranks_of

#: How launchers end the other ranks when one has failed.
ENDED_BY_SIGTERM = "was ended by SIGTERM"
# A job that was ended after so long without a step hung.
_HUNG_AFTER_S = 20.0
_MOST_NAMED = 4
# From this share on, what a rank spends in collectives is mostly its wait for others.
_MOSTLY_WAITS = 0.5
# Less of a step than this, lost to a late rank, is not the first thing to say.
_LITTLE = 0.1
# Ranks that differ by more than this have unlike shares.
_UNEVEN = 1.1


@dataclass(frozen=True)
class RankRun:
    """One rank of a run.

    Attributes:
        ended: how it ended, in words that follow its name; ``"died"`` without a word,
            ``"was not seen"``, ``"is still running"``.
        phase_ms: phase → ms a step, mean of the run, without what came after the last step of a
            rank that did not finish; empty where unknown.
        wait_ms: its wait for later ranks, ms a step, by phases or collectives; None where unknown.
        line: where it was when the job hung; empty otherwise.
    """

    rank: int
    ended: str
    n_steps: int
    step_ms: float | None
    phase_ms: Mapping[str, float]
    wait_ms: float | None
    memory_bytes: int | None
    samples: int | None
    line: str = ""


@dataclass(frozen=True, eq=False)
class RankedRun(Shown):
    """A run of several ranks, from its start to its end.

    Attributes:
        sentence: who ended it, or holds up the others, or that nobody does.
        ranks: those that are known, by number: of all machines, or of this one.
        culprits: ranks that ended or hold up the job, the first one first; empty where it finished.
        late: who comes late, by the phases of all steps; None where that is not known.
        compared: who waits for whom, by the collectives of the recorded steps; None where none
            were recorded.
        memory_imbalance: highest over mean memory of the ranks; None where unknown.
        batch_imbalance: most over mean samples of the ranks; None where unknown.
        doubt: what other programs did meanwhile, in a sentence; empty where that is little.
    """

    program: str
    sentence: str
    world_size: int
    ranks: tuple[RankRun, ...]
    culprits: tuple[int, ...]
    late: Lateness | None
    compared: Ranks | None
    memory_imbalance: float | None
    batch_imbalance: float | None
    warnings: tuple[str, ...]
    provenance: Provenance
    doubt: str = ""

    @property
    def is_even(self) -> bool:
        """Whether all ended well and waiting for others is little: one rank tells for all."""
        late = self.late
        worst_ms = max((one.lost_ms for one in late.late), default=0.0) if late else 0.0
        is_late = late is not None and worst_ms > _LITTLE * late.step_ms
        waits = any(map(self.mostly_waits, range(self.world_size)))
        return not (self.culprits or is_late or waits)

    def mostly_waits(self, rank: int) -> tuple[float, float] | None:
        """If this rank's collectives are mostly its wait for later ranks: ms a step, and share."""
        if self.compared is None:
            return None
        waited_ms = next((r.waited_ms for r in self.compared.ranks if r.rank == rank), 0.0)
        whole_ms = waited_ms + (self.compared.transfer_ms or 0.0)
        if not whole_ms or waited_ms < _MOSTLY_WAITS * whole_ms:
            return None
        return waited_ms, waited_ms / whole_ms

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types; times in ms a step."""
        compared = self.compared
        collectives = compared and {
            "n": compared.n_collectives,
            "skew_ms": compared.skew_ms,
            "transfer_ms": compared.transfer_ms,
            "stragglers": compared.stragglers,
            "waits": compared.waits,
        }
        return fields(self, without=("compared",), type="ranks", collectives=collectives)


def joint(
    folder: Path,
    ranks: Sequence[int],
    world_size: int,
    *,
    here: Sequence[int] | None = None,
    hung: bool = False,
) -> RankedRun:
    """The report on what the ranks left in the folder.

    Those ``here`` are on this machine, by default all; what has not ended on another one died. The
    job ``hung`` if whoever ended it did so because it made no step; else if its last step took 20 s
    and ten usual steps.
    """
    here, local = ranks, ranks if here is None else here
    statuses = read_statuses(folder, here)
    alive = {rank for rank in local if (s := statuses.get(rank)) and not s.ended and lives(s)}
    records = {rank: record for rank in here if (record := read_record(folder, rank)) is not None}
    program = next((r.program for r in records.values()), "the run")
    late = lateness(
        {rank: record for rank, record in records.items() if len(record.numbers)},
        own_phases=own_phases(
            [r.collectives["collectives"]["asked"] for r in records.values() if r.collectives],
            on_device=any(r.memory_kind == "allocated" for r in records.values()),
        ),
        n_left_out=max((r.n_left_out for r in records.values()), default=1),
    )
    said = [r.collectives for r in records.values() if r.collectives is not None]
    compared = ranks_of(said) if len(said) > 1 else None
    if compared is not None and not compared.n_collectives:
        compared = None
    wait_ms = {} if late is None else dict(late.wait_by_rank_ms)
    if compared is not None:
        wait_ms |= {one.rank: one.waited_ms for one in compared.ranks}
    culprits, failed = _culprits(here, statuses, alive, hung=hung)
    missing = [rank for rank in here if rank not in records]
    return RankedRun(
        program=program,
        sentence=failed or _sentence(len(here), late, compared),
        doubt="" if failed else _doubt(records),
        world_size=world_size,
        ranks=tuple(
            _rank(rank, statuses.get(rank), records.get(rank), wait_ms.get(rank),
                  is_alive=rank in alive, hung=bool(failed))
            for rank in here
        ),
        culprits=culprits,
        late=late,
        compared=compared,
        memory_imbalance=_imbalance([r.memory_bytes for r in records.values()]),
        batch_imbalance=_imbalance([r.samples for r in records.values()]),
        warnings=_warnings(here, world_size, missing, compared),
        provenance=stamp("measured here"),
    )  # fmt: skip


def _culprits(
    here: Sequence[int], statuses: Mapping[int, Status], alive: set[int], *, hung: bool
) -> tuple[tuple[int, ...], str]:
    """The ranks that ended the job, and the sentence; nothing where it finished."""
    # a launcher ends the others only after the first has failed, and whoever exchanged data with
    # that rank failed because of it
    failed = [s for s in statuses.values() if s.ended != FINISHED and s.rank not in alive]
    if hung or all(s.ended.startswith(ENDED_BY_SIGTERM) for s in failed):
        unseen = [rank for rank in here if rank not in statuses]
        if not unseen:
            return _hung(list(statuses.values()), surely=hung)
        was = f"Rank {unseen[0]} was" if len(unseen) == 1 else f"{len(unseen)} ranks were"
        return tuple(unseen), (
            f"{was} never seen: the launcher was to start {len(here)} processes here, and "
            f"{len(statuses)} came."
        )
    first = min(failed, key=lambda s: (s.at_s, bool(s.ended)))
    step = f"in step {fmt_count(first.n_steps + 1)}" if first.n_steps else "before its first step"
    sentence = f"Rank {first.rank} {first.ended} {step}"
    if not first.ended:
        sentence = (
            f"Rank {first.rank} died, last seen {step}: its process was killed (SIGKILL, as the "
            "system does when memory runs out, or a crash), or left without Python's end (os._exit)"
        )
    victims = sum(1 for s in statuses.values() if s is not first and s.ended != FINISHED)
    ended = f"; {_others(len(here) - 1)} ended after it" if victims else ""
    return (first.rank,), f"{sentence}{ended}."


def _hung(statuses: Sequence[Status], *, surely: bool) -> tuple[tuple[int, ...], str]:
    latest_s = max((s.at_s for s in statuses), default=0.0)
    running = [s for s in statuses if s.ended != FINISHED]
    usual_s = max((s.step_ms or 0.0 for s in running), default=0.0) / 1e3
    still_s = quiet_s(running, latest_s)
    if not surely and still_s < max(_HUNG_AFTER_S, 10 * usual_s):
        return (), ""
    running.sort(key=lambda s: bool(s.waits_in))  # first those that wait for no other
    told = [f"rank {s.rank} {s.does(latest_s)}" for s in running[:_MOST_NAMED]]
    if more := len(running) - len(told):
        told.append(f"{more} more")
    sentence = f"No rank has made a step for {fmt_s(still_s)}: {'; '.join(told)}."
    return tuple(s.rank for s in running if not s.waits_in), sentence


def _others(n: int) -> str:
    return "the other rank" if n == 1 else f"the {n} other ranks"


def _sentence(n: int, late: Lateness | None, compared: Ranks | None) -> str:
    if late is not None and late.late:
        return _late_sentence(late.late[0], late)
    if compared is not None and compared.stragglers:
        slow = compared.stragglers[0]
        lost_ms = sum(ms for (_, whom), ms in compared.waits_ms.items() if whom == slow) / (n - 1)
        return (
            f"{_waiting([r.rank for r in compared.ranks], slow)} for rank {slow}: "
            f"{fmt_ms(lost_ms)} a step in collectives of the recorded steps. No phase before these "
            "explains it: its backward pass takes longer, or what it sends does (a slower link)."
        )
    if n == 1:
        return (
            "One rank is known here, so who waits for whom is not: the machine whose ranks end "
            "last reports on all of them."
        )
    if late is None and compared is None:
        return f"{n} ranks; who waits for whom is not known: they have too few steps in common."
    if late is not None:
        share = late.wait_ms / late.step_ms if late.step_ms else 0.0
        return (
            f"No rank holds up the others: they wait {fmt_ms(late.wait_ms)} a step "
            f"({fmt_share(share)}) for whichever is last."
        )
    return f"{n} ranks; no rank holds up the others in the recorded steps."


def _doubt(records: Mapping[int, RankRecord]) -> str:
    """What other programs did to the rank that lost most to them; empty where they did little."""
    worst = max(records.values(), key=lambda r: r.lost, default=None)
    if worst is None or not worst.busy:
        return ""
    where = f" (as rank {worst.rank} saw it)" if len(records) > 1 else ""
    said = f"{worst.busy.rstrip('.')}{where}."
    again = " Measure again on a quiet machine before you change who comes late."
    return said + again * (worst.lost >= SPOILS_FROM)


def _waiting(ranks: Sequence[int], late: int) -> str:
    others = [rank for rank in ranks if rank != late]
    return f"Rank {others[0]} waits" if len(others) == 1 else f"{len(others)} ranks wait"


def _late_sentence(worst: LateRank, late: Lateness) -> str:
    share = worst.lost_ms / late.step_ms if late.step_ms else 0.0
    waits = f"{_waiting(list(late.wait_by_rank_ms), worst.rank)} for rank {worst.rank}: "
    lost = f"{fmt_ms(worst.lost_ms)} of a step of {fmt_ms(late.step_ms)} ({fmt_share(share)})"
    if not worst.phase:
        return f"{waits}{lost}."
    its = f"its {PHASE_WORDS[worst.phase].removeprefix('the ')}"
    return (
        f"{waits}{its} takes longer, {lost}; {fmt_ms(worst.phase_ms)} where it comes last, "
        f"{fmt_ms(worst.others_ms)} on {_others(len(late.wait_by_rank_ms) - 1)}."
    )


def _rank(
    rank: int,
    status: Status | None,
    record: RankRecord | None,
    wait_ms: float | None,
    *,
    is_alive: bool,
    hung: bool,
) -> RankRun:
    ended, n = "was not seen", 0
    if status is not None:
        ended = status.ended or ("is still running" if is_alive else "died")
        n = status.n_steps
    if record is not None:
        n = record.n_steps
    per_step = {} if record is None or not n else record.phase_s
    return RankRun(
        rank=rank,
        ended=ended,
        n_steps=n,
        step_ms=None if record is None else record.step_ms,
        phase_ms={name: 1e3 * s / n for name, s in per_step.items()},
        wait_ms=wait_ms,
        memory_bytes=None if record is None else record.memory_bytes,
        samples=None if record is None else record.samples,
        line=status.line if hung and status is not None else "",
    )


def _imbalance(values: Sequence[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    mean = sum(known) / len(known) if known else 0.0
    return max(known) / mean if len(known) == len(values) > 1 and mean else None


def imbalance_words(run: RankedRun) -> tuple[str, ...]:
    """What is unlike between the ranks, in sentences; nothing where they are alike."""
    said = []
    if run.memory_imbalance is not None and run.memory_imbalance >= _UNEVEN:
        most = max(run.ranks, key=lambda r: r.memory_bytes or 0)
        said.append(
            f"Rank {most.rank} holds {fmt_bytes(most.memory_bytes)}, "
            f"{run.memory_imbalance:.1f} times the mean of the ranks: it limits the batch of all."
        )
    if run.batch_imbalance is not None and run.batch_imbalance >= _UNEVEN:
        most = max(run.ranks, key=lambda r: r.samples or 0)
        said.append(
            f"Rank {most.rank} got {fmt_count(most.samples)} samples, "
            f"{run.batch_imbalance:.1f} times the mean of the ranks."
        )
    return tuple(said)


def _warnings(
    here: Sequence[int], world_size: int, missing: Sequence[int], compared: Ranks | None
) -> tuple[str, ...]:
    said = []
    if len(here) < world_size:
        said.append(
            f"the job has {world_size} ranks; this is of the {len(here)} on this machine: what one "
            "of another machine is late for shows as transfer"
        )
    if missing:
        are = "rank" if len(missing) == 1 else "ranks"
        said.append(f"{are} {', '.join(map(str, missing))} left no figures")
    if compared is not None:
        said += [w for w in compared.warnings if "collectives" in w]
    return tuple(said)
