"""What a rank leaves in the folder of the run when it ends, for the report on all ranks.

``rank3.json`` has its figures, the phases of each step and what its recorded steps say about
collectives, ``rank3.trace.json.gz`` the recorded steps themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.base.errors import PerfkitError
from perfkit.base.files import write_atomically
from perfkit.measure.phases import PHASES
from perfkit.script._torch_watch import TorchWatch
from perfkit.script.whole_run import WholeRun
from perfkit.trace.ask.rank_summary import summary_of


@dataclass(frozen=True)
class RankRecord:
    """A rank's figures; see also :class:`~perfkit.script.ranks.joint.RankRun`.

    Attributes:
        phase_s: seconds of each phase in the whole run; until its last step where it did not
            finish, since what came after that may be nothing but a hang.
        samples: of the batches that came from DataLoaders; None where that is not known.
        collectives: what :func:`perfkit.trace.ask.rank_summary.summary_of` says of its recorded
            steps; None where none was recorded.
        n_left_out: first steps that no figure is of.
        busy: what else its machine did during the run, in words; empty where nothing slowed it.
        lost: upper bound of the share of time that it lost to that.
        numbers: of the steps, from 0; of a long run every second, fourth … one.
        phase_ms: milliseconds, a row per step, a column per phase of
            :data:`~perfkit.measure.phases.PHASES`.
    """

    rank: int
    program: str
    n_steps: int
    step_ms: float | None
    phase_s: dict[str, float]
    samples: int | None
    memory_bytes: int | None
    memory_kind: str
    collectives: dict[str, Any] | None
    n_left_out: int
    busy: str = ""
    lost: float = 0.0
    text: str = ""
    numbers: Sequence[int] = ()
    phase_ms: Sequence[Sequence[float]] = ()


def keep(
    folder: Path,
    rank: int,
    result: WholeRun,
    seen: TorchWatch | None,
    *,
    text: str = "",
    trace: bool = False,
) -> None:
    """Leave this rank's record in the job's folder, with ``trace`` the recorded steps, too."""
    steps = result.steps
    memory = None if steps is None else steps.memory
    busy = None if seen is None else seen.run.busy
    known = None if seen is None else seen.meter.steps
    record = RankRecord(
        rank=rank,
        program=result.program,
        n_steps=result.n_steps,
        step_ms=None if steps is None or steps.step is None else steps.step.median,
        phase_s=_phase_s(result, seen),
        samples=seen.run.samples if seen is not None and seen.run.uses_loader else None,
        memory_bytes=None if memory is None else memory.highest_bytes,
        memory_kind="" if memory is None else memory.kind,
        collectives=_collectives(result, rank),
        n_left_out=0 if seen is None else seen.run.n_left_out,
        busy="" if busy is None else busy.sentence(),
        lost=0.0 if busy is None else busy.lost,
        text=text,
        numbers=[] if known is None else known.numbers.tolist(),
        phase_ms=[]
        if known is None
        else np.stack([known.phase_ms[name] for name in PHASES], axis=1).round(3).tolist(),
    )
    if trace and result.profile is not None:
        write_atomically(folder / f"rank{rank}.trace.json.gz", result.profile.save)
    told = msgspec.json.encode(record, enc_hook=float)
    write_atomically(folder / f"rank{rank}.json", lambda part: part.write_bytes(told))


def _phase_s(result: WholeRun, seen: TorchWatch | None) -> dict[str, float]:
    steps = result.steps
    if steps is None:
        return {}
    if result.ended == "finished" or seen is None or not steps.phases:
        return {one.name: one.seconds for one in steps.phases}
    run = seen.run
    until_ns = run.phases.told(list(map(operator.sub, run.phase_ns, run.after_ns)))
    return {name: ns / 1e9 for name, ns in zip(PHASES, until_ns, strict=True)}


def read_record(folder: Path, rank: int) -> RankRecord | None:
    """What that rank left; None where it left nothing that can be read."""
    try:
        return msgspec.json.decode((folder / f"rank{rank}.json").read_bytes(), type=RankRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _collectives(result: WholeRun, rank: int) -> dict[str, Any] | None:
    if result.profile is None:
        return None
    try:
        return {**summary_of(result.profile.trace, f"rank {rank}"), "rank": rank}
    except PerfkitError:
        return None
