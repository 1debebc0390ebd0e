"""The points of an update: the same however they are made, and no more work as a run grows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfkit.measure.meter import StepMeter
from perfkit.measure.points import MOST_POINTS, points_since


def metered(n: int, capacity: int = 1024) -> StepMeter:
    meter = StepMeter(capacity)
    for i in range(n):
        meter.add(i * 3_001 + 11, i * 1_000 + 7)
    return meter


def test_the_steps_of_three_seconds_are_told_as_they_are() -> None:
    """Of 10 ms; means of them took numpy, and an update most of its time."""
    numbers, step_ms, _ = points_since(metered(3000, capacity=4096), 2700, [])
    assert numbers == list(range(2701, 3001))
    assert step_ms[-1] == (2999 * 3_001 + 11) / 1e6


def test_many_points_are_means() -> None:
    numbers, step_ms, wait_ms = points_since(metered(1000), 0, [])
    assert len(numbers) == len(step_ms) == len(wait_ms) == MOST_POINTS
    assert numbers[0] == pytest.approx(1.5)  # of 1 and 2


def test_starts_of_epochs_long_ago_are_not_looked_at() -> None:
    looked = 0

    class Starts(list[tuple[int, int, int]]):
        def __reversed__(self) -> Iterator[tuple[int, int, int]]:
            nonlocal looked
            for one in super().__reversed__():
                looked += 1
                yield one

        def __iter__(self) -> Iterator[tuple[int, int, int]]:
            raise AssertionError("all of them are looked at")

    meter = metered(1000)
    numbers, _, _ = points_since(meter, 985, Starts((n, 1, 1) for n in range(0, 1000, 10)))
    assert numbers == [n + 1 for n in range(985, 1000) if n != 990]
    assert looked == 2
