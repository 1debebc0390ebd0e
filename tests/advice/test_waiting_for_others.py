"""A thread that waits for another one, a process or a connection computes nothing."""

from __future__ import annotations

import multiprocessing
import queue
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

import perfkit
from perfkit import show
from perfkit.advice import Profile, explain
from perfkit.advice.line_kinds import (
    IMAGE_CHANGES,
    IMAGES,
    LOGGING,
    NUMPY,
    OTHER,
    SAVING,
    STORING,
    WAITING,
    LineKind,
    kind_of,
    kind_of_source,
)
from perfkit.trace import Recorder
from perfkit.trace.record.lines import Line

_WAIT_S = 0.5


def _join_a_thread() -> None:
    thread = threading.Thread(target=time.sleep, args=(_WAIT_S,))
    thread.start()
    thread.join()


def _join_a_process() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(_WAIT_S,))
    child.start()
    child.join()


def _wait_for_a_program() -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({_WAIT_S})"])
    child.wait()


def _run_a_program() -> None:
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({_WAIT_S})"], check=True)


def _get_from_a_queue() -> None:
    items: queue.Queue[int] = queue.Queue()
    threading.Timer(_WAIT_S, items.put, [1]).start()
    items.get()


def _get_from_a_simple_queue() -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Timer(_WAIT_S, items.put, [1]).start()
    items.get()


def _receive() -> None:
    one, other = socket.socketpair()
    with one, other:
        timer = threading.Timer(_WAIT_S, one.send, [b"x"])
        timer.start()
        other.recv(1)
        timer.join()


def _select() -> None:
    one, other = socket.socketpair()
    with one, other:
        select.select([one], [], [], _WAIT_S)


def _profiled(code: Callable[[], object]) -> Profile:
    with perfkit.profile() as p:
        torch.ones(8).sum()
        code()
    return p.result


@pytest.mark.parametrize(
    "wait",
    [
        _join_a_thread,
        _join_a_process,
        _wait_for_a_program,
        _run_a_program,
        _get_from_a_queue,
        _get_from_a_simple_queue,
        _receive,
        _select,
    ],
)
def test_a_wait_for_others_is_not_told_as_python(wait: Callable[[], None]) -> None:
    found = _profiled(wait)
    said = found.diagnosis.headline
    assert "aiting: " in said
    assert "the main thread waits for other processes, threads or connections" in said
    assert "Python and other host work" not in said
    (finding,) = [f for f in found.diagnosis.findings if f.rule == "host-waits"]
    assert finding.title == "The code waits for other processes or threads for much of that time"
    assert "whose work is not seen here" in finding.evidence[-1]
    assert finding.to_dict()["gain_at_most"] is None
    text = " ".join(show.text(found).split())
    assert "over 10×" not in text
    assert "Python outside of torch" not in text


def test_python_that_computes_is_told_as_python() -> None:
    def busy() -> int:
        end, n = time.thread_time() + 0.3, 0
        while time.thread_time() < end:
            n += len(", ".join(map(str, range(100))))
        return n

    said = _profiled(busy).diagnosis.headline
    assert "Python and other host work" in said
    assert "waits for other" not in said


def test_a_sleep_is_no_wait_for_others() -> None:
    found = _profiled(lambda: time.sleep(_WAIT_S))
    assert "waits for other" not in found.diagnosis.headline
    (finding,) = [f for f in found.diagnosis.findings if f.rule == "host-sleeps"]
    assert finding.title == "The code sleeps for much of that time"


@pytest.mark.parametrize(
    ("text", "is_wait"),
    [
        ("p.join()", True),
        ("worker.join(timeout=5)", True),
        ("proc.wait()", True),
        ("batch = q.get()", True),
        ("item = q.get(timeout=1.0)", True),
        ("y = future.result()", True),
        ("handle.wait()", True),
        ("data = sock.recv(4096)", True),
        ("subprocess.run(['make'])", True),
        ("name = ', '.join(parts)", False),
        ("path = os.path.join(root, name)", False),
        ("lr = config.get('lr')", False),
        ("lr = config.get(key, 0.1)", False),
        ("rows = [f(x) for x in batch]", False),
        ("model.await_all(3)", False),
    ],
)
def test_lines_that_wait_by_their_text(text: str, is_wait: bool) -> None:
    assert (kind_of_source(text) is WAITING) == is_wait
    line = Line(
        "a.py", 1, "a.py:1", "train", text, 9, 1.0, False, "__main__", library_function="m.train"
    )
    assert (kind_of(line, trains=True) is WAITING) == is_wait
    assert "train" not in WAITING.what_to_do
    # what the line called was busy in a library: its text alone shows no wait
    assert kind_of(replace(line, library_function="numpy.linalg.svd"), trains=True) is not WAITING


@pytest.mark.parametrize(
    ("library", "kind"),
    [
        ("wandb", LOGGING),
        ("cv2", IMAGE_CHANGES),
        ("h5py", SAVING),
        ("scipy", NUMPY),
        ("numpydoc", OTHER),
    ],
)
def test_a_line_that_does_not_say_what_it_does_is_told_by_its_library(
    library: str, kind: LineKind
) -> None:
    line = Line("a.py", 1, "a.py:1", "train", "y = f(x)", 9, 1.0, False, library, "a.g")
    assert kind_of(line, trains=True) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x = requests.get(url)", SAVING), ("x = imread(url)", IMAGES), ("x = ask(url)", WAITING)],
)
def test_what_is_read_over_a_connection_is_a_file(text: str, kind: LineKind) -> None:
    called = "socket.readinto"
    line = Line("a.py", 1, "a.py:1", "train", text, 9, 1.0, False, "__main__", called)
    assert kind_of(line, trains=True) is kind


def _with_a_late_loader(code: Callable[[], object], reads_s: float = 0.08) -> Profile:
    """The recording pauses, as after its 10 s, and a DataLoader is read behind it."""
    recorder = Recorder()
    with recorder:
        torch.ones(8).sum()
        code()
        recorder._enough()
        for _ in DataLoader(torch.rand(64, 8), batch_size=16):
            time.sleep(reads_s / 4)
    return explain(recorder.recording)


def test_a_loader_read_after_the_recorded_part_is_not_denied() -> None:
    said = _with_a_late_loader(lambda: time.sleep(0.02)).diagnosis.headline
    assert "No step was found" in said
    assert "no optimizer stepped and no batch of a DataLoader made one" in said
    assert re.search(r"the first \d", said)


def test_who_waits_for_others_is_not_told_that_nobody_stepped() -> None:
    said = _with_a_late_loader(_join_a_process).diagnosis.headline
    assert "in this thread no optimizer stepped" in said
    assert "profile in the thread or process that trains" in said
    assert "optimizer.step()" not in said


def test_a_loader_in_another_thread_is_not_denied() -> None:
    def read() -> None:
        for _ in DataLoader(torch.rand(64, 8), batch_size=16):
            pass

    def in_a_thread() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    said = _profiled(in_a_thread).diagnosis.headline
    assert "in this thread no optimizer stepped and no batch of a DataLoader made one" in said


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("os.fsync(self.stream.fileno())", STORING),
        ("total += loss.item()", OTHER),
    ],
)
def test_lines_with_a_cure_by_their_text(text: str, kind: LineKind) -> None:
    assert kind_of_source(text) is kind
