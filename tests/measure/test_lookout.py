"""When a step is overdue, and how often somebody looks. What is found is in the runs' tests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from perfkit.measure.lookout import Lookout
from perfkit.measure.meter import StepMeter

MS = 1_000_000


class Alarm:
    """Counts; the test wakes who waits."""

    def __init__(self) -> None:
        self.set_ns: list[int] = []
        self.woken: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.waits = threading.Semaphore(0)

    def set(self, in_ns: int) -> None:
        self.set_ns.append(in_ns)

    def wait(self) -> bool:
        self.waits.release()
        return self.woken.get(timeout=60)

    def close(self) -> None:
        self.woken.put(False)

    def comes(self) -> None:
        """The moment comes; returns when whoever waited waits again."""
        self.woken.put(True)
        assert self.waits.acquire(timeout=60)


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Alarm:
    made = Alarm()
    monkeypatch.setattr("perfkit.measure.lookout.new_alarm", lambda: made)
    return made


class Clock:
    def __init__(self) -> None:
        self.ns = MS

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lookout(alarm: Alarm, clock: Clock) -> Iterator[Lookout]:
    """It watches this thread; a step is overdue after 30 ms."""
    made = Lookout(clock)
    meter = StepMeter()
    meter.end(10 * MS)
    made.learns(meter)
    assert made.limit_ns == 30 * MS
    made.start(None)
    assert alarm.waits.acquire(timeout=60)
    yield made
    made.stop()
    assert made.instrument.failure is None


def test_steps_that_end_in_time_are_not_looked_at(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    """Twenty times a second somebody woke for it."""
    for number in range(100):
        lookout.begins(number, clock.ns)
        clock.ns += 10 * MS
    assert alarm.set_ns == [30 * MS] * 50  # every other one puts the moment off, before it comes
    assert lookout.seen == {}


def test_of_many_short_steps_few_put_the_moment_off(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    for number in range(1000):
        lookout.begins(number, clock.ns)
        clock.ns += MS // 10
    assert len(alarm.set_ns) < 30


def test_each_step_puts_the_moment_off_where_the_next_one_might_not_end_before_it(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    meter = StepMeter()
    for _ in range(2):
        meter.end(meter.total_ns + 20 * MS)
    lookout.learns(meter)
    for number in range(100):
        lookout.begins(number, clock.ns)
        clock.ns += 20 * MS
    assert alarm.set_ns == [40 * MS] * 100


def test_an_overdue_step_is_looked_at_again_and_again(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    lookout.begins(7, clock.ns)
    for _ in range(3):
        clock.ns += 50 * MS
        alarm.comes()
    assert sum(lookout.seen[7].values()) == 3
    assert alarm.set_ns == [30 * MS, *[50 * MS] * 3]


def test_a_moment_set_for_a_step_before_is_put_off(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    lookout.begins(1, clock.ns)
    clock.ns += 2 * MS
    lookout.begins(2, clock.ns)  # too soon to put it off
    clock.ns += 28 * MS
    alarm.comes()
    assert lookout.seen == {}
    assert alarm.set_ns == [30 * MS, 2 * MS]
    clock.ns += 2 * MS
    alarm.comes()
    assert list(lookout.seen) == [2]


def test_however_many_steps_are_overdue_looks_are_50_ms_apart(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    for number in range(1, 11):
        lookout.begins(number, clock.ns)
        clock.ns += 31 * MS
        alarm.comes()
    assert list(lookout.seen) == [1, 3, 5, 7, 9]


def test_at_rest_nothing_is_seen_and_the_next_step_sets_the_moment(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    lookout.begins(1, clock.ns)
    lookout.rests()
    clock.ns += 100 * MS
    alarm.comes()
    assert alarm.set_ns == [30 * MS]
    lookout.begins(2, clock.ns)
    assert alarm.set_ns == [30 * MS, 30 * MS]
    assert lookout.seen == {}


def test_a_limit_that_becomes_known_counts_from_the_next_step_on(
    lookout: Lookout, alarm: Alarm, clock: Clock
) -> None:
    lookout.limit_ns = 0
    lookout.begins(1, clock.ns)
    assert alarm.set_ns == []
    lookout.limit_ns = 40 * MS
    lookout.begins(2, clock.ns)
    assert alarm.set_ns == [40 * MS]


def test_in_a_loop_the_line_of_a_long_step_is_seen_and_nothing_stays() -> None:
    lookout = Lookout(time.perf_counter_ns)
    lookout.limit_ns = 30 * MS
    lookout.start(None)
    for number in range(20):
        lookout.begins(number, time.perf_counter_ns())
        if number == 15:
            time.sleep(0.5)
    lookout.stop()
    assert list(lookout.seen) == [15]
    assert "time.sleep(0.5)" in lookout.during({15})
    assert not [t for t in threading.enumerate() if t.name == "perfkit-lookout"]


def test_the_limit_follows_the_steps_and_is_not_sought_again_for_a_few_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = StepMeter()
    sought = 0
    usual_ns = meter.usual_ns

    def seek(self: StepMeter, n: int) -> int:
        nonlocal sought
        sought += 1
        return usual_ns(n)

    monkeypatch.setattr(StepMeter, "usual_ns", seek)
    lookout = Lookout(lambda: 0)
    lookout.learns(meter)
    assert lookout.limit_ns == 0
    now = 0
    for n in range(1, 1001):
        now += (100 if n <= 500 else 10) * MS
        meter.end(now)
        if n % 20 == 0:
            lookout.learns(meter)
        if n == 500:
            assert lookout.limit_ns == 150 * MS
        if n == 700:  # what counts are the last 200
            assert lookout.limit_ns == 30 * MS
    assert lookout.limit_ns == 30 * MS
    assert sought < 20  # of 51 times that it was asked
