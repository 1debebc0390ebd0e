"""Who is late on a busy machine may be late because of it: the joint report says so first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfkit.measure.phases import PHASES
from perfkit.script.ranks.joint import joint
from perfkit.script.ranks.record import RankRecord

_BUSY = "The machine was busy: other programs used 1.7 of 2 cores."
_A_LITTLE = "The machine was a little busy: the hypervisor took 6 % of the cores' time away."


def _leave(folder: Path, busy: dict[int, tuple[str, float]]) -> str:
    """Two ranks, of which rank 1 waits 8 ms longer for data; what the report says."""
    record = RankRecord(0, "train.py", 40, 20.0, {}, None, None, "", None, 1)
    rows = np.zeros((40, len(PHASES)))
    rows[:, PHASES.index("data_wait")], rows[:, PHASES.index("backward")] = 10.0, 28.0
    late = rows.copy()
    late[:, PHASES.index("data_wait")], late[:, PHASES.index("backward")] = 18.0, 20.0
    for rank, phase_ms in enumerate((rows, late)):
        said, lost = busy.get(rank, ("", 0.0))
        steps = {"numbers": list(range(40)), "phase_ms": phase_ms.tolist()}
        one = replace(record, rank=rank, busy=said, lost=lost, **steps)
        (folder / f"rank{rank}.json").write_text(json.dumps(one.__dict__))
        status = {"rank": rank, "pid": 1, "at_s": 1.0, "ended": "finished"}
        (folder / f"status{rank}.json").write_text(json.dumps(status))
    found = joint(folder, range(2), 2)
    assert found.sentence.startswith("Rank 0 waits for rank 1")
    return found.doubt


def test_a_quiet_machine_is_not_mentioned(tmp_path: Path) -> None:
    assert not _leave(tmp_path, {})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_busy_machine_weakens_the_verdict(tmp_path: Path, rank: int) -> None:
    said = _leave(tmp_path, {rank: (_BUSY, 0.5)})
    assert said.startswith("The machine was busy: other programs used 1.7 of 2 cores (as rank ")
    assert f"(as rank {rank} saw it). Measure again on a quiet machine" in said


def test_a_slightly_busy_machine_keeps_the_verdict(tmp_path: Path) -> None:
    said = _leave(tmp_path, {0: (_A_LITTLE, 0.06)})
    assert said.startswith("The machine was a little busy")
    assert "Measure again" not in said
