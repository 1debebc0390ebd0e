from __future__ import annotations

import shutil
from collections import namedtuple

import pytest
import torch

from perfkit.experiment.process import _failure
from perfkit.experiment.process._run import Run

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return _failure.of_exception(caught, frozenset())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate"
        ),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_running_out_of_memory_is_told_apart(error):
    failure = raised(error)
    assert failure.state == "out of memory"
    assert failure.message.startswith("out of memory: ")
    assert "\n" not in failure.message


def test_an_error_is_one_line_with_the_users_line():
    failure = raised(ValueError("first\nsecond"))
    assert failure.state == "failed"
    assert failure.message.startswith("ValueError: first (line ")
    assert "second" in failure.traceback_text


def test_a_value_error_about_memory_words_is_no_memory_error():
    assert raised(ValueError("out of memory")).state == "failed"


def test_what_a_loader_worker_raised_comes_first():
    failure = raised(
        KeyError(
            "Caught KeyError in DataLoader worker process 0.\n"
            "Original Traceback (most recent call last):\n  ...\nKeyError: 'label'\n"
        )
    )
    assert failure.message.startswith("KeyError: 'label' (in a DataLoader worker)")


@pytest.mark.parametrize(
    "words",
    [
        "unable to allocate shared memory(shm) for file </torch_1>: Resource unavailable (11)",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory "
        "limit.",
        "unable to write to file </torch_7_8>: No space left on device (28)",
    ],
)
def test_a_full_dev_shm_is_named_with_its_remedy(monkeypatch, words):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 * 2**20, 64 * 2**20, 0))
    failure = raised(RuntimeError(words))
    assert failure.state == "out of memory"
    assert "/dev/shm is full (0 B free of 64.0 MiB)" in failure.message
    assert "--shm-size" in failure.message


def test_a_bus_error_with_room_in_dev_shm_is_something_else(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, 0, GIB))
    words = "DataLoader worker (pid 7) is killed by signal: Bus error. "
    failure = raised(RuntimeError(words))
    assert failure.state == "failed"
    assert failure.message.startswith("a DataLoader worker died: ")


def ended(code, **more):
    given = {"output": "", "last_bytes": 0, "ram_bytes": 10 * GIB, "oom_kills": 0}
    return _failure.of_exit(code, **(given | more))


def test_a_dead_loader_worker_is_told_wherever_torch_raised_it(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, 0, GIB))
    last = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "
    failure = ended(1, output=f"Traceback …\n{last}\n")
    assert failure.state == "failed"
    assert failure.message.startswith("a DataLoader worker died: DataLoader worker (pid 7)")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, GIB, 0))
    full = last.replace("Killed", "Bus error")
    assert ended(1, output=full).message.startswith("/dev/shm is full")


def test_a_sigkill_is_told_by_what_is_known():
    assert ended(-9).state == "killed"
    assert ended(-9).message.startswith("killed (SIGKILL): by the workload itself, by another")
    large = ended(-9, last_bytes=8 * GIB)
    assert (large.state, "(SIGKILL: out of memory?)" in large.message) == ("killed", True)
    assert "8.00 GiB of 10.0 GiB" in large.message
    assert ended(-9, oom_kills=1).state == "out of memory"


@pytest.mark.parametrize(
    ("on_gpu", "blamed"),
    [(False, True), (True, False)],
)
def test_what_a_gpu_held_is_no_reason_for_a_sigkill(on_gpu, blamed):
    run = Run.__new__(Run)
    run._failure = run._child = None
    run._done, run._begun, run._oom_kills = False, True, _failure.oom_kill_count()
    run._last = {"peak_bytes": 2**50, "on_gpu": on_gpu}
    message = run._how_it_ended(-9, "").message
    assert ("it last held" in message) is blamed
    assert ("which of these is not known" in message) is not blamed


def test_a_sigbus_with_full_dev_shm(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, GIB, 0))
    assert "/dev/shm is full" in ended(-7).message
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(GIB, 0, GIB))
    assert ended(-7).message.startswith("crashed (SIGBUS)")


def test_an_exit_by_itself_shows_the_last_line():
    assert ended(3, output="a\nlast words\n\n").message == (
        "its process ended by itself with exit code 3; it last printed: last words"
    )
    assert ended(0).state == "failed"
    assert "signal 99" in ended(-99).message


DUMP = """printed before
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "{library}/site-packages/torch/utils/data/dataloader.py", line 1288 in _get_data
  File "/tmp/ipykernel_7/123.py", line 12 in workload
  File "{own}", line 5 in run
"""


def test_where_a_hanging_run_was():
    own = _failure.__file__
    where = _failure.innermost(DUMP.format(library="/x", own=own))
    assert where == "line 12 in workload (notebook), waiting for the DataLoader"
    assert _failure.innermost("nothing of the kind") == ""


def test_the_command_that_started_a_run_is_no_line_of_the_notebook():
    """Confirm said of a run between two steps: it was at line 1 in <module> (notebook)."""
    at_work = f'File "{_failure.__file__}", line 7 in send\n  File "<string>", line 1 in <module>\n'
    dump = f"Current thread 0x00007f02 (most recent call first):\n  {at_work}"
    assert _failure.innermost(dump) == "line 7 in send (_failure.py)"
