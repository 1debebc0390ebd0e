"""What accounts and leak reports say begins at their thresholds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.memory.account import _half_batch
from perfkit.memory.categories import INPUTS
from perfkit.memory.leaks import _Alive, _grows

MIB = 2**20


def _half(peak: int, half: int, other: int, *, other_before: int = 0) -> int | None:
    point = SimpleNamespace(by_category={INPUTS: 1})
    totals: Any = SimpleNamespace(curve=[point], half_batch_bytes=half)
    parts: tuple[dict[str, int], ...] = ({"other": other_before}, {"other": other}, {"other": 0})
    return _half_batch(totals, parts, peak, 0)


def test_half_a_batch_is_not_predicted_where_a_tenth_of_the_peak_is_unknown() -> None:
    assert _half(1000, 600, other=90) == 600
    assert _half(1000, 600, other=110) is None
    # what was there before the step does not grow with the batch
    assert _half(1000, 600, other=510, other_before=420) == 600


def test_half_a_batch_that_saves_little_is_not_worth_a_word() -> None:
    assert _half(1000, 940, other=0) == 940
    assert _half(1000, 960, other=0) is None


def _looks(sizes: list[int], steps: list[int]) -> bool:
    place: Any = "train.py:1"
    looks: Any = [
        (i, {place: _Alive([], n, size)})
        for i, (size, n) in enumerate(zip(sizes, steps, strict=True))
    ]
    return _grows(place, looks)


@pytest.mark.parametrize(
    ("sizes", "steps", "grows"),
    [
        # ever larger, from one step: a list that is copied
        ([1, 2, 3, 4, 5, 6, 7, 8], [1] * 8, True),
        # sizes rise and fall, but more and more steps leave something: batches of many lengths
        ([5, 9, 7, 12, 9, 14, 12, 15], [1, 1, 2, 2, 3, 3, 4, 4], True),
        ([5, 9, 7, 12, 9, 14, 12, 15], [1, 1, 2, 2, 2, 2, 3, 3], False),
        # a bounded buffer is full
        ([5, 9, 9, 9, 9, 9, 9, 9], [1, 2, 2, 2, 2, 2, 2, 2], False),
    ],
)
def test_what_grows(sizes: list[int], steps: list[int], grows: bool) -> None:
    assert _looks(sizes, steps) is grows
