"""After a kill -9 of any of the processes, nothing is left within five seconds."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

import perfkit
from perfkit.base import scratch as _scratch
from perfkit.experiment.process import _process

from .conftest import MARK, gone_within, marked

pytestmark = pytest.mark.slow

# A kernel: the workload has loader workers, a child in a session of its own, and an orphan.
KERNEL = """
import os, sys, time
from perfkit.experiment import Session

SOURCE = '''
def workload(s):
    import os, subprocess, sys, torch
    own_session = subprocess.Popen(["sleep", "600"], start_new_session=True)
    # a daemon: its parent ends at once
    subprocess.run([sys.executable, "-c",
        "import os, time\\\\nif os.fork() == 0:\\\\n    os.setsid()\\\\n    time.sleep(600)"])
    class Data(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(4)
    for batch in torch.utils.data.DataLoader(Data(), **s.loader_kwargs()):
        yield
'''
namespace = {"__name__": "__main__"}
exec(SOURCE, namespace)
session = Session(namespace["workload"], ["num_workers"], seconds=600)
session.start(num_workers=2)
while session.state != "running":
    time.sleep(0.02)
    assert session.state in ("starting", "warm-up", "running"), session.wait()
print(session._run._child.pid, flush=True)
for line in sys.stdin:
    exec(line)
    print("did", flush=True)
"""


class Kernel:
    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
            text=True,
        )
        self.child = int(self.process.stdout.readline())

    def do(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "did\n"

    def all(self) -> set[int]:
        return marked(self.mark)

    def others(self) -> set[int]:
        return self.all() - {self.process.pid}


@pytest.fixture
def kernel():
    one = Kernel()
    # kernel, server, guard, child, 2 loader workers, sleep, daemon
    assert len(one.all()) >= 8
    yield one
    one.process.kill()
    one.process.wait()
    one.process.stdin.close()
    one.process.stdout.close()
    assert not gone_within(5.0, one.all)


def test_kill_9_of_the_kernel(kernel):
    began = time.monotonic()
    os.kill(kernel.process.pid, signal.SIGKILL)
    kernel.process.wait()
    assert not gone_within(5.0, kernel.all)
    assert time.monotonic() - began < 5.0


def test_kill_9_of_a_kernel_whose_run_is_paused(kernel):
    kernel.do("session.pause()")
    os.kill(kernel.process.pid, signal.SIGKILL)
    kernel.process.wait()
    assert not gone_within(5.0, kernel.all)


def test_kill_9_of_the_child_alone_then_close(kernel):
    os.kill(kernel.child, signal.SIGKILL)
    # the prepared process stays: it serves the next run
    assert len(gone_within(5.0, lambda: set(sorted(kernel.others())[1:]))) == 0
    kernel.do("assert session.wait(5).state == 'killed', session.wait()")
    kernel.do("session.start(num_workers=1)")
    kernel.do("session.close()")
    assert not gone_within(5.0, kernel.others)


def test_kill_9_of_the_guard(kernel):
    guard = psutil.Process(kernel.child).ppid()
    os.kill(guard, signal.SIGKILL)
    kernel.do("assert session.wait(5).state == 'killed', session.wait()")
    # the prepared process takes over and kills what the guard would have killed
    assert len(gone_within(5.0, lambda: set(sorted(kernel.others())[1:]))) == 0


def test_stop_then_the_end_of_the_program(kernel):
    kernel.do("session.stop()")
    assert len(kernel.others()) == 1, "only the prepared process"
    kernel.do("session.start(num_workers=1)")
    kernel.process.stdin.close()
    assert kernel.process.wait(10) == 0
    assert not gone_within(5.0, kernel.all)


def test_a_kernel_that_is_killed_while_the_process_is_being_prepared():
    mark = uuid.uuid4().hex
    code = (
        "import time; from perfkit.experiment import Session\n"
        "s = Session(lambda s: iter(range(9))); s.start(); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: mark},
    ) as process:
        process.stdout.readline()
        time.sleep(0.3)
        assert len(marked(mark)) >= 2
        process.kill()
    assert not gone_within(5.0, lambda: marked(mark))


def test_a_jupyter_kernel_that_is_restarted(tmp_path):
    from jupyter_client.manager import KernelManager

    mark = uuid.uuid4().hex
    manager = KernelManager(kernel_name="python3")
    places = str(Path(perfkit.__file__).parent.parent), os.environ.get("PYTHONPATH", "")
    env = {**os.environ, MARK: mark, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    manager.start_kernel(cwd=str(tmp_path), env=env)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        for code in (
            "def workload(s):\n"
            "    import torch\n"
            "    data = torch.zeros(10_000_000, 1)\n"
            "    for _ in torch.utils.data.DataLoader(data, **s.loader_kwargs()):\n"
            "        yield\n",
            "import time\n"
            "from perfkit.experiment import Session\n"
            "session = Session(workload, ['num_workers'], seconds=600)\n"
            "session.start(num_workers=1)\n"
            "while session.state != 'running': time.sleep(0.02)\n",
        ):
            reply = client.execute_interactive(code, timeout=120, output_hook=lambda _: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        before = marked(mark)
        assert len(before) >= 5
        manager.restart_kernel(now=True)
        assert not gone_within(5.0, lambda: before & marked(mark) - new_kernel(manager))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    assert not gone_within(5.0, lambda: marked(mark))


def new_kernel(manager):
    return {manager.provisioner.pid} if manager.provisioner else set()


def test_a_spawned_child_behaves_alike(monkeypatch, session):
    """macOS and Windows: a fresh program for every run, here on Linux."""
    monkeypatch.setattr(_process, "can_prepare", lambda: False)

    def workload(s):
        import torch

        print("hello")

        class Data(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.zeros(4)

        for _ in torch.utils.data.DataLoader(Data(), **s.loader_kwargs()):
            yield

    one = session(workload, ["num_workers"], seconds=1.0, start_timeout_s=120.0)
    result = one.run(num_workers=1)
    assert result.state == "done", result.message
    assert result.output == "hello\n"
    assert result.n_steps > 3
    one.start(num_workers=1)
    deadline = time.monotonic() + 60
    while one.state != "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(one._run._child.pid, signal.SIGKILL)
    assert one.wait(10).state == "killed"
    one.start(num_workers=1)
    one.stop()
    assert one.wait().state == "stopped"


def test_scratch_of_a_killed_process_is_swept_at_the_next_start(tmp_path, monkeypatch):
    memory, course = tmp_path / "memory", tmp_path / "course"
    for place in (memory, course):
        place.mkdir()
    code = (
        "import os, signal; from perfkit.base import scratch as _scratch; "
        f"_scratch.new_folder({str(memory)!r}); _scratch.new_folder({str(course)!r}, hidden=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = memory.iterdir()
    (course / "perfkit-notes").mkdir()  # nobody's scratch
    monkeypatch.setattr(_scratch, "_IN_MEMORY", str(memory))
    with _scratch.scratch_folder(course) as mine:
        assert not left.exists(), "what a profile left is swept by whatever starts next"
        assert sorted(course.iterdir()) == sorted([mine, course / "perfkit-notes"])
        with _scratch.scratch_folder(course, hidden=True) as unseen:
            assert unseen.name.startswith(".perfkit-")
            assert mine.exists(), "this process still lives"
    assert [p.name for p in course.iterdir()] == ["perfkit-notes"]


def test_another_hosts_scratch_stays(tmp_path, monkeypatch):
    """A home folder may be on several hosts, whose processes have the same numbers."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    theirs = _scratch.folder_of(gone.pid, "job", str(tmp_path))
    theirs.mkdir()
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    _scratch.sweep(str(tmp_path))
    assert theirs.exists()


def test_scratch_that_another_process_holds_stays_while_that_lives(tmp_path):
    """As that of a job whose launcher was killed, while its ranks write their report."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = _scratch.folder_of(gone.pid, "job", str(tmp_path))
    folder.mkdir()
    _scratch.hold(folder)
    _scratch.sweep(str(tmp_path))
    assert folder.exists()
    (held,) = folder.iterdir()
    held.rename(held.with_name(f"held-{gone.pid}"))
    _scratch.sweep(str(tmp_path))
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_scratch_of_a_process_that_nobody_waits_for_is_swept(tmp_path):
    """In a container without an init, a killed process stays as a zombie."""
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    folder = _scratch.folder_of(ended.pid, "job", str(tmp_path))
    folder.mkdir()
    _scratch.sweep(str(tmp_path))
    assert not folder.exists()
    ended.wait()


def test_what_multiprocessing_makes_lies_where_it_is_removed(session, tmp_path, monkeypatch):
    import tempfile

    def workload(s):
        import os
        import signal
        from multiprocessing import util

        print(util.get_temp_dir(), flush=True)
        yield
        yield
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = session(workload).run()
    assert result.output.startswith(f"{tmp_path}/perfkit-")
    assert list(tmp_path.iterdir()) == []
