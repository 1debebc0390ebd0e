"""What a recording needs around it: a device, a folder, and an end of what lessons started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfkit.base.errors import MissingError, UsageError
from perfkit.course.ledger import recorder
from perfkit.course.ledger.records import slug
from tests.course.ledger.made_records import GPU

# Starts a process in a session of its own, tells its number, and waits.
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="another user's environment is not readable")
def test_every_process_with_the_mark_ends_and_no_other() -> None:
    mark = uuid.uuid4().hex
    plain = {name: value for name, value in os.environ.items() if name != recorder.MARK}
    marked, other = (
        subprocess.Popen(
            [sys.executable, "-c", _PARENT],
            stdout=subprocess.PIPE,
            text=True,
            env=plain | {recorder.MARK: own},
        )
        for own in (mark, uuid.uuid4().hex)
    )
    assert marked.stdout is not None
    assert other.stdout is not None
    children = [int(marked.stdout.readline()), int(other.stdout.readline())]
    try:
        recorder.kill_marked(mark)
        wait_for(lambda: not alive(marked.pid) and not alive(children[0]))
        assert alive(other.pid)
        assert alive(children[1])
    finally:
        for pid in (children[1], other.pid, children[0], marked.pid):
            if alive(pid):
                psutil.Process(pid).kill()
        for process in (marked, other):
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="cannot write records into"):
        recorder.check_writable(tmp_path / "out")
    recorder.check_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_what_is_told_is_one_printable_line() -> None:
    told = recorder.line("no good\x1b[2J\n" + "x" * 1000)
    assert told.startswith("no good")
    assert "\x1b" not in told
    assert "\n" not in told
    assert len(told) <= 310


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
