"""What a report on several ranks says before the tables, and before a rank's own report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.base.machine import stamp
from perfkit.script.ranks.joint import RankedRun
from perfkit.script.ranks.lateness import Lateness, LateRank
from perfkit.show.ranked_run import by_itself
from perfkit.trace.ask.ranks import Rank, Ranks


def _rank(number: int, waited_ms: float) -> Rank:
    return Rank(number, "", 6, 30.0, {}, {}, {}, waited_ms + 2.0, 0.0, waited_ms, 0)


def _run(waited_ms: float, late: LateRank) -> RankedRun:
    return RankedRun(
        program="train.py",
        sentence="Rank 0 waits for rank 1.",
        world_size=2,
        ranks=(),
        culprits=(),
        late=Lateness(60, 40.0, 30.0, (late,), {0: 30.0, 1: 0.0}),
        compared=Ranks(
            (_rank(0, waited_ms), _rank(1, 0.0)), {}, 6, (1,), None, skew_ms=9.0, transfer_ms=2.0
        ),
        memory_imbalance=None,
        batch_imbalance=None,
        warnings=(),
        provenance=stamp("measured here"),
    )


LATE = LateRank(1, 30.0, 0.2, "data_wait", 150.0, 1.0, 30.0)


@pytest.mark.parametrize(("waited_ms", "told"), [(18.0, True), (0.5, False)])
def test_what_rank_0_calls_communication_may_be_its_wait(waited_ms: float, told: bool) -> None:
    said = " ".join(by_itself(_run(waited_ms, LATE), 0).split())
    assert said.startswith("Rank 0 by itself")
    assert ("18.0 ms a recorded step, 90 % of its time in collectives, is its wait" in said) is told
    assert all(len(line) <= 100 for line in by_itself(_run(waited_ms, LATE), 0).splitlines())
    assert by_itself(replace(_run(waited_ms, LATE), compared=None), 0) == "Rank 0 by itself:"


def test_one_rank_s_own_report_comes_first_where_waiting_for_another_is_little() -> None:
    little = replace(LATE, lost_ms=3.0)
    assert _run(0.5, little).is_even
    assert not _run(0.5, LATE).is_even  # three quarters of a step are lost to rank 1
    assert not _run(18.0, little).is_even  # rank 0's collectives are its wait
    assert not replace(_run(0.5, little), culprits=(1,)).is_even
