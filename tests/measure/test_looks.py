"""When a measurement looks whether it may stop."""

from __future__ import annotations

import pytest

from perfkit.measure.paired import Looks


@pytest.mark.parametrize(
    ("first", "moments"),
    [(4, [4, 6, 9, 14, 21, 32]), (6, [6, 9, 14, 21, 32]), (1, [1, 2, 3, 5, 8])],
)
def test_the_moments_are_spaced_geometrically(first: int, moments: list[int]) -> None:
    looks = Looks(first)
    assert [n for n in range(1, 41) if looks.is_due(n)][: len(moments)] == moments


def test_after_a_pause_the_next_look_counts_from_what_is_done() -> None:
    looks = Looks(6)
    assert not looks.is_due(5)
    assert looks.is_due(20)  # blocks of a store came at once
    assert [n for n in range(21, 40) if looks.is_due(n)] == [30]
