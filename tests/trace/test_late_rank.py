"""From how much of the blame on a rank is late."""

from __future__ import annotations

import pytest

from perfkit.trace.ask.late_rank import more_than_fair


@pytest.mark.parametrize(
    ("total", "n_ranks", "least"),
    [(8, 2, 6), (12, 3, 8), (12, 4, 6), (10, 100, 0.2), (1, 2, 0.75), (1, 8, 0.25)],
)
def test_twice_a_fair_share_or_three_quarters_of_two(
    total: float, n_ranks: int, least: float
) -> None:
    assert more_than_fair(total, n_ranks) == pytest.approx(least)
