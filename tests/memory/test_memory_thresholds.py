"""What accounts and leak reports say begins at their thresholds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import perfkit
from perfkit.memory.account import _devices, _doubts, _half_batch
from perfkit.memory.allocator import AllocatorUse
from perfkit.memory.categories import CATEGORIES, INPUTS
from perfkit.memory.fit import _crossing, _largest
from perfkit.memory.leaks import _Alive, _grows, _steady_rise
from perfkit.memory.ledger import Point, Totals
from perfkit.memory.out_of_memory import remedies, requested_bytes

MIB = 2**20


def _half(peak: int, half: int, other: int, *, other_before: int = 0) -> int | None:
    point = SimpleNamespace(by_category={INPUTS: 1})
    totals: Any = SimpleNamespace(
        curve=[point], half_batch_bytes=half, half_batch_at_most_bytes=half
    )
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


@pytest.mark.parametrize("unseen", ["", "compiled", "cuda_graphs", "n_unreadable"])
def test_half_a_batch_is_predicted_where_all_was_seen_and_the_code_ended_well(unseen: str) -> None:
    seen = {INPUTS: 100}
    totals = Totals(
        *(0, 100, 0, {}, seen, {}),
        curve=(Point(0, 100, seen, 0),),
        half_batch_bytes=50,
        half_batch_at_most_bytes=50,
    )
    tracker: Any = SimpleNamespace(
        compiled=unseen == "compiled",
        cuda_graphs=unseen == "cuda_graphs",
        n_unreadable=int(unseen == "n_unreadable"),
        ledgers={"cpu": SimpleNamespace(totals=lambda: totals, n_allocations=1)},
    )
    for ended_well in (True, False):
        (device,), warnings = _devices(tracker, (), ended_well=ended_well)
        half = device.half_batch_peak_bytes
        assert half == (50 if ended_well and not unseen else None)
        assert warnings == []


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


@pytest.mark.parametrize(
    ("kib", "per_step"),
    [
        # eight looks, two steps apart; the first still warms up
        ([0, 10, 20, 30, 40, 50, 60, 70], 5 * 1024),
        ([0, 10, 20, 30, 40, 50, 60, 60], 50 * 1024 / 12),
        ([0, 10, 20, 30, 40, 50, 50, 50], 0),
        ([0, 10, 20, 30, 40, 50, 49, 70], 0),  # it fell once
        ([90, 10, 20, 30, 40, 50, 60, 70], 5 * 1024),
        ([0, 2, 4, 6, 8, 10, 12, 14.1], 12.1 * 1024 / 12),
        ([0, 2, 4, 6, 8, 10, 12, 13.9], 0),  # less than 1 KiB a step may be caches
        ([None, None, 20, 30, 40, 50, 60, 70], 5 * 1024),
        ([None, None, None, 30, 40, 50, 60, 70], None),
    ],
)
def test_a_process_grows_where_it_rose_at_five_looks_and_never_fell(
    kib: list[float | None], per_step: float | None
) -> None:
    sizes = [None if k is None else int(k * 1024) for k in kib]
    found = _steady_rise(list(range(0, 16, 2)), sizes)
    assert found == (None if per_step is None else pytest.approx(per_step, rel=1e-3))


@pytest.mark.parametrize(
    ("n_kept", "shown", "is_told"),
    [
        (20_000, 4_900, True),
        (20_000, 5_100, False),  # more than a quarter is used
        (16_384, 9, True),
        (16_000, 9, False),  # less than 64 KiB
    ],
)
def test_a_view_that_keeps_much_more_than_it_shows(n_kept: int, shown: int, is_told: bool) -> None:
    views: list[torch.Tensor] = []

    def step() -> None:
        views[:] = [torch.ones(n_kept)[:shown]]

    report = perfkit.find_leaks(step)
    assert any(view.shape == (shown,) for view in report.views) is is_told


def _advice(reserved: int = 0, **at_peak: int) -> tuple[str, ...]:
    nothing = dict.fromkeys(CATEGORIES, 0)
    use = AllocatorUse(0, "simulated", 0, 0, 1_000, 0, 0, reserved, 3, 1, 10, 2)
    return remedies({**nothing, **at_peak}, nothing, use if reserved else None)


def test_what_would_lower_a_peak_is_told_from_a_seventh_of_it_on() -> None:
    assert _advice(gradients=140, parameters=860) == ()
    assert len(_advice(gradients=160, parameters=840)) == 1
    assert _advice(1_190) == ()
    assert len(_advice(1_210)) == 1


@pytest.mark.parametrize(("unit", "nbytes"), [("KiB", 2**10), ("MiB", 2**20), ("TiB", 2**40)])
def test_a_request_is_read_in_each_unit(unit: str, nbytes: int) -> None:
    error = torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 1.50 {unit}.")
    assert requested_bytes(error) == 1.5 * nbytes


def test_beyond_a_million_samples_no_largest_batch_is_sought() -> None:
    def peak(n: int) -> int:
        return 1_000 * n

    with_margin = (1_050 * 2**20) + 10**9
    assert _crossing(with_margin, peak) == (2**20, None)
    assert _crossing(with_margin - 1_050, peak) == (2**20 - 1, 2**20)


def test_twelve_runs_are_enough_to_look_for_the_largest_batch_and_the_last_one_counts() -> None:
    def peak(n: int) -> int:
        return peaks.setdefault(n, 10**9 if n < 777 else 5 * 10**9)

    peaks = {32: 10**9}
    assert _largest(4 * 10**9, peaks, peak) == (776, 780)
    assert len(peaks) == 13
    assert list(peaks)[-1] == 776


@pytest.mark.parametrize(
    ("unseen", "end", "told"),
    [(9, 1_000, False), (11, 1_000, True), (0, 0, False), (5, 0, True)],
)
def test_tensors_that_no_operator_touched_are_told_from_a_hundredth_of_the_end_on(
    unseen: int, end: int, told: bool
) -> None:
    ledger = SimpleNamespace(totals=lambda: SimpleNamespace(end_bytes=end))
    tracker: Any = SimpleNamespace(
        instrument=SimpleNamespace(failure=None),
        compiled=False,
        cuda_graphs=False,
        n_unreadable=0,
        ledgers={"cpu": ledger},
        unseen_bytes=unseen,
        cut_short=False,
        was_lost=False,
    )
    found = _doubts(tracker, "")
    assert [f"{unseen} B of tensors alive at the end" in one for one in found] == [True] * told
