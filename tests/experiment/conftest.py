"""Real child processes, and a check that none of them is left."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from perfkit.experiment import Session
from perfkit.experiment.process import _process

MARK = "PERFKIT_TEST_MARK"


def marked(mark: str) -> set[int]:
    """All living processes that were started, directly or not, within this mark."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.environ().get(MARK) != mark:
                continue
            # Python's own; it ends with the process that made it, which may be this one
            if not any("multiprocessing.resource_tracker" in part for part in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def gone_within(seconds: float, look: Callable[[], set[int]]) -> set[int]:
    """What is left when all have ended or time is up."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture(scope="session", autouse=True)
def mark() -> Iterator[str]:
    value = uuid.uuid4().hex
    os.environ[MARK] = value
    _process.shared.acquire()  # one prepared process for all tests
    yield value
    _process.shared.release()
    left = gone_within(5.0, lambda: marked(value) - {os.getpid()})
    assert not left, f"processes left at the end: {left}"
    del os.environ[MARK]


@pytest.fixture(autouse=True)
def no_process_left(mark: str) -> Iterator[None]:
    yield

    def others() -> set[int]:
        server = _process.shared.server()
        return marked(mark) - {os.getpid(), server.pid if server else 0}

    left = gone_within(5.0, others)
    names = [psutil.Process(pid).cmdline() for pid in left if psutil.pid_exists(pid)]
    assert not left, f"processes left: {left} {names}"


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    """Makes sessions with short times, and closes them."""
    made: list[Session] = []

    def make(workload: Any, settings: Any = (), **options: Any) -> Session:
        short = {"seconds": 0.4, "step_timeout_s": 10.0, "start_timeout_s": 60.0}
        one = Session(workload, settings, **(short | options))
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
