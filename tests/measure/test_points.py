"""The points of an update: the same however they are made."""

from __future__ import annotations

import pytest

from perfkit.measure.meter import MOST_POINTS, StepMeter


def metered(n: int, capacity: int = 1024) -> StepMeter:
    meter = StepMeter(capacity)
    for i in range(n):
        meter.add(i * 3_001 + 11, i * 1_000 + 7)
    return meter


def test_the_steps_of_three_seconds_are_told_as_they_are() -> None:
    """Of 10 ms; means of them took numpy, and an update most of its time."""
    numbers, step_ms, _ = metered(3000, capacity=4096).points(2700, ())
    assert numbers == list(range(2701, 3001))
    assert step_ms[-1] == (2999 * 3_001 + 11) / 1e6


def test_many_points_are_means() -> None:
    numbers, step_ms, wait_ms = metered(1000).points(0, ())
    assert len(numbers) == len(step_ms) == len(wait_ms) == MOST_POINTS
    assert numbers[0] == pytest.approx(1.5)  # of 1 and 2


def test_first_steps_of_epochs_are_left_out() -> None:
    numbers, _, _ = metered(1000).points(985, range(0, 1000, 10))
    assert numbers == [n + 1 for n in range(985, 1000) if n != 990]
