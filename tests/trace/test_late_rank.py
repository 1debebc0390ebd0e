"""From how much of the blame on a rank is late."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.trace.ask.late_rank import more_than_fair
from perfkit.trace.ask.ranks import ranks_of


@pytest.mark.parametrize(
    ("total", "n_ranks", "least"),
    [(8, 2, 6), (12, 3, 8), (12, 4, 6), (10, 100, 0.2), (1, 2, 0.75), (1, 8, 0.25)],
)
def test_twice_a_fair_share_or_three_quarters_of_two(
    total: float, n_ranks: int, least: float
) -> None:
    assert more_than_fair(total, n_ranks) == pytest.approx(least)


def _summary(rank: int, late_us: list[float]) -> dict[str, Any]:
    """A rank whose collectives, one in each step of 1 ms, take so much longer than 50 µs."""
    n = len(late_us)
    return {
        "path": f"rank{rank}", "rank": rank, "n_events": 1,
        "step_names": [f"step {i}" for i in range(n)],
        "wall_us": [1_000.0] * n, "host_us": [{}] * n, "device_us": [{"compute": 500.0}] * n,
        "idle_us": {}, "communication_us": 50.0 * n, "overlapped_us": 0.0, "warnings": [],
        "collectives": {
            "on_host": False, "names": ["allreduce"], "step": list(range(n)), "name": [0] * n,
            "dur_us": [50.0 + us for us in late_us],
            "asked": {"before": 0, "within": n, "after": 0},
        },
    }  # fmt: skip


@pytest.mark.parametrize(("wait_us", "late"), [(17, ()), (23, (0,))])
def test_a_rank_that_costs_a_fiftieth_of_the_steps_is_a_straggler(
    wait_us: float, late: tuple[int, ...]
) -> None:
    found = ranks_of([_summary(0, [0.0] * 8), _summary(1, [wait_us] * 8)])
    assert found.stragglers == late


@pytest.mark.parametrize(("least_us", "late"), [(4, (0,)), (7, ())])
def test_who_is_last_where_hardly_anybody_waits_is_chance(
    least_us: float, late: tuple[int, ...]
) -> None:
    """Rank 0 makes rank 1 wait for 100 µs, ten times; as often it is the other way round."""
    one = [0.0, least_us] * 10
    other = [100.0, 0.0] * 10
    found = ranks_of([_summary(0, one), _summary(1, other)])
    assert found.stragglers == late


@pytest.mark.parametrize(("n_ranks", "n_named"), [(64, 64), (65, 8)])
def test_of_many_ranks_pairs_are_told_for_the_eight_that_cost_most(
    n_ranks: int, n_named: int
) -> None:
    """In each step another rank is late, the later ones by more."""
    found = ranks_of(
        [
            _summary(rank, [0.0 if rank == step else 100.0 + step for step in range(n_ranks)])
            for rank in range(n_ranks)
        ]
    )
    named = {whom for _, whom in found.waits_ms}
    assert named == set(range(n_ranks - n_named, n_ranks))
    assert len(found.waits_ms) == n_named * (n_ranks - 1)
    assert found.waits_ms[0, n_ranks - 1] == pytest.approx((99 + n_ranks) / 1e3 / n_ranks)


def test_who_came_last_once_of_many_is_no_straggler() -> None:
    late = [[300.0] * 6 for _ in range(12)]
    late[3] = [0.0] * 5 + [300.0]
    late[5] = [300.0] * 5 + [0.0]
    found = ranks_of([_summary(rank, us) for rank, us in enumerate(late)])
    assert [one.last_in for one in found.ranks if one.last_in] == [5, 1]
    assert found.stragglers == (3,)
    late[3], late[5] = [0.0] * 4 + [300.0] * 2, [300.0] * 4 + [0.0] * 2
    found = ranks_of([_summary(rank, us) for rank, us in enumerate(late)])
    assert found.stragglers == (3, 5)
