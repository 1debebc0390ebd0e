"""Lesson 04: what workers hold and read, counted; and the exercise on shares."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from perfkit.course.experiments import loader as experiments
from perfkit.course.ledger.recording import Context, registered
from perfkit.course.lessons.lesson_04_dataloader.lesson import (
    START,
    Ahead,
    Counted,
    batches_ahead,
    draw_ahead,
    read_by_all,
    share_of,
)


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
        (lambda *_: "abc", "return a range or a list of numbers, not a str"),
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
    assert read_by_all(3, lambda n, *_: range(n), ranks=2, workers=2) == Counter({0: 4, 1: 4, 2: 4})
    assert experiments.plain_numbers(3, 2) == [0, 0, 1, 1, 2, 2]
    assert experiments.plain_numbers(3, 0) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["A8", "A10", "B1", "B2", "C5", "D5", "D6"])
def test_its_experiments_give_an_outcome(claim: str, tmp_path: Path) -> None:
    (one,) = registered(claims=[claim], lessons=[experiments.LESSON])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    outcome = one.run(Context(budget_s=0.5, device=device, seed=0, folder=tmp_path))
    exact = {name: f.value for name, f in outcome.figures.items() if f.kind == "exact"}
    if claim == "A8":
        assert outcome.holds
        assert exact["batch_bytes"] == 100_663_296 + 67_108_864
        assert exact["batches_per_worker"] == 2
    if claim == "C5":
        kinds = {name: f.kind for name, f in outcome.figures.items()}
        assert kinds == {"time_ratio": "measured", "depth_ratio": "simulated"}
    if claim in ("B1", "B2"):  # pictures are decoded, and a network is trained: nothing sleeps
        assert {f.kind for f in outcome.figures.values()} == {"measured"}
    if claim == "A10":
        assert outcome.figures["knee"].value in (0, 1, 2, 4)
    if claim == "D6":
        assert outcome.holds
        assert exact == {"times_read": 4, "times_read_shared": 1}
