"""What ranks say of themselves: who died, who hangs, who never came; no process but this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.errors import UsageError, WorkloadKilledError
from perfkit.script.ranks.heartbeat import Heartbeat, Snapshot, Status, lives, read_statuses
from perfkit.script.ranks.job import FOLDER_VARIABLE, job_of
from perfkit.script.ranks.joint import joint
from perfkit.script.ranks.launch import _failure

_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def _status(rank: int, **more: object) -> Status:
    now_s = time.time()
    return replace(Status(rank, os.getpid(), now_s, step_began_s=now_s), **more)  # type: ignore[arg-type]


def _dead(rank: int, **more: object) -> Status:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return replace(_status(rank, **more), pid=ended.pid)


def _said(folder: Path, *statuses: Status, n: int | None = None) -> tuple[tuple[int, ...], str]:
    for one in statuses:
        (folder / f"status{one.rank}.json").write_text(json.dumps(asdict(one)))
    n = len(statuses) if n is None else n
    found = joint(folder, range(n), n)
    assert str(found)
    return found.culprits, found.sentence


def test_only_a_launcher_that_says_so_makes_a_job(tmp_path: Path) -> None:
    assert job_of({}) is None
    assert job_of({"RANK": "1"}) is None
    assert job_of({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert job_of({"RANK": "5", "WORLD_SIZE": "2"}) is None
    job = job_of({**_TORCHRUN, FOLDER_VARIABLE: str(tmp_path / "new")})
    assert job is not None
    assert (job.rank, job.world_size, job.here, job.is_lent) == (1, 2, (0, 1), True)
    assert job.folder == tmp_path / "new" / "attempt0"
    second = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    again = {**second, "TORCHELASTIC_RESTART_COUNT": "1"}
    job = job_of(again, tmp_path)
    assert job is not None
    assert (job.here, job.folder.name) == ((2, 3), "attempt1")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        job_of(_TORCHRUN, tmp_path / "file")


def test_ranks_of_one_launcher_meet_and_the_folder_goes_with_it() -> None:
    told = []
    for rank in range(2):
        code = (
            "from perfkit.script.ranks.job import job_of; import os; "
            "print(job_of(os.environ).folder)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True, check=True,
            env={**os.environ, **_TORCHRUN, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )  # fmt: skip
        told.append(done.stdout.strip())
    folder = Path(told[0]).parent
    try:
        assert told[0] == told[1]
        assert f"-{os.getpid()}-" in folder.name  # what perfkit.base.scratch sweeps by
    finally:
        Path(told[0]).rmdir()
        folder.rmdir()


def test_a_heartbeat_tells_step_and_line_until_the_end(tmp_path: Path) -> None:
    seen = Snapshot(15, 5.0, 200.0)
    heartbeat = Heartbeat(tmp_path, 3, lambda: seen)
    heartbeat.start()
    deadline = time.monotonic() + 60
    while not (status := read_statuses(tmp_path, [3])[3]).n_steps and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (status.n_steps, status.ended) == (15, "")
    assert status.at_s - status.step_began_s == pytest.approx(5.0)
    assert status.step_ms == pytest.approx(200)
    assert "test_rank_status.py" in status.line  # a step of 5 s is looked into
    assert lives(status)
    heartbeat.ends("finished", is_told=True)
    status = read_statuses(tmp_path, [3])[3]
    assert (status.ended, status.is_told, status.n_steps) == ("finished", True, 15)
    assert [p.name for p in tmp_path.iterdir()] == ["status3.json"]


@pytest.mark.parametrize(("in_step_s", "is_looked_into"), [(1.9, False), (2.1, True)])
def test_a_step_of_two_seconds_is_looked_into(
    tmp_path: Path, in_step_s: float, is_looked_into: bool
) -> None:
    status = Heartbeat(tmp_path, 3, lambda: Snapshot(15, in_step_s, 200.0))._now()
    assert ("test_rank_status.py" in status.line) is is_looked_into


def test_a_heartbeat_that_cannot_look_or_write_is_silent(tmp_path: Path) -> None:
    def broken() -> Snapshot:
        raise RuntimeError("broken")

    heartbeat = Heartbeat(tmp_path, 0, broken)
    heartbeat.start()
    heartbeat.ends("finished")
    assert read_statuses(tmp_path, [0])[0].ended == "finished"
    gone = Heartbeat(tmp_path / "absent", 0, broken)
    gone.start()
    gone.ends("finished")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "is in its set-up"),
        ({"n_steps": 15}, "is in step 16"),
        ({"n_steps": 15, "line": "train.py:7"}, "is in step 16, at train.py:7"),
        ({"n_steps": 15, "line": "train.py:7", "waits_in": "all_reduce"}, "waits in all_reduce"),
        # it speaks twice a second; on a busy machine it may be late by seconds, and go on stepping
        ({"at_s": 95.5}, "is in its set-up"),
        ({"at_s": 94.5, "waits_in": "all_reduce"}, "has given no sign for 5.50 s"),
        ({"at_s": 60.0, "ended": "was ended by SIGTERM"}, "is in its set-up"),
    ],
)
def test_what_a_rank_does(known: dict[str, Any], said: str) -> None:
    assert replace(Status(0, 1, 100.0), **known).does(100.0) == said


def test_the_first_one_that_failed_is_named(tmp_path: Path) -> None:
    now_s = time.time()
    culprits, sentence = _said(
        tmp_path,
        _status(0, n_steps=15, at_s=now_s, ended="raised RuntimeError"),
        _status(1, n_steps=15, at_s=now_s - 1, ended="raised ValueError"),
        _status(2, n_steps=15, at_s=now_s - 0.5, ended="was ended by SIGTERM"),
    )
    assert culprits == (1,)
    assert sentence == "Rank 1 raised ValueError in step 16; the 2 other ranks ended after it."


def test_a_rank_that_fails_after_another_was_ended_is_not_named(tmp_path: Path) -> None:
    """The report blamed the rank whose exchange broke when somebody ended the other one."""
    now_s = time.time()
    culprits, sentence = _said(
        tmp_path,
        _status(0, n_steps=195, at_s=now_s, ended="raised RuntimeError"),
        _status(1, n_steps=194, at_s=now_s - 1, ended="was ended by SIGTERM"),
    )
    assert culprits == (1,)
    assert sentence == "Rank 1 was ended by SIGTERM in step 195; the other rank ended after it."


def test_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    culprits, sentence = _said(
        tmp_path,
        _status(0, n_steps=15, ended="raised RuntimeError"),
        _dead(1, n_steps=15, at_s=time.time() - 3),
    )
    assert culprits == (1,)
    assert sentence.startswith("Rank 1 died, last seen in step 16: its process was killed")


def test_a_launched_job_says_how_its_rank_ended(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(process=SimpleNamespace(returncode=1))
    dead = _dead(1, n_steps=15, at_s=time.time() - 1)
    _said(tmp_path, _status(0, ended="was ended by SIGTERM"), dead)
    died = _failure(joint(tmp_path, range(2), 2), job, tmp_path, "its output", hung=False)
    assert isinstance(died, WorkloadKilledError)
    assert str(died).startswith("Rank 1 died, last seen in step 16")
    assert died.traceback_text == "its output"
    job.process.returncode = 0
    assert _failure(joint(tmp_path, range(2), 2), job, tmp_path, "", hung=False) is None


def _in_step(rank: int, for_s: float, **more: object) -> Status:
    return _status(rank, step_began_s=time.time() - for_s, **more)


@pytest.mark.parametrize("hung", [False, True])
def test_who_ended_a_job_says_that_it_hung(tmp_path: Path, hung: bool) -> None:
    """The error of a job ended after less than 20 s was about one in which nobody hung."""
    waits = _in_step(0, 4.0, n_steps=15, waits_in="all_reduce")
    for one in (waits, _in_step(1, 4.0, n_steps=15, line="train.py:7")):
        (tmp_path / f"status{one.rank}.json").write_text(json.dumps(asdict(one)))
    found = joint(tmp_path, range(2), 2, hung=hung)
    assert found.sentence.startswith("No rank has made a step for 4.") is hung
    assert found.culprits == ((1,) if hung else ())
    assert joint(tmp_path, range(3), 3, hung=True).sentence.startswith("Rank 2 was never seen")


@pytest.mark.parametrize(
    ("usual_ms", "stood_s", "hung"),
    [(10.0, 18.0, False), (10.0, 22.0, True), (3_000.0, 28.0, False), (3_000.0, 32.0, True)],
)
def test_a_job_hung_where_no_step_ended_for_twenty_seconds_and_ten_steps(
    tmp_path: Path, usual_ms: float, stood_s: float, hung: bool
) -> None:
    """Where nobody said after how long: a checkpoint or a compilation may take less than that."""
    known: dict[str, Any] = {"n_steps": 15, "step_ms": usual_ms, "ended": "was ended by SIGTERM"}
    _, sentence = _said(
        tmp_path,
        _in_step(0, stood_s, waits_in="barrier", **known),
        _in_step(1, stood_s, line="train.py:7", **known),
    )
    assert sentence.startswith("No rank has made a step") is hung


def test_a_rank_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    ended = "was ended by SIGTERM"
    in_c = f"{ended} in a call that did not return to Python"
    culprits, sentence = _said(
        tmp_path,
        _in_step(0, 50, n_steps=15, ended=in_c, line="train.py:9", waits_in="all_reduce"),
        _in_step(1, 50, n_steps=15, ended=ended, line="train.py:7: time.sleep(600)"),
    )
    assert culprits == (1,)
    assert sentence.endswith(
        "rank 1 is in step 16, at train.py:7: time.sleep(600); rank 0 waits in all_reduce."
    )


def test_a_rank_that_never_joined_is_named(tmp_path: Path) -> None:
    culprits, sentence = _said(tmp_path, _status(0, ended="was ended by SIGTERM"), n=2)
    assert culprits == (1,)
    assert sentence.startswith("Rank 1 was never seen: the launcher was to start 2 processes here")


def test_a_job_that_finished_has_no_culprit(tmp_path: Path) -> None:
    culprits, sentence = _said(
        tmp_path, *(_in_step(i, 99, n_steps=3, ended="finished") for i in range(2))
    )
    assert culprits == ()
    assert "not known" in sentence


def test_one_rank_of_several_machines_says_where_the_report_on_all_is(tmp_path: Path) -> None:
    (tmp_path / "status1.json").write_text(json.dumps(asdict(_status(1, ended="finished"))))
    found = joint(tmp_path, [1], 2)
    assert found.sentence.startswith("One rank is known here")
    assert any("this is of the 1 on this machine" in w for w in found.warnings)
