"""Lesson 04: what workers hold and read, counted; and the exercise on shares."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from perfkit.course.kit.claim import claim
from perfkit.course.ledger.recording import Outcome
from perfkit.course.lessons.lesson_04_dataloader.lesson import (
    START,
    Ahead,
    Counted,
    Numbers,
    batches_ahead,
    draw_ahead,
    read_by_all,
    share_of,
)
from perfkit.course.lessons.lesson_04_dataloader.shares import every_number, own_share
from perfkit.experiment.compare.knee import Knee
from perfkit.measure.paired import Interval


@pytest.fixture(autouse=True)
def torch_says_too_many_workers() -> Iterator[None]:
    """On a machine with one core, torch warns of two workers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


def _share(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    return range(rank * workers + worker, n, ranks * workers)


def _blocks(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    readers, reader = ranks * workers, rank * workers + worker
    return list(range(reader * n // readers, (reader + 1) * n // readers))


@pytest.mark.parametrize(
    ("workers", "prefetch", "batches"), [(1, 1, 1), (1, 2, 2), (2, 2, 4), (2, 4, 8)]
)
def test_workers_hold_prefetch_factor_batches_each(
    workers: int, prefetch: int, batches: int
) -> None:
    held = batches_ahead(workers=workers, prefetch=prefetch, batch_size=4, shape=(3, 8, 8))
    assert held.batches == batches
    assert held.nbytes == batches * 4 * 3 * 8 * 8 * 4


def test_the_picture_says_what_it_shows() -> None:
    said = repr(
        draw_ahead([(1, 2), (2, 2)], [Ahead(2, 2_000_000, 2_100_000), Ahead(4, 10**6, None)])
    )
    said = " ".join(said.split())
    assert "predicted: 1 × 2: 2.0 MB; 2 × 2: 1.0 MB" in said
    assert "growth of shared memory: 1 × 2: 2.1 MB." in said
    assert "not read here" in repr(draw_ahead([(1, 2)], [Ahead(2, 2_000_000, None)]))


@pytest.mark.slow
@pytest.mark.skipif(START != "fork", reason="only a forked worker sees the slowed method")
def test_workers_that_are_slow_to_come_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Counted.__getitem__

    def slowly(self: Counted, index: int) -> torch.Tensor:
        time.sleep(0.6)  # longer than it takes until workers count as resting
        return loads(self, index)

    monkeypatch.setattr(Counted, "__getitem__", slowly)
    assert batches_ahead(workers=1, prefetch=2, batch_size=1).batches == 2


def _filtered(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    return (i for i in range(n) if i % (ranks * workers) == worker * ranks + rank)


def _of_a_tensor(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    return torch.arange(n)[rank::ranks][worker::workers]


def _rest_dropped(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    each, reader = n // (ranks * workers), rank * workers + worker
    return range(reader * each, (reader + 1) * each)


def _rest_to_the_last(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    readers, reader = ranks * workers, rank * workers + worker
    each = n // readers
    return range(reader * each, n if reader == readers - 1 else (reader + 1) * each)


def _ranks_mixed_up(n: int, rank: int, ranks: int, worker: int, workers: int) -> Iterable[int]:
    return range(rank + worker, n, ranks * workers)


@pytest.mark.parametrize("answer", [_share, _blocks, _filtered, _of_a_tensor])
def test_a_right_answer_passes_whatever_its_order(answer: Callable[..., Any]) -> None:
    assert repr(share_of.check(answer)).startswith("Done")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda *_: None, "returns nothing yet"),
        (lambda *_: "abc", "return a range or a list of numbers, got str"),
        (lambda n, *_: range(n), "sample 0 is read 3 times"),
        (lambda n, rank, ranks, worker, workers: range(worker, n, workers), "is read 2 times"),
        (lambda n, rank, ranks, worker, workers: range(rank, n, ranks), "is read 3 times"),
        (
            lambda n, rank, ranks, worker, workers: range(
                rank * workers + worker + 1, n, ranks * workers
            ),
            "sample 0 is never read",
        ),
        (lambda n, *_: range(1, n + 1), "there is no sample 12"),
        (_rest_dropped, "is never read"),
        (_rest_to_the_last, "shares may differ by one"),
        (_ranks_mixed_up, "is read 2 times"),
        (
            lambda n, rank, ranks, worker, workers: range(n) if rank + worker == 0 else [],
            "shares may differ by one",
        ),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(answer: Callable[..., Any], reason: str) -> None:
    said = " ".join(repr(share_of.check(answer)).split())
    assert said.startswith("Not yet"), said
    assert reason in said


def test_show_tells_each_readers_share() -> None:
    said = repr(share_of.show(_share))
    assert "rank 1, worker 0: [2, 6, 10]" in said


def test_real_workers_read_everything_without_shares() -> None:
    assert read_by_all(3, every_number, ranks=2, workers=2) == Counter({0: 4, 1: 4, 2: 4})
    assert read_by_all(3, own_share, ranks=2, workers=2) == Counter({0: 1, 1: 1, 2: 1})
    assert list(DataLoader(Numbers(3), batch_size=None)) == [0, 1, 2]


def _outcome(name: str, *measured: Any) -> Outcome:
    settled = claim(name).settle(*measured)
    assert settled.outcome is not None, settled.why
    return settled.outcome


def _ratio(low: float, high: float) -> Any:
    return SimpleNamespace(ratio=(low + high) / 2, low=low, high=high)


def test_a8_counts_a_batch_for_each_worker_and_prefetch_factor() -> None:
    arms = (1, 1), (1, 2), (2, 4)
    held = {(w, p): Ahead(w * p, w * p * 100, None) for w, p in arms}
    found = _outcome("A8", held)
    assert found.holds
    exact = {name: f.value for name, f in found.figures.items() if f.kind == "exact"}
    assert exact == {"batch_bytes": 100_663_296 + 67_108_864, "batches_per_worker": 2}
    assert "2,684 MB" in found.sentence
    short = _outcome("A8", held | {(2, 4): Ahead(7, 700, 800)})
    assert short.holds is False
    assert short.figures["shared_ratio"].value == 800 / 700


@pytest.mark.parametrize(
    ("value", "sure", "undecided", "holds"),
    [(1, True, (), True), (1, False, (0,), None), (0, True, (), False), (0, False, (), None)],
)
def test_a10_needs_to_know_that_no_worker_is_slower(
    value: int, sure: bool, undecided: tuple[int, ...], holds: bool | None
) -> None:
    ratio = Interval(1.0, 0.9, 1.1, 0.95)
    knee = Knee("num_workers", value, 2, ratio, 0.05, sure, undecided, "The knee is here.")
    found = _outcome("A10", knee)
    assert found.holds is holds
    assert (found.figures["knee"].value, found.figures["best"].value) == (value, 2)


@pytest.mark.parametrize(
    ("timed", "holds"), [((1.2, 1.4), True), ((0.95, 1.05), False), ((0.5, 2.0), None)]
)
def test_workers_are_judged_by_the_interval(timed: tuple[float, float], holds: bool | None) -> None:
    one, other = _ratio(0.5, 0.6), _ratio(*timed)
    assert _outcome("B1", one, other).holds is holds
    assert _outcome("B2", other).holds is holds
    assert _outcome("D5", one, one, other).holds is holds
    found = _outcome("C5", other, one)
    assert found.holds is holds
    kinds = {name: f.kind for name, f in found.figures.items()}
    assert kinds == {"time_ratio": "measured", "depth_ratio": "simulated"}


@pytest.mark.parametrize(("shared", "holds"), [(1, True), (2, False)])
def test_d6_holds_if_shares_are_read_once(shared: int, holds: bool) -> None:
    found = _outcome("D6", Counter({0: 4, 1: 4}), Counter({0: 1, 1: shared}))
    assert found.holds is holds
    assert found.figures["times_read_shared"].value == shared
