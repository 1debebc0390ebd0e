"""When a step is overdue, and how often somebody looks. What is found is in the runs' tests."""

from __future__ import annotations

import time

import pytest

from perfkit.measure.lookout import Lookout, wait_s
from perfkit.measure.meter import StepMeter

MS = 1_000_000


def test_checks_become_rarer_while_no_step_is_overdue() -> None:
    waits = [wait_s(calm) for calm in range(2000)]
    assert waits[0] == 0.05
    assert waits == sorted(waits)
    assert waits[-1] == 0.2
    within_10_s, passed_s = 0, 0.0
    while passed_s < 10:
        passed_s += waits[within_10_s]
        within_10_s += 1
    assert within_10_s > 80


def test_an_overdue_step_makes_them_frequent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def quickly(calm: int) -> float:
        asked.append(calm)
        return 0.001

    monkeypatch.setattr("perfkit.measure.lookout.wait_s", quickly)
    lookout = Lookout(time.perf_counter_ns)
    lookout.limit_ns = 10**12
    lookout.start(None)
    lookout.begins(1, time.perf_counter_ns())
    deadline = time.monotonic() + 20
    while len(asked) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    lookout.limit_ns = 1
    while asked[-1] >= 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    lookout.stop()
    assert asked[:5] == [0, 1, 2, 3, 4]
    assert asked[-1] < 2
    assert lookout.seen[1]


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
