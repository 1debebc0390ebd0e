"""What ranks say of themselves: who died, who hangs, who never came; no process but this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.errors import UsageError, WorkloadKilledError
from perfkit.script.ranks.job import FOLDER_VARIABLE, Job, job_of
from perfkit.script.ranks.joint import joint
from perfkit.script.ranks.launch import _failure
from perfkit.script.ranks.meeting import Meeting, live_words
from perfkit.script.ranks.pulse import Glimpse, Pulse, Status, aged, lives, read_statuses, stuck

_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def _status(rank: int, **more: object) -> Status:
    return replace(Status(rank, os.getpid(), _born(), time.time()), **more)  # type: ignore[arg-type]


def _born(pid: int | None = None) -> int:
    from perfkit.script.ranks import pulse

    return pulse._born(pid or os.getpid()) or 0


def _dead(rank: int, **more: object) -> Status:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return replace(_status(rank, **more), pid=ended.pid, born=1)


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


def test_a_pulse_tells_step_and_line_until_the_end(tmp_path: Path) -> None:
    seen = Glimpse(15, 5.0, 3.0, 1.5, "backward")
    pulse = Pulse(tmp_path, 3, lambda: seen)
    pulse.start()
    deadline = time.monotonic() + 60
    while not (status := read_statuses(tmp_path, [3])[3]).n_steps and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (status.n_steps, status.phase, status.ended) == (15, "backward", "")
    assert status.step_ms == pytest.approx(200)
    assert status.wait_share == pytest.approx(0.5)
    assert "test_rank_status.py" in status.line  # a step of 5 s is looked into
    assert lives(status)
    pulse.ends("finished", is_told=True)
    status = read_statuses(tmp_path, [3])[3]
    assert (status.ended, status.is_told, status.n_steps) == ("finished", True, 15)
    assert [p.name for p in tmp_path.iterdir()] == ["status3.json"]


@pytest.mark.parametrize(("in_step_s", "is_looked_into"), [(1.9, False), (2.1, True)])
def test_a_step_of_two_seconds_is_looked_into(
    tmp_path: Path, in_step_s: float, is_looked_into: bool
) -> None:
    status = Pulse(tmp_path, 3, lambda: Glimpse(15, in_step_s, 3.0, 1.5, "backward"))._now()
    assert ("test_rank_status.py" in status.line) is is_looked_into


def test_a_pulse_that_cannot_look_or_write_is_silent(tmp_path: Path) -> None:
    def broken() -> Glimpse:
        raise RuntimeError("broken")

    pulse = Pulse(tmp_path, 0, broken)
    pulse.start()
    pulse.ends("finished")
    assert read_statuses(tmp_path, [0])[0].ended == "finished"
    gone = Pulse(tmp_path / "absent", 0, broken)
    gone.start()
    gone.ends("finished")


def test_who_holds_up_the_others_is_behind_or_elsewhere() -> None:
    a, b, c = (_status(i, n_steps=15) for i in range(3))
    meets = [replace(s, meets=True) for s in (a, b, c)]
    assert stuck([meets[0], b, meets[2]]) == (b,)
    behind = replace(b, n_steps=14)
    assert stuck([meets[0], behind, meets[2]]) == (behind,)
    assert stuck(meets) == ()
    assert stuck([a, b, c]) == ()
    assert stuck([a]) == ()
    # a rank that left the loop: the one that waits in a collective is behind, and waits for it
    done = replace(a, n_steps=16, ended="finished")
    assert stuck([done, meets[1]]) == (done,)


@pytest.mark.parametrize(("silent_s", "in_step_s"), [(4.5, 1.0), (5.5, 6.5)])
def test_a_rank_that_says_nothing_for_five_seconds_is_still_in_its_step(
    silent_s: float, in_step_s: float
) -> None:
    """It speaks twice a second; on a busy machine it may be late by seconds, and go on stepping."""
    said = _status(0, n_steps=3, in_step_s=1.0, at_s=100.0)
    (now,) = aged([said], 100.0 + silent_s)
    assert now.in_step_s == pytest.approx(in_step_s)


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
    _said(tmp_path, _status(0, ended="was ended by SIGTERM"), _dead(1, n_steps=15))
    died = _failure(joint(tmp_path, range(2), 2), job, tmp_path, "its output", hung=False)
    assert isinstance(died, WorkloadKilledError)
    assert str(died).startswith("Rank 1 died, last seen in step 16")
    assert died.traceback_text == "its output"
    job.process.returncode = 0
    assert _failure(joint(tmp_path, range(2), 2), job, tmp_path, "", hung=False) is None


@pytest.mark.parametrize(("asked_s", "told"), [(None, ""), (3.0, "The job hung for 4.00 s: ")])
def test_who_ended_a_job_says_after_how_long(
    tmp_path: Path, asked_s: float | None, told: str
) -> None:
    """The error of a job ended after less than 20 s was about one in which nobody hung."""
    waits = _status(0, n_steps=15, in_step_s=4.0, meets=True)
    for one in (waits, _status(1, n_steps=15, in_step_s=4.0, line="train.py:7")):
        (tmp_path / f"status{one.rank}.json").write_text(json.dumps(asdict(one)))
    found = joint(tmp_path, range(2), 2, hung_after_s=asked_s)
    assert found.sentence.startswith(told)
    assert found.culprits == ((1,) if told else ())


@pytest.mark.parametrize(
    ("usual_ms", "stood_s", "hung"),
    [(10.0, 18.0, False), (10.0, 22.0, True), (3_000.0, 28.0, False), (3_000.0, 32.0, True)],
)
def test_a_job_hung_where_no_step_ended_for_twenty_seconds_and_ten_steps(
    tmp_path: Path, usual_ms: float, stood_s: float, hung: bool
) -> None:
    """Where nobody said after how long: a checkpoint or a compilation may take less than that."""
    known = {"n_steps": 15, "in_step_s": stood_s, "step_ms": usual_ms}
    _, sentence = _said(
        tmp_path, _status(0, meets=True, **known), _status(1, line="train.py:7", **known)
    )
    assert sentence.startswith("The job hung") is hung


@pytest.mark.parametrize(("silent_s", "said"), [(18, "died"), (22, "gave no sign")])
def test_a_rank_that_was_silent_long_before_the_others_ended_may_have_hung(
    tmp_path: Path, silent_s: float, said: str
) -> None:
    """A launcher ends the others soon after one has died."""
    now_s = time.time()
    _, sentence = _said(
        tmp_path,
        _status(0, n_steps=19, at_s=now_s, ended="was ended by SIGTERM"),
        _dead(1, n_steps=17, at_s=now_s - silent_s),
    )
    assert sentence.startswith(f"Rank 1 {said}")


def test_a_rank_that_was_stopped_did_not_run_out_of_memory(tmp_path: Path) -> None:
    """After a SIGSTOP torchrun kills the rank in the end, and the report blamed the memory."""
    now_s = time.time()
    culprits, sentence = _said(
        tmp_path,
        _status(0, n_steps=19, at_s=now_s, in_step_s=65, ended="was ended by SIGTERM"),
        _dead(1, n_steps=17, at_s=now_s - 65),
    )
    assert culprits == (1,)
    assert sentence.startswith("Rank 1 gave no sign for the last 65.0 s, last seen in step 18: ")
    assert "memory" not in sentence


def test_who_finished_before_a_rank_was_stopped_says_nothing_of_it(tmp_path: Path) -> None:
    now_s = time.time()
    _, sentence = _said(
        tmp_path,
        _status(0, n_steps=19, at_s=now_s, ended="was ended by SIGTERM"),
        _dead(1, n_steps=17, at_s=now_s - 65),
        _status(2, n_steps=10, at_s=now_s - 90, ended="finished"),
    )
    assert sentence.startswith("Rank 1 gave no sign for the last 65.0 s")


@pytest.fixture
def stopped() -> Iterator[Status]:
    """Of a process that is stopped, as rank 1; its last word was in step 18."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a process's state is read from /proc")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        yield _status(1, pid=child.pid, born=_born(child.pid), n_steps=17, at_s=time.time() - 7)
    finally:
        child.kill()
        child.wait()


def test_a_rank_that_is_stopped_now_is_said_to_be(tmp_path: Path, stopped: Status) -> None:
    ended = "was ended by SIGTERM"
    culprits, sentence = _said(
        tmp_path, _status(0, n_steps=19, ended=ended, at_s=stopped.at_s + 7), stopped
    )
    assert culprits == (1,)
    assert sentence.startswith("Rank 1 is stopped (SIGSTOP, Ctrl-Z or a debugger), last seen in ")
    assert "in step 18, 7.00 s before the report; the other rank ended" in sentence
    assert [r.ended for r in joint(tmp_path, range(2), 2).ranks] == [ended, "is stopped"]


@pytest.mark.parametrize(
    ("ended", "silent_s", "reports"),
    [("was ended by SIGTERM", 0.0, True), ("finished", 7.0, True), ("finished", 1.0, False)],
)
def test_who_ends_last_but_for_a_stopped_rank_reports(
    ended: str, silent_s: float, reports: bool, tmp_path: Path, stopped: Status
) -> None:
    said = replace(stopped, at_s=time.time() - silent_s)
    (tmp_path / "status1.json").write_text(json.dumps(asdict(said)))
    meeting = Meeting(
        Job(0, 2, (0, 1), tmp_path, is_kept=True),
        lambda: Glimpse(19, 0.1, 3.0, None, "backward"),
        None,
    )
    meeting.ends(ended)
    with meeting.report() as found:
        assert (found is not None) is reports


def test_a_rank_that_says_nothing_is_told_while_the_job_hangs(tmp_path: Path) -> None:
    """What a stopped process last said is that its step is young."""
    now_s = time.time()
    _said(
        tmp_path,
        _status(0, n_steps=19, in_step_s=45, meets=True),
        _status(1, n_steps=17, in_step_s=0.1, at_s=now_s - 45),
    )
    told: list[str] = []
    job = Job(0, 2, (0, 1), tmp_path, is_kept=True)
    look = Glimpse(19, 45.0, 3.0, None, "backward")
    Meeting(job, lambda: look, told.append)._look_around()
    (said,) = told
    assert "rank 1 is in step 18 and has given no sign for 45" in said
    assert said.endswith("rank 0 waits for it")


def test_a_rank_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    ended = "was ended by SIGTERM"
    in_c = f"{ended} in a call that did not return to Python"
    culprits, sentence = _said(
        tmp_path,
        _status(0, n_steps=15, in_step_s=50, ended=in_c, line="train.py:9", meets=True),
        _status(1, n_steps=15, in_step_s=50, ended=ended, line="train.py:7: time.sleep(600)"),
    )
    assert culprits == (1,)
    assert "rank 1 is in step 16, at train.py:7: time.sleep(600); rank 0 waits for it" in sentence


def test_a_rank_that_never_joined_is_named(tmp_path: Path) -> None:
    culprits, sentence = _said(tmp_path, _status(0, ended="was ended by SIGTERM"), n=2)
    assert culprits == (1,)
    assert sentence.startswith("Rank 1 never joined")


def test_a_job_that_finished_has_no_culprit(tmp_path: Path) -> None:
    culprits, sentence = _said(
        tmp_path, *(_status(i, n_steps=3, ended="finished", in_step_s=99) for i in range(2))
    )
    assert culprits == ()
    assert "not known" in sentence


def test_the_live_line_says_how_ranks_differ() -> None:
    alike = [_status(i, n_steps=9, wait_share=0.1 + 0.02 * i) for i in range(3)]
    assert live_words(alike) == ""
    waits = [*alike[:2], replace(alike[2], wait_share=0.8)]
    assert live_words(waits) == "rank 2 waits 80% for data, the others 11%"
    assert live_words([alike[0], replace(alike[1], n_steps=4)]) == "rank 1 is 5 steps behind"
    assert live_words([]) == ""


def test_one_rank_of_several_machines_says_where_the_report_on_all_is(tmp_path: Path) -> None:
    (tmp_path / "status1.json").write_text(json.dumps(asdict(_status(1, ended="finished"))))
    found = joint(tmp_path, [1], 2)
    assert found.sentence.startswith("One rank is known here")
    assert any("this is of the 1 on this machine" in w for w in found.warnings)
