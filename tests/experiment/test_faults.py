"""Runs that go wrong: each is reported correctly, and the session continues."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import psutil
import pytest

from perfkit.base.errors import WorkloadEmptyError, WorkloadFailedError
from perfkit.experiment import setting
from perfkit.experiment.process.result import NO_STEP

pytestmark = pytest.mark.slow


@pytest.fixture
def faulty(session):
    """One run of a workload that goes wrong, then one that must go well."""

    def run(fault, **options):
        def workload(s):
            import time

            if s.fault:
                yield from fault()
            for _ in range(8):
                time.sleep(0.001)
                yield

        one = session(workload, [setting("fault", [False, True])], **options)
        result = one.run(fault=True)
        assert "\n" not in result.message
        after = one.run(fault=False)
        assert (after.state, after.n_steps) == ("done", 8), "the session goes on"
        assert len(one.runs) == 2
        return result

    return run


def test_a_workload_that_raises(faulty):
    def fault():
        yield
        yield
        print("before the end")
        raise ValueError("no such label: <b>")

    result = faulty(fault)
    assert result.state == "failed"
    assert result.message.startswith("ValueError: no such label: <b> (line ")
    assert 'raise ValueError("no such label' in result.traceback_text, "the user's own line"
    assert "worker.py" not in result.traceback_text
    assert result.n_steps == 2, "what was measured before stays"
    assert result.output == "before the end\n"
    with pytest.raises(WorkloadFailedError, match="no such label"):
        result.raise_if_failed()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("Mute()", r"Mute: \(its message cannot be shown: its __str__ raised KeyError\) \(line 7"),
        (r"ValueError('half \ud800')", r"ValueError: half \\ud800 \(line 7"),
    ],
)
def test_an_error_whose_words_cannot_be_had_is_told(session, tmp_path, error, words):
    (tmp_path / "muted.py").write_text(
        "class Mute(Exception):\n"
        "    def __str__(self):\n"
        "        raise KeyError('x')\n"
        "\n"
        "def workload(s):\n"
        "    yield\n"
        f"    raise {error}\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import muted

        result = session(muted.workload).run()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("muted", None)
    assert result.state == "failed"
    assert re.search(words, result.message)
    assert "muted.py" in result.traceback_text


def test_a_traceback_shows_lines_of_a_notebook_cell(session):
    import linecache

    source = "def workload(s):\n    yield\n    return 1 / (s.zero)  # the culprit\n"
    linecache.cache["/nowhere/cell.py"] = (1, None, source.splitlines(True), "/nowhere/cell.py")
    namespace = {"__name__": "__main__"}
    exec(compile(source, "/nowhere/cell.py", "exec"), namespace)
    result = session(namespace["workload"], [setting("zero", [0])]).run()
    assert "# the culprit" in result.traceback_text
    assert result.message == "ZeroDivisionError: division by zero (line 3 in workload)"


def test_a_workload_without_a_step(session):
    def nothing(s):
        yield from ()

    result = session(nothing).run()
    assert (result.state, result.message) == ("failed", NO_STEP)
    with pytest.raises(WorkloadEmptyError):
        result.raise_if_failed()


@pytest.mark.parametrize("returned", [None, 3])
def test_a_workload_that_is_no_generator(session, returned):
    result = session(lambda s: returned).run()
    assert result.state == "failed"
    assert f"the workload returned {type(returned).__name__} and no steps" in result.message


def test_a_workload_that_cannot_be_loaded(session, tmp_path, monkeypatch):
    (tmp_path / "gone_module.py").write_text("def helper():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_module

    helper = gone_module.helper

    def workload(s):
        yield helper()

    one = session(workload)
    (tmp_path / "gone_module.py").unlink()
    del sys.modules["gone_module"]
    result = one.run()
    assert result.state == "failed"
    assert result.message.startswith("the workload cannot be loaded in its process: ModuleNotFound")


def test_a_setting_that_is_misspelt_in_the_workload(session):
    def workload(s):
        yield s.num_wrokers

    result = session(workload, ["num_workers"]).run()
    assert "did you mean 'num_workers'?" in result.message


def test_running_out_of_memory(faulty):
    def fault():
        import resource

        import torch

        yield
        size = 1 << 30
        now = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))
        held = []
        while True:
            held.append(torch.ones(64 << 20))

    result = faulty(fault)
    assert result.state == "out of memory"
    assert result.message.startswith("out of memory: ")
    assert "tried to allocate" in result.message or "MemoryError" in result.message


def test_a_hang_is_ended_and_says_where(faulty):
    def fault():
        import time

        yield
        time.sleep(600)  # the hang
        yield

    began = time.monotonic()
    result = faulty(fault, step_timeout_s=1.0)
    assert time.monotonic() - began < 20.0
    assert result.state == "hung"
    assert result.message.startswith("no step within 1 s; it was at line ")
    assert "in fault (test_faults.py)" in result.message
    assert result.n_steps == 1


def test_a_hang_before_the_first_step(faulty):
    def fault():
        import time

        time.sleep(600)
        yield

    result = faulty(fault, start_timeout_s=4.0)
    assert result.state == "hung"
    assert result.message.startswith("no first step within 4 s")
    assert "start_timeout_s" in result.message


def test_a_hang_that_holds_the_interpreter_lock(faulty):
    def fault():
        import ctypes

        yield
        ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the lock
        yield

    result = faulty(fault, step_timeout_s=1.0)
    assert result.state == "hung"
    assert "in fault (test_faults.py)" in result.message


def test_a_killed_child(faulty):
    def fault():
        import os
        import signal

        yield
        os.kill(os.getpid(), signal.SIGKILL)
        yield

    result = faulty(fault)
    assert result.state == "killed"
    assert result.message.startswith("killed (SIGKILL)")


def test_a_crash_shows_where(faulty):
    def fault():
        import ctypes

        yield
        ctypes.string_at(8)
        yield

    result = faulty(fault)
    assert result.state == "killed"
    assert result.message.startswith("crashed (SIGSEGV) at line ")
    assert "in fault" in result.message
    assert "Segmentation fault" in result.traceback_text


def test_a_workload_that_exits(faulty):
    def fault():
        import os

        yield
        print("giving up")
        os._exit(3)

    result = faulty(fault)
    assert result.state == "failed"
    assert "exit code 3; it last printed: giving up" in result.message


def test_sys_exit_is_told(faulty):
    def fault():
        yield
        sys.exit("enough")

    result = faulty(fault)
    assert (result.state, result.message.split(" (")[0]) == ("failed", "SystemExit: enough")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("copy_ends", ["goes on", "returns", "raises"])
def test_a_fork_that_goes_on_as_the_run_is_told(faulty, copy_ends):
    def fault():
        import os
        import time

        yield
        copy = os.fork() == 0
        while True:
            time.sleep(0.002)
            if copy and copy_ends == "returns":
                return
            if copy and copy_ends == "raises":
                raise ValueError("in the copy")
            yield

    result = faulty(fault)
    assert result.state == "failed"
    assert result.message.startswith("the workload forked, and the copy went on with its steps")


def test_a_loader_worker_that_raises(faulty):
    def fault():
        import torch

        class Broken(torch.utils.data.Dataset):
            def __len__(self):
                return 9

            def __getitem__(self, i):
                raise KeyError("no such file")

        yield from torch.utils.data.DataLoader(Broken(), num_workers=1)

    result = faulty(fault)
    assert result.state == "failed"
    assert "KeyError: 'no such file' (in a DataLoader worker)" in result.message


def test_a_loader_worker_that_dies(faulty):
    def fault():
        import os
        import signal

        import torch

        class Deadly(torch.utils.data.Dataset):
            def __len__(self):
                return 9

            def __getitem__(self, i):
                if i == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                return i

        yield from torch.utils.data.DataLoader(Deadly(), num_workers=1)

    result = faulty(fault)
    assert result.state == "failed"
    assert result.message.startswith("a DataLoader worker died: ")


def test_a_workload_that_fails_when_it_is_closed(session):
    def workload(s):
        import time

        try:
            while True:
                time.sleep(0.001)
                yield
        finally:
            raise OSError("cannot clean up")

    result = session(workload).run()
    assert result.state == "done"
    assert result.message.startswith(
        "its steps are measured; cleaning up then failed: OSError: cannot clean up (line "
    )
    assert 'raise OSError("cannot clean up")' in result.traceback_text
    assert result.raise_if_failed() is result


def test_a_crash_after_the_last_step_is_told(session):
    def workload(s):
        import os
        import signal
        import time

        try:
            while True:
                time.sleep(0.001)
                yield
        finally:
            os.kill(os.getpid(), signal.SIGSEGV)

    result = session(workload).run()
    assert result.state == "done"
    assert result.message.startswith("its steps are measured; then crashed (SIGSEGV)")


@pytest.mark.parametrize("junk", [b"\xff" * 64, b"\0" * 8, b"step 1 done\n", b"\1"])
def test_junk_in_the_pipe_is_the_workloads_and_not_perfkits(faulty, junk):
    def fault():
        import os
        import stat

        yield
        for fd in range(3, 64):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.write(fd, junk)
            except OSError:
                continue
        for _ in range(1000):
            yield

    result = faulty(fault)
    assert result.state == "failed"
    assert result.message.startswith("the workload wrote into the pipe")
    assert "perfkit itself" not in result.message


def test_a_closed_pipe_is_told(faulty):
    def fault():
        import os
        import time

        yield
        os.closerange(3, 64)
        while True:
            time.sleep(0.01)
            yield

    result = faulty(fault)
    assert result.state == "failed"
    assert "the workload closed the file descriptor" in result.message


def test_a_workload_that_does_not_end_when_it_is_closed(session):
    def workload(s):
        import time

        try:
            while True:
                time.sleep(0.001)
                yield
        finally:
            time.sleep(600)

    began = time.monotonic()
    assert session(workload).run().state == "done"
    assert time.monotonic() - began < 15.0


def test_output_is_bounded_and_keeps_its_end(session):
    def workload(s):
        for i in range(4):
            print("x" * 500_000)
            print("line", i)
            yield

    result = session(workload).run()
    assert result.state == "done"
    assert result.output.endswith("line 3\n")
    assert len(result.output) <= 64 * 1024


def test_strange_bytes_in_the_output(session):
    def workload(s):
        import os

        os.write(1, b"\xff\xfe ok\n")
        print("\udc80 fine")
        yield

    result = session(workload).run()
    assert "ok" in result.output
    assert "fine" in result.output


def test_steps_longer_than_the_run(session):
    def slow(s):
        import time

        while True:
            time.sleep(0.3)
            yield

    result = session(slow, seconds=0.1).run()
    assert result.state == "done"
    assert 3 <= result.n_steps <= 5


def test_a_large_workload_travels(session):
    import torch

    data = torch.arange(4_000_000)

    def workload(s):
        for _ in range(3):
            yield {"loss": float(data[-1])}

    result = session(workload).run()
    assert result.loss.tolist() == [3_999_999.0] * 3


def test_a_prepared_process_that_was_killed_is_started_anew(session):
    from perfkit.experiment.process import _process

    def workload(s):
        yield from range(4)

    one = session(workload)
    assert one.run().state == "done"
    server = _process.shared.server()
    os.kill(server.pid, signal.SIGKILL)
    psutil.Process(server.pid).wait(5)
    assert one.run().state == "done"
    assert _process.shared.server().pid != server.pid
