"""Lines seen from outside of the process: what a thread inside could not see, and nothing left."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from perfkit.base import line_sampler, stack_reader
from perfkit.base.frame_layout import frame_layout
from perfkit.base.line_sampler import LineSampler, Samples
from tests.left_running import assert_nothing_runs

pytestmark = pytest.mark.serial

WORDS = [str(i * 7919 % 100_003) for i in range(40_000)]
ARRAY, TENSOR = np.ones((400, 400)), torch.ones(1000, 1000)


def _holds_the_lock() -> None:
    sorted(WORDS)


def _releases_it() -> None:
    ARRAY @ ARRAY


def _torchs() -> None:
    TENSOR @ TENSOR


def _steps(seconds: float) -> Counter[str]:
    """Seconds in each."""
    spent: Counter[str] = Counter()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for part in (_holds_the_lock, _releases_it, _torchs):
            began = time.perf_counter()
            part()
            spent[part.__name__] += time.perf_counter() - began
    return spent


def _shares(counts: Counter[str]) -> dict[str, float]:
    return {name: n / counts.total() for name, n in counts.items()}


def _sampled(work: Callable[[], object]) -> Samples:
    sampler = LineSampler()
    sampler.start()
    try:
        work()
    finally:
        samples = sampler.stop()
    assert sampler.failure is None
    assert_nothing_runs()
    return samples


@pytest.mark.skipif(frame_layout() is None, reason="frames cannot be read from outside here")
def test_known_shares_are_seen_as_they_are() -> None:
    """A thread inside saw the sort, which holds the lock, on the line after it: 36 % of 58."""
    spent: list[Counter[str]] = []
    samples = _sampled(lambda: spent.append(_steps(2.0)))
    assert samples.from_outside
    seen = Counter(
        frame.function
        for look in samples.thread
        for frame in look.stack
        if frame.function in spent[0]
    )
    assert seen.total() > 50
    shares: dict[str, float] = dict.fromkeys(spent[0], 0.0) | _shares(seen)
    for name, share in _shares(spent[0]).items():
        assert shares[name] == pytest.approx(share, abs=0.12)


def test_lines_are_those_of_the_code_that_runs() -> None:
    """Of every frame: of functions with names beyond ASCII, of generators, of code from a text."""
    source = "def größe(n):\n    yield sum(\n        range(n)\n    )\n"
    space: dict[str, Callable[[int], object]] = {}
    exec(compile(source, "<Übung>", "exec"), space)

    def work() -> None:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            list(space["größe"](100_000))  # type: ignore[call-overload]

    seen = {(f.file, f.function, f.line) for x in _sampled(work).thread for f in x.stack}
    code = work.__code__
    assert ("<Übung>", "größe", 2) in seen
    assert (code.co_filename, code.co_qualname, code.co_firstlineno + 3) in seen


def _child(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:  # no torch: a forked process lacks the threads it computes in
        _holds_the_lock()


@pytest.mark.skipif(frame_layout() is None, reason="frames cannot be read from outside here")
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_that_it_starts_are_seen_too(context: str) -> None:
    def work() -> None:
        process = multiprocessing.get_context(context).Process(target=_child, args=(1.0,))
        process.start()
        process.join()

    samples = _sampled(work)
    functions = {frame.function for look in samples.children for frame in look.stack}
    assert "_holds_the_lock" in functions
    assert "_holds_the_lock" not in {f.function for x in samples.thread for f in x.stack}


@pytest.mark.parametrize("why", ["no layout", "no reader", "another stack"])
def test_where_it_cannot_be_read_from_outside_a_thread_looks(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no layout":
        monkeypatch.setattr(line_sampler, "frame_layout", lambda: None)
    elif why == "no reader":
        monkeypatch.setattr(line_sampler, "_READER", "/no/such/file.py")
    elif layout := frame_layout():
        wrong = {**layout, "previous": 13 * 8}
        monkeypatch.setattr(line_sampler, "frame_layout", lambda: wrong)
    samples = _sampled(lambda: time.sleep(0.4))
    assert not samples.from_outside
    assert len(samples.thread) > 5


_BEGUN = """
import os, signal, time
from perfkit.base.line_sampler import LineSampler
sampler = LineSampler()
sampler.start()
while sampler._thread.is_alive():
    time.sleep(0.01)
"""


def test_a_program_that_waits_for_all_of_its_children_does_not_wait_for_it() -> None:
    wait = "try:\n    os.wait()\nexcept ChildProcessError:\n    print('none')\nsampler.stop()\n"
    program = [sys.executable, "-c", _BEGUN + wait]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "none\n"


def _turn(pid: int) -> str | None:
    """Of the scheduler, in ns; None where this kernel does not tell or does not grant it."""
    sched = Path(f"/proc/{pid}/sched")
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    told = dict(
        line.replace(" ", "").split(":", 1)
        for line in (sched.read_text().splitlines() if kernel >= (6, 12) and sched.exists() else [])
        if ":" in line
    )
    return told.get("se.slice")


def test_it_gets_a_core_soon_where_all_are_busy() -> None:
    sampler = LineSampler()
    sampler.start()
    try:
        if sampler._reader is None or _turn(os.getpid()) is None:
            pytest.skip("no reader, or its turns cannot be read here")
        assert _turn(sampler._reader) == "100000"
        # In the group that the scheduler makes of a session, but without its Ctrl-C.
        assert os.getsid(sampler._reader) == os.getsid(0)
        assert os.getpgid(sampler._reader) != os.getpgid(0)
    finally:
        sampler.stop()


def test_a_reader_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_sampler, "_ANSWERS_WITHIN_S", 0.2)
    sampler = LineSampler()
    sampler.start()
    if sampler._reader is None:
        pytest.skip("frames cannot be read from outside here")
    os.kill(sampler._reader, signal.SIGSTOP)
    sampler.stop()
    assert_nothing_runs()
    assert not _runs(sampler._reader)


def test_frames_that_lead_in_a_circle_are_torn() -> None:
    layout = frame_layout()
    if layout is None:
        pytest.skip("frames cannot be read from outside here")
    process = stack_reader.Process(
        os.getpid(), threading.get_native_id(), dict(layout), stack_reader.Codes()
    )
    frame = (ctypes.c_uint64 * 512)()  # of no code; itself is what called it
    frame[layout["previous"] // 8] = ctypes.addressof(frame)
    thread = bytearray(stack_reader._THREAD_BYTES)
    inside = (ctypes.c_uint64 * 16)(*[ctypes.addressof(frame)] * 16)
    at = inside if layout["within"] is not None else frame
    thread[layout["frame"] : layout["frame"] + 8] = ctypes.addressof(at).to_bytes(8, "little")
    process._thread_state = lambda: bytes(thread)  # type: ignore[method-assign]
    assert process.stack() is None
    process.close()


def test_it_ends_with_a_process_that_is_killed() -> None:
    program = _BEGUN + (
        "print(sampler._reader or '', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = done.stdout.strip()
    if not pid:
        pytest.skip("frames cannot be read from outside here")
    end = time.monotonic() + 5
    while _runs(int(pid)):
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as text:  # noqa: PTH123
            return text.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
