"""Lesson 16: the exercise and its puzzles, the network's two numbers, the pictures, its claims."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfkit.course.kit.claim import claim
from perfkit.course.lessons.lesson_16_many_machines import measured
from perfkit.course.lessons.lesson_16_many_machines.lesson import (
    Job,
    checkpoint_every,
    exactly_once,
    ring_time,
    share_of_rank,
)
from perfkit.course.lessons.lesson_16_many_machines.measured import (
    GONE,
    OPTIONS,
    Line,
    failures_a_day,
    predicted_s,
    trained_by_trainer,
    trainer_names,
)
from perfkit.course.lessons.lesson_16_many_machines.pictures import draw_counts, draw_shares

# ---- four right answers


def _in_samples(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(epoch)
        while done < len(order):
            job.step(order[done : done + job.batch])
            done += job.batch
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": done})
        done = 0


def _by_updates(job: Job, position: Any) -> None:
    """No position at all but the number of updates, which goes back with the weights."""
    each = -(-job.samples // job.batch)
    while job.updates < each * job.epochs:
        epoch, at = divmod(job.updates, each)
        job.step(job.order(epoch)[at * job.batch : (at + 1) * job.batch])
        if job.updates % job.every == 0:
            job.save({})


def _all_batches(job: Job, position: Any) -> None:
    """All batches of the training, of which those before the position are skipped."""
    batches = [
        order[at : at + job.batch]
        for order in map(job.order, range(job.epochs))
        for at in range(0, len(order), job.batch)
    ]
    begin = position["batch"] if position else 0
    for number in range(begin, len(batches)):
        job.step(batches[number])
        if (number + 1) % job.every == 0:
            job.save({"batch": number + 1})


def _since_the_last(job: Job, position: Any) -> None:
    """Counts the updates since its last save."""
    epoch, done = (position["epoch"], position["done"]) if position else (0, 0)
    since = 0
    while epoch < job.epochs:
        order = job.order(epoch)
        if done >= len(order):
            epoch, done = epoch + 1, 0
            continue
        job.step(order[done : done + job.batch])
        done, since = done + job.batch, since + 1
        if since == job.every:
            job.save({"epoch": epoch, "done": done})
            since = 0


def _at_the_end_too(job: Job, position: Any) -> None:
    """One more checkpoint, of the finished job."""
    _in_samples(job, position)
    job.save({"epoch": job.epochs, "done": 0})


def _from_one_iterator(job: Job, position: Any) -> None:
    """All batches, of which the iterator skips those that the weights have behind them."""
    batches = itertools.product(range(job.epochs), range(0, job.samples, job.batch))
    for epoch, at in itertools.islice(batches, job.updates, None):
        job.step(job.order(epoch)[at : at + job.batch])
        if not job.updates % job.every:
            job.save({"updates": job.updates})


def _carries(job: Job, position: Any) -> None:
    """A position in batches: after the last one of an epoch it is the next epoch's first."""
    epoch, batch = (position["epoch"], position["batch"]) if position else (0, 0)
    while epoch < job.epochs:
        order = job.order(epoch)
        n = math.ceil(len(order) / job.batch)
        job.step(order[batch * job.batch :][: job.batch])
        epoch, batch = epoch + (batch + 1) // n, (batch + 1) % n
        if job.updates % job.every == 0:
            job.save({"epoch": epoch, "batch": batch})


# ---- wrong ones


def _saved_as(position_of: Callable[[Job, int, int], Any]) -> Callable[..., None]:
    """``_in_samples`` with another position in its checkpoint."""

    def resume(job: Job, position: Any) -> None:
        position = position or {"epoch": 0, "done": 0}
        done = position["done"]
        for epoch in range(position["epoch"], job.epochs):
            order = job.order(epoch)
            while done < len(order):
                job.step(order[done : done + job.batch])
                done += job.batch
                if job.updates % job.every == 0:
                    job.save(position_of(job, epoch, done))
            done = 0

    return resume


def _full_batches_only(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(epoch)
        while done + job.batch <= len(order):
            job.step(order[done : done + job.batch])
            done += job.batch
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": done})
        done = 0


def _across_epochs(job: Job, position: Any) -> None:
    """All epochs as one list: the last batch of one takes samples of the next."""
    samples = [sample for epoch in range(job.epochs) for sample in job.order(epoch)]
    for at in range(job.updates * job.batch, len(samples), job.batch):
        job.step(samples[at : at + job.batch])
        if job.updates % job.every == 0:
            job.save({})


def _after_each_epoch(job: Job, position: Any) -> None:
    for epoch in range(position["epoch"] if position else 0, job.epochs):
        order = job.order(epoch)
        for at in range(0, len(order), job.batch):
            job.step(order[at : at + job.batch])
        job.save({"epoch": epoch + 1})


def _without_position(job: Job, position: Any) -> None:
    while job.updates < job.epochs * -(-job.samples // job.batch):
        for epoch in range(job.epochs):
            order = job.order(epoch)
            for at in range(0, len(order), job.batch):
                if job.updates >= job.epochs * -(-job.samples // job.batch):
                    return
                job.step(order[at : at + job.batch])
                if job.updates % job.every == 0:
                    job.save({})


def _epoch_only(job: Job, position: Any) -> None:
    for epoch in range(position["epoch"] if position else 0, job.epochs):
        order = job.order(epoch)
        for at in range(0, len(order), job.batch):
            job.step(order[at : at + job.batch])
            if job.updates % job.every == 0:
                job.save({"epoch": epoch})


def _saves_before(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(epoch)
        while done < len(order):
            before = done
            job.step(order[done : done + job.batch])
            done += job.batch
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": before})
        done = 0


def _skips_in_each_epoch(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(epoch)
        for at in range(position["done"], len(order), job.batch):
            job.step(order[at : at + job.batch])
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": at + job.batch})


def _one_order(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(0)
        while done < len(order):
            job.step(order[done : done + job.batch])
            done += job.batch
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": done})
        done = 0


def _saves_always(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        order = job.order(epoch)
        while done < len(order):
            job.step(order[done : done + job.batch])
            done += job.batch
            job.save({"epoch": epoch, "done": done})
        done = 0


def _never_saves(job: Job, position: Any) -> None:
    for epoch in range(job.epochs):
        order = job.order(epoch)
        for at in range(0, len(order), job.batch):
            job.step(order[at : at + job.batch])


def _in_batches_of_one(job: Job, position: Any) -> None:
    position = position or {"epoch": 0, "done": 0}
    done = position["done"]
    for epoch in range(position["epoch"], job.epochs):
        for number in job.order(epoch)[done:]:
            job.step([number])
            done += 1
            if job.updates % job.every == 0:
                job.save({"epoch": epoch, "done": done})
        done = 0


def _swallows(job: Job, position: Any) -> None:
    with contextlib.suppress(BaseException):
        _in_samples(job, position)


def _nothing(job: Job, position: Any) -> None:
    return None


@pytest.mark.parametrize(
    "answer",
    [
        _in_samples,
        _by_updates,
        _all_batches,
        _since_the_last,
        _at_the_end_too,
        _from_one_iterator,
        _carries,
    ],
)
def test_a_job_that_goes_on_is_accepted(answer: Callable[..., Any]) -> None:
    said = " ".join(str(exactly_once.check(answer)).split())
    assert said.startswith("Done"), said
    assert "each sample as often as without a kill" in said


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (_without_position, "5 samples came too seldom, 5 too often"),
        (_epoch_only, "0 samples came too seldom, 12 too often"),
        (_saves_before, "0 samples came too seldom, 4 too often"),
        (_skips_in_each_epoch, "12 samples came too seldom, 0 too often"),
        (_one_order, "not those of a run without a kill"),
        (_saves_always, "saving takes time"),
        (_never_saves, "updates without a checkpoint"),
        (_in_batches_of_one, "in other batches"),
        (_swallows, "trains nothing"),
        (_nothing, "trains nothing yet"),
        (
            _saved_as(lambda job, epoch, done: {"epoch": epoch, "done": done % job.samples}),
            "0 samples came too seldom",  # an epoch that is done begins again
        ),
        (
            _saved_as(lambda job, epoch, done: {"epoch": epoch, "done": done // 4 * 4}),
            "6 samples in batches of 1, 2 epochs, killed before update 6",
        ),
        (
            _saved_as(lambda job, epoch, done: {"order": job.order(epoch)}),
            "a position has plain numbers",
        ),
        (_full_batches_only, "10 samples in batches of 4, 3 epochs, never killed"),
        (_across_epochs, "in other batches"),
        (_after_each_epoch, "5 updates without a checkpoint; one is due after 3"),
    ],
)
def test_a_job_that_does_not_is_refused(answer: Callable[..., Any], because: str) -> None:
    said = " ".join(str(exactly_once.check(answer)).split())
    assert said.startswith("Not yet")
    assert because in said


def test_what_is_shown_is_counted() -> None:
    assert "more than twice: 0; less than twice: 0" in str(exactly_once.show(_in_samples))
    assert "more than twice: 0; less" not in str(exactly_once.show(_without_position))


# ---- the puzzles


@pytest.mark.parametrize(
    ("puzzle", "right", "wrong"),
    [
        (
            share_of_rank,
            [
                lambda order, done, rank, ranks: order[done + rank :: ranks],
                lambda order, done, rank, ranks: order[done:][rank::ranks],
                lambda order, done, rank, ranks: [
                    n for i, n in enumerate(order[done:]) if i % ranks == rank
                ],
            ],
            [
                lambda order, done, rank, ranks: order[rank::ranks],
                lambda order, done, rank, ranks: order[rank::ranks][done:],
                # right as long as the ranks divide what is done
                lambda order, done, rank, ranks: order[rank::ranks][done // ranks :],
                lambda order, done, rank, ranks: order[done:],
                lambda order, done, rank, ranks: order[done + rank],
                lambda order, done, rank, ranks: order[done * ranks + rank :: ranks],
            ],
        ),
        (
            checkpoint_every,
            [
                lambda save_s, between_s: math.sqrt(2 * save_s * between_s),
                lambda save_s, between_s: (2 * save_s * between_s) ** 0.5 - save_s,
                lambda save_s, between_s: round(math.sqrt(2 * save_s * between_s)),
            ],
            [
                lambda save_s, between_s: math.sqrt(save_s * between_s) / 2,
                lambda save_s, between_s: save_s,
                lambda save_s, between_s: between_s / 2,
                lambda save_s, between_s: 0,
                lambda save_s, between_s: 2 * save_s * between_s,
            ],
        ),
        (
            ring_time,
            [
                lambda n, size, a, b: 2 * (n - 1) * (a + size / n / b),
                lambda n, size, a, b: 2 * (n - 1) * a + 2 * (n - 1) / n * size / b,
                lambda n, size, a, b: sum(a + size / (n * b) for _ in range(2 * (n - 1))),
            ],
            [
                lambda n, size, a, b: a + size / b,
                lambda n, size, a, b: (n - 1) * (a + size / n / b),
                lambda n, size, a, b: 2 * (n - 1) * (a + size / b),
                lambda n, size, a, b: 2 * n * (a + size / n / b),
                lambda n, size, a, b: 2 * a + 2 * (n - 1) / n * size / b,
            ],
        ),
    ],
    ids=["share", "every", "ring"],
)
def test_a_puzzle_takes_what_is_right_and_nothing_else(
    puzzle: Any, right: list[Any], wrong: list[Any]
) -> None:
    for answer in right:
        assert str(puzzle.check(answer)).startswith("Done")
    for answer in [*wrong, lambda *given: None]:
        assert str(puzzle.check(answer)).startswith("Not yet")


# ---- what the lesson measures and predicts


def test_a_rank_alone_sends_nothing_and_bytes_hardly_grow() -> None:
    link = Line(0.0, 1e9)
    assert predicted_s(1, 1e9, link) == 0
    assert predicted_s(2, 1e9, link) == pytest.approx(1.0)
    assert predicted_s(1024, 1e9, link) == pytest.approx(2 * 1023 / 1024)


def test_failures_grow_with_the_gpus() -> None:
    assert failures_a_day(16_384) == pytest.approx(419 / 54)
    assert failures_a_day(1024) == pytest.approx(failures_a_day(16_384) / 16)


def test_without_lightning_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "has_trainer", lambda: False)
    assert trainer_names() is None
    assert trained_by_trainer(torch.nn.Linear(1, 1), [], 0.1) is None


def test_the_trainer_gives_the_weights_of_the_loop_by_hand() -> None:
    pytest.importorskip("lightning.pytorch")
    names = trainer_names()
    assert names is not None
    assert all(names[name] for name in OPTIONS)
    assert not any(names[name] for name in GONE)
    torch.manual_seed(0)
    data = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(4)]
    torch.manual_seed(1)
    model = trained_by_trainer(torch.nn.Linear(3, 1), data, 0.1, accumulate_grad_batches=2)
    torch.manual_seed(1)
    own = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for number, (some, wanted) in enumerate(data):
        (torch.nn.functional.mse_loss(own(some), wanted) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert model is not None
    torch.testing.assert_close(model.weight, own.weight)


def test_the_pictures_say_what_they_show() -> None:
    _, said = draw_counts({"a": [1, 1, 1, 1], "b": [2, 2, 0, 1]})
    assert "of 4 samples" in said
    assert "a: 0 never, 0 twice, 4 once" in said
    assert "b: 1 never, 2 twice, 1 once" in said
    _, said = draw_shares({"slow": {8: 0.5, 1024: 0.75}}, source="predicted")
    assert "slow: 50% at 8, 75% at 1,024" in said
    assert "predicted" in said


# ---- the claims


def _b11(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "hosts": ["0", "1"],
        "apart": 1e-7,
        "lost": {"without position": 48, "with position": 0},
        "sent": {"DDP": 800.0, "DiLoCo": 100.0},
        "predicted": {"DDP": 3.2, "DiLoCo": 0.01},
    }
    return claim("B11").settle(*{**given, **changed}.values()).outcome


def test_several_hosts_hold_if_nothing_is_lost() -> None:
    found = _b11()
    assert found.holds is True
    assert found.figures["bytes_ratio"].value == 8
    assert found.figures["bytes_ratio"].kind == "exact"
    assert found.figures["ddp_1024_s"].kind == "predicted"
    assert _b11(hosts=["0", "0"]).holds is False
    assert _b11(apart=0.1).holds is False
    assert _b11(lost={"without position": 48, "with position": 8}).holds is False


def test_options_hold_only_where_they_were_tried() -> None:
    names = {name: name in OPTIONS for name in (*OPTIONS, *GONE)}
    same: dict[str, bool | None] = {"precision": True}
    assert claim("B12").settle(same, names).outcome.holds is True
    assert claim("B12").settle({"precision": False}, names).outcome.holds is False
    assert claim("B12").settle({"precision": None}, None).outcome.holds is None
    assert claim("B12").settle(same, {**names, "strategy": False}).outcome.holds is False
