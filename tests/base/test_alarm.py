"""A moment that is put off without waking who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfkit.base import alarm as alarm_module
from perfkit.base.alarm import Alarm, new_alarm

MS = 1_000_000
HOUR_NS = 3_600_000 * MS


@pytest.fixture(params=["the kernel's timer", "without one"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Alarm]:
    if request.param == "without one":
        monkeypatch.setattr(alarm_module, "_calls", lambda: None)
    elif alarm_module._calls() is None:
        pytest.skip("no timerfd here")
    return new_alarm


class Waiting:
    """A thread that counts how often it is woken; the last time is the close."""

    def __init__(self, alarm: Alarm) -> None:
        self.n = 0
        self.alarm = alarm
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self) -> None:
        while self.alarm.wait():
            self.n += 1

    def is_woken(self) -> bool:
        deadline_s = time.monotonic() + 20
        while not self.n and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return self.n > 0

    def ends(self) -> bool:
        self.alarm.close()
        self.thread.join(20)
        return not self.thread.is_alive()


def test_it_wakes_at_the_moment_and_once(make: Callable[[], Alarm]) -> None:
    alarm = make()
    waiting = Waiting(alarm)
    alarm.set(20 * MS)
    assert waiting.is_woken()
    time.sleep(0.3)
    assert waiting.n == 1
    assert waiting.ends()
    assert waiting.n == 1


def test_a_moment_that_is_put_off_in_time_wakes_nobody(make: Callable[[], Alarm]) -> None:
    alarm = make()
    waiting = Waiting(alarm)
    alarm.set(2 * HOUR_NS)
    for _ in range(100):
        alarm.set(HOUR_NS)
    time.sleep(0.3)
    assert waiting.n == 0
    alarm.set(0)  # a moment that is past is now
    assert waiting.is_woken()
    assert waiting.ends()


def test_now_may_be_the_first_moment(make: Callable[[], Alarm]) -> None:
    alarm = make()
    waiting = Waiting(alarm)
    alarm.set(0)
    assert waiting.is_woken()
    assert waiting.ends()


def test_a_close_before_anybody_waits_is_seen(make: Callable[[], Alarm]) -> None:
    alarm = make()
    alarm.close()
    assert Waiting(alarm).ends()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files are counted by /proc")
def test_it_leaves_no_file_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        waiting = Waiting(new_alarm())
        assert waiting.ends()
        del waiting
        new_alarm()  # that nobody waits for
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
