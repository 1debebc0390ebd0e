"""Who comes late, from the phases of made ranks: the answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfkit.measure.phases import PHASES
from perfkit.script.ranks.lateness import ALWAYS_OWN, Lateness, lateness, own_phases
from perfkit.script.ranks.record import RankRecord

_N = 40
_DATA, _FORWARD, _BACKWARD = (PHASES.index(n) for n in ("data_wait", "forward", "backward"))
_CHECKPOINT, _OTHER = PHASES.index("checkpoint"), PHASES.index("other")


def _left(numbers: np.ndarray, phase_ms: np.ndarray) -> RankRecord:
    """The record of a rank, as it is read back."""
    told = (0, "train.py", len(numbers), None, {}, None, None, "", None, 1)
    return RankRecord(*told, numbers=numbers.tolist(), phase_ms=phase_ms.tolist())


def _ranks(n: int, extra_ms: dict[tuple[int, int], np.ndarray | float]) -> dict[int, RankRecord]:
    """Ranks of 2 ms data wait, 10 forward, 20 backward; ``extra_ms`` by (rank, phase).

    Each waits in its backward pass for the one that comes last.
    """
    own = np.zeros((n, _N, len(PHASES)))
    own[:, :, _DATA], own[:, :, _FORWARD] = 2.0, 10.0
    for (rank, phase), ms in extra_ms.items():
        own[rank, :, phase] += ms
    before = own.sum(axis=2)
    own[:, :, _BACKWARD] = 20.0 + before.max(axis=0) - before
    return {i: _left(np.arange(_N), own[i]) for i in range(n)}


_DDP = {"before": 0, "within": 2, "after": 0}
_FSDP = {"before": 2, "within": 4, "after": 0}
_OWN = own_phases([_DDP], on_device=False)


def _first(record: RankRecord, n: int) -> RankRecord:
    return replace(record, numbers=record.numbers[:n], phase_ms=record.phase_ms[:n])


def _of(rows: dict[int, RankRecord], *, on_device: bool = False) -> Lateness:
    found = lateness(rows, own_phases=own_phases([_DDP], on_device=on_device))
    assert found is not None
    return found


def test_the_rank_whose_data_wait_makes_all_late_is_named_with_it() -> None:
    found = _of(_ranks(4, {(2, _DATA): 8.0}))
    (late,) = found.late
    assert (late.rank, late.phase, late.last_in) == (2, "data_wait", 1.0)
    assert late.lost_ms == pytest.approx(8.0)
    assert (late.phase_ms, late.others_ms) == (pytest.approx(10.0), pytest.approx(2.0))
    assert late.gain_ms == pytest.approx(8.0)
    assert found.step_ms == pytest.approx(40.0)
    assert found.wait_by_rank_ms == {0: 8.0, 1: 8.0, 2: 0.0, 3: 8.0}
    assert _of(_ranks(4, {(2, _DATA): 8.0}), on_device=True).late[0].rank == 2


def test_on_a_device_forward_may_be_a_wait_for_its_queue() -> None:
    rows = _ranks(2, {(1, _FORWARD): 8.0})
    assert _of(rows).late[0].phase == "forward"
    assert _of(rows, on_device=True).late == ()


def test_a_checkpoint_every_tenth_step_makes_the_others_wait() -> None:
    every_tenth = np.where(np.arange(_N) % 10 == 9, 60.0, 0.0)
    (late,) = _of(_ranks(2, {(0, _CHECKPOINT): every_tenth})).late
    assert (late.rank, late.phase) == (0, "checkpoint")
    assert late.last_in < 0.2
    assert late.lost_ms == pytest.approx(60.0 * 4 / 39)  # of the steps from the second one on


def test_two_late_ranks_are_both_named_and_neither_alone_would_gain() -> None:
    turns = np.where(np.arange(_N) % 2 == 0, 0.1, 0.0)
    found = _of(_ranks(8, {(3, _DATA): 9.0 + turns, (5, _OTHER): 9.05}))
    assert {one.rank: one.phase for one in found.late} == {3: "data_wait", 5: "other"}
    assert max(one.gain_ms for one in found.late) < 0.1


def test_ranks_that_take_turns_are_not_late() -> None:
    rng = np.random.default_rng(0)
    extra = {(i, _FORWARD): rng.uniform(0, 4, _N) for i in range(4)}
    found = _of(_ranks(4, extra))
    assert found.late == ()
    assert found.wait_ms > 1


def test_too_little_in_common_says_nothing() -> None:
    rows = _ranks(2, {})
    few = {i: _first(r, 4) for i, r in rows.items()}
    assert lateness(few, own_phases=_OWN) is None
    assert lateness({0: rows[0]}, own_phases=_OWN) is None
    half = replace(rows[1], numbers=rows[1].numbers[::2], phase_ms=rows[1].phase_ms[::2])
    thinned = {0: rows[0], 1: half}
    assert _of(thinned).n_steps == 19  # 2, 4 … 38


def test_where_ranks_meet_is_not_their_own_time() -> None:
    assert set(_OWN) == set(PHASES) - {"backward"}
    assert set(own_phases([_FSDP], on_device=False)) == {*ALWAYS_OWN, "optimizer"}
    logs = {"before": 0, "within": 2, "after": 1}  # a metric is reduced after the update
    assert set(own_phases([_DDP, logs], on_device=False)) == {*ALWAYS_OWN, "forward"}
    assert own_phases([_DDP], on_device=True) == ALWAYS_OWN
    assert own_phases([], on_device=False) == ALWAYS_OWN  # no step was recorded


def test_with_sharded_parameters_the_wait_in_the_forward_pass_is_no_lateness() -> None:
    """The others wait in their forward pass for rank 1, whose data is late."""
    rows = _ranks(2, {(1, _DATA): 8.0})
    waits = np.array(rows[0].phase_ms)
    waits[:, _FORWARD] += waits[:, _BACKWARD] - 20.0
    waits[:, _BACKWARD] = 20.0
    rows[0] = replace(rows[0], phase_ms=waits.tolist())
    own = own_phases([_FSDP], on_device=False)
    found = lateness(rows, own_phases=own)
    assert found is not None
    assert [(one.rank, one.phase) for one in found.late] == [(1, "data_wait")]
    assert found.late[0].lost_ms == pytest.approx(8.0)


@pytest.mark.parametrize(("extra_ms", "is_late"), [(0.55, False), (0.75, True)])
def test_a_rank_that_costs_a_fiftieth_of_the_steps_is_late(extra_ms: float, is_late: bool) -> None:
    assert bool(_of(_ranks(4, {(2, _DATA): extra_ms})).late) is is_late


@pytest.mark.parametrize(("n_steps", "is_late"), [(2, False), (3, True)])
def test_to_be_last_twice_is_chance(n_steps: int, is_late: bool) -> None:
    few = np.where(np.arange(_N) % 10 == 5, 300.0, 0.0)
    few[10 * n_steps :] = 0.0
    assert bool(_of(_ranks(4, {(1, _CHECKPOINT): few})).late) is is_late


def test_one_long_wait_beside_many_short_ones_is_chance_too() -> None:
    short = np.where(np.arange(_N) % 5 == 3, 2.0, 0.0)
    short[7] = 300.0
    assert _of(_ranks(2, {(1, _FORWARD): short})).late == ()


@pytest.mark.parametrize(("n_rows", "is_known"), [(5, False), (6, True)])
def test_five_steps_in_common_beside_the_first_are_enough(n_rows: int, is_known: bool) -> None:
    rows = {i: _first(r, n_rows) for i, r in _ranks(2, {}).items()}
    found = lateness(rows, own_phases=_OWN)
    assert (found is not None) is is_known
