"""Experiments in their own processes: none affects the others or leaves anything behind."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.ledger import recorder, recording
from perfkit.course.ledger.records import read_record, read_records, slug
from tests.course.ledger.made_records import GPU, here

pytestmark = pytest.mark.slow

MODULE = """\
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path
from perfkit.base.errors import MissingError
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment

OK = Outcome(True, {"n": Figure(1, "B", kind="exact")}, "n", "It does.")

@experiment("A1", lesson="00", title="fine")
def fine(context):
    assert list(context.folder.iterdir()) == []
    (context.folder / "scratch").write_text("x")
    print("words that nobody asked for")
    figures = {
        "seed": Figure(context.seed, "1", kind="exact"),
        "gpus_hidden": Figure(int(os.environ.get("CUDA_VISIBLE_DEVICES") == ""), "1"),
        "budget": Figure(context.budget_s, "s"),
    }
    return Outcome(context.device == "cpu", figures, "seed", "It ran.")

@experiment("A2", lesson="03", title="lacks a device")
def lacks(context):
    raise MissingError("needs two GPUs: there is none")

@experiment("A3", lesson="03", title="raises")
def raises(context):
    raise ValueError("no good\\x1b[2J")

@experiment("A4", lesson="05", title="is killed")
def killed(context):
    os.kill(os.getpid(), signal.SIGKILL)

@experiment("A5", lesson="00", title="hangs, with a child in a session of its own")
def hangs(context):
    leave(context)
    time.sleep(600)

@experiment("A6", lesson="03", title="leaves a process behind")
def leaves(context):
    leave(context)
    return OK

@experiment("A7", lesson="03", title="needs what nobody has", needs=["torch", "no_such_package.x"])
def needs(context):
    return OK

@experiment("A8", lesson="04", title="returns nothing")
def nothing(context):
    return None

@experiment("A9", lesson="06", title="ends without an answer")
def leaves_early(context):
    os._exit(0)

def leave(context):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    Path(os.environ["TEST_PIDS"]).write_text(f"{child.pid}\\n{context.folder.parent}")
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The experiments above, registered; where they leave pids is in ``TEST_PIDS``."""
    monkeypatch.setattr(recording, "_REGISTRY", {})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "made_experiments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("TEST_PIDS", str(tmp_path / "pids"))
    monkeypatch.delitem(sys.modules, "made_experiments", raising=False)
    yield importlib.import_module("made_experiments")
    sys.modules.pop("made_experiments", None)


def record(claim: str, folder: Path, **options: Any) -> recorder.Done:
    found = recording.registered(claims=[claim])
    (done,) = recorder.record(found, folder, **options)
    return done


def scratch_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("pk-record-*"))


def test_an_outcome_becomes_a_record(module: Any, tmp_path: Path) -> None:
    before = scratch_folders()
    done = record("A1", tmp_path / "out", budget_s=3.5, seed=7)
    assert done.state == "recorded", done
    assert done.path is not None
    found = read_record(done.path)
    assert found == done.record
    assert found.claim == "A1"
    assert found.title == "fine"
    assert found.outcome.holds
    assert {name: f.value for name, f in found.outcome.figures.items()} == {
        "seed": 7, "gpus_hidden": 1, "budget": 3.5,
    }  # fmt: skip
    assert found.device.name == here()
    assert found.provenance.kind == "recorded"
    assert found.provenance.seed == 7
    assert found.provenance.command == "perfkit record --claim A1 --budget 3.5"
    assert found.provenance.versions["perfkit"]
    assert found.provenance.when_utc.endswith("+00:00")
    assert found.duration_s > 0
    assert scratch_folders() == before


@pytest.mark.parametrize(
    ("claim", "state", "reason"),
    [
        ("A2", "skipped", "needs two GPUs: there is none"),
        ("A3", "failed", r"ValueError: no good.\[2J \(made_experiments.py, line \d+\)"),
        ("A4", "failed", r"its process was killed \(SIGKILL\)"),
        ("A7", "skipped", "needs no_such_package.x, not installed here"),
        ("A8", "failed", "for A8 returned a NoneType, not an Outcome"),
        ("A9", "failed", "ended with code 0 and without an answer"),
    ],
)
def test_what_gives_no_outcome_writes_no_record(
    module: Any, tmp_path: Path, claim: str, state: str, reason: str
) -> None:
    done = record(claim, tmp_path / "out")
    assert done.state == state
    assert re.search(reason, done.reason), done.reason
    assert "\x1b" not in done.reason
    assert read_records([tmp_path / "out"]).records == ()


def test_one_that_dies_does_not_end_the_others(module: Any, tmp_path: Path) -> None:
    told: list[str] = []
    done = recorder.record(
        recording.registered(claims=["A1", "A4", "A9"]),
        tmp_path / "out",
        before=lambda one: told.append(one.claim),
        after=lambda one: told.append(one.state),
    )
    assert [one.state for one in done] == ["recorded", "failed", "failed"]
    assert told == ["A1", "recorded", "A4", "failed", "A9", "failed"]


@pytest.mark.parametrize(("claim", "state"), [("A5", "failed"), ("A6", "recorded")])
def test_nothing_stays_behind(module: Any, tmp_path: Path, claim: str, state: str) -> None:
    before = scratch_folders()
    done = record(claim, tmp_path / "out", limit_s=8.0)
    assert done.state == state, done
    if state == "failed":
        assert done.reason == "no end after 8 s: ended"
    pid, scratch = (tmp_path / "pids").read_text().split("\n")
    assert not alive(int(pid))
    assert not Path(scratch).exists()
    assert scratch_folders() == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_killed_recorder_takes_its_experiment_with_it(module: Any, tmp_path: Path) -> None:
    code = (
        "import made_experiments, sys\nfrom pathlib import Path\n"
        "from perfkit.course.ledger import recorder, recording\n"
        f"recorder.record(recording.registered(claims=['A5']), Path({str(tmp_path / 'out')!r}))"
    )
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "code"),
        "TMPDIR": str(tmp_path),  # its scratch folder stays: nobody is left to remove it
    }
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        wait_for((tmp_path / "pids").is_file)
        children = [p for p in psutil.Process(parent.pid).children() if p.is_running()]
        assert children
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not any(alive(child.pid) for child in children))
    wait_for(lambda: bool((tmp_path / "pids").read_text()))
    # its child, in another session, has no parent now: end what the test started
    psutil.Process(int((tmp_path / "pids").read_text().split("\n")[0])).kill()


def test_a_name_taken_by_another_lesson_fails_that_one_only(module: Any, tmp_path: Path) -> None:
    first = record("A6", tmp_path / "out")
    assert first.state == "recorded"
    # the same function, registered by another lesson: its figure has the same name
    text = MODULE.replace('"A6", lesson="03"', '"A6", lesson="11"')
    (tmp_path / "code" / "other_experiments.py").write_text(text)
    recording._REGISTRY.clear()
    importlib.import_module("other_experiments")
    try:
        done = record("A6", tmp_path / "out")
    finally:
        sys.modules.pop("other_experiments")
    assert done.state == "failed"
    assert "both have a figure 'n'" in done.reason


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_cannot_be(module: Any, tmp_path: Path, budget_s: float) -> None:
    with pytest.raises(UsageError, match="budget"):
        record("A1", tmp_path / "out", budget_s=budget_s)


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
    module: Any, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="cannot write records into"):
        record("A6", tmp_path / "out")
    assert not (tmp_path / "pids").exists()


def test_a_gpu_serves_claims_about_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        name = GPU
        type = "cuda"

    class Machine:
        cpu = "Some CPU"
        gpus: tuple[Any, ...] = (Gpu(),)

    monkeypatch.setattr(recorder, "facts", Machine)
    device = recorder.this_device
    assert (device("C8").type, device("C8").slug) == ("cuda", slug(GPU))
    assert device("A9").type == "cuda"
    assert device("A9", "cpu").slug == "cpu-some-cpu"
    assert device("A1").type == "cpu"
    assert device("A13").type == "cpu"  # one GPU is not several
    monkeypatch.setattr(Machine, "gpus", (Gpu(), Gpu()))
    assert (device("A13").type, device("A13").gpus) == ("cuda", 2)
    monkeypatch.setattr(Machine, "gpus", ())
    assert device("C8").type == "cpu"
    with pytest.raises(MissingError, match="no GPU"):
        device("C8", "cuda")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
