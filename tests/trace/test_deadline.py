"""The time and the memory to record in."""

from __future__ import annotations

import threading
import time

import pytest

from perfkit.trace.record.deadline import Deadline

pytestmark = pytest.mark.serial


def test_the_deadline_is_called_once() -> None:
    called: list[float] = []
    deadline = Deadline(lambda: called.append(time.monotonic()))
    begun = time.monotonic()
    deadline.start()
    deadline.set(0.1)
    time.sleep(0.4)
    deadline.close()
    assert len(called) == 1
    assert called[0] - begun >= 0.1


def test_growing_memory_is_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([150, 5_000, 5_999] + [6_001] * 50)
    monkeypatch.setattr("perfkit.trace.record.deadline.resident_bytes", lambda: next(sizes))
    monkeypatch.setattr("perfkit.trace.record.deadline.peak_resident_bytes", lambda: 5_000)
    called = threading.Event()
    monkeypatch.setattr("perfkit.trace.record.deadline._MEMORY_BYTES", 1_000)
    deadline = Deadline(called.set)
    deadline.allow_memory()
    deadline.start()
    deadline.set(60)
    assert called.wait(5)
    assert len(list(sizes)) == 49  # at the first that is above
    deadline.close()
