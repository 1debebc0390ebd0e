"""What is said of several ranks, a little above and a little below each threshold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.machine.cpu_contention import SPOILS_FROM
from perfkit.script.ranks.joint import (
    _doubt,
    _imbalance,
    _sentence,
    _warnings,
    imbalance_words,
)
from perfkit.script.ranks.lateness import Lateness, LateRank


def compared(waited_ms: float = 0.0, transfer_ms: float | None = 0.0, **known: Any) -> Any:
    usual: dict[str, Any] = {"stragglers": (), "waits_ms": {}, "warnings": ()}
    ranks = [SimpleNamespace(rank=n, waited_ms=waited_ms if n == 1 else 0.0) for n in range(3)]
    return SimpleNamespace(ranks=ranks, transfer_ms=transfer_ms, **(usual | known))


def late(lost_ms: float = 4.0, phase: str = "data_wait", n: int = 3) -> Lateness:
    one = LateRank(2, lost_ms, 1.0, phase, 10.0, 6.0, 4.0)
    return Lateness(20, 40.0, 4.0, (one,), dict.fromkeys(range(n), 4.0))


NOBODY = Lateness(20, 40.0, 1.0, (), {0: 1.0, 1: 1.0})


@pytest.mark.parametrize(
    ("n", "lateness", "collectives", "said"),
    [
        (
            3, late(), None,
            "2 ranks wait for rank 2: its wait for data takes longer, 4.00 ms of a step of 40.0 ms "
            "(10 %); 10.0 ms where it comes last, 6.00 ms on the 2 other ranks.",
        ),
        (3, late(phase=""), None, "2 ranks wait for rank 2: 4.00 ms of a step of 40.0 ms (10 %)."),
        (
            3, NOBODY, compared(stragglers=(2,), waits_ms={(0, 2): 3.0, (1, 2): 5.0, (2, 0): 9.0}),
            "2 ranks wait for rank 2: 4.00 ms a step in collectives of the recorded steps. No "
            "phase before these explains it",
        ),
        (3, late(), compared(stragglers=(0,)), "2 ranks wait for rank 2: its wait"),
        (1, None, None, "One rank is known here, so who waits for whom is not"),
        (2, None, None, "2 ranks; who waits for whom is not known: they have too few steps"),
        (2, NOBODY, None, "No rank holds up the others: they wait 1.00 ms a step (2.5 %)"),
        (2, None, compared(), "2 ranks; no rank holds up the others in the recorded steps."),
    ],
)  # fmt: skip
def test_who_waits_for_whom(n: int, lateness: Lateness | None, collectives: Any, said: str) -> None:
    assert _sentence(n, lateness, collectives).startswith(said)


def test_what_others_did_to_the_rank_that_lost_most_is_told() -> None:
    def record(rank: int, lost: float, busy: str = "The machine was busy.") -> Any:
        return SimpleNamespace(rank=rank, lost=lost, busy=busy)

    calm, quiet = record(0, 0.0, ""), {0: record(0, 0.0, ""), 1: record(1, 0.0, "")}
    assert _doubt(quiet) == _doubt({}) == ""
    little = {0: calm, 1: record(1, 0.9 * SPOILS_FROM)}
    assert _doubt(little) == "The machine was busy (as rank 1 saw it)."
    much = _doubt({0: calm, 1: record(1, SPOILS_FROM)})
    assert "Measure again on a quiet machine" in much
    assert _doubt({1: record(1, 0.0)}) == "The machine was busy."


@pytest.mark.parametrize(
    ("values", "found"),
    [([1, 3], 1.5), ([2, 2], 1.0), ([2], None), ([1, None], None), ([0, 0], None), ([], None)],
)
def test_the_largest_over_the_mean(values: list[int | None], found: float | None) -> None:
    assert _imbalance(values) == found


@pytest.mark.parametrize(("ratio", "n_said"), [(None, 0), (1.09, 0), (1.1, 1)])
def test_ranks_are_unlike_from_a_tenth(ratio: float | None, n_said: int) -> None:
    ranks = [SimpleNamespace(rank=n, memory_bytes=2**20 * n, samples=n) for n in (1, 2)]
    for known in ("memory_imbalance", "batch_imbalance"):
        other = {"memory_imbalance": None, "batch_imbalance": None} | {known: ratio}
        said = imbalance_words(SimpleNamespace(ranks=ranks, **other))  # type: ignore[arg-type]
        assert len(said) == n_said
        assert all(one.startswith("Rank 2 ") for one in said)


def test_reasons_to_doubt_who_is_late() -> None:
    (of_few,) = _warnings([0, 1], 4, [], None)
    assert of_few.startswith("the job has 4 ranks; this is of the 2 on this machine")
    assert _warnings([0, 1], 2, [1], None) == ("rank 1 left no figures",)
    assert _warnings([0, 1], 2, [0, 1], None) == ("ranks 0, 1 left no figures",)
    doubted = compared(warnings=("3 collectives were left out", "clocks differ"))
    assert _warnings([0, 1], 2, [], doubted) == ("3 collectives were left out",)
