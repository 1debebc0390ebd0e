"""Lesson 16: three puzzles, and the exercise on a job that may be killed at any update."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from perfkit.base.words import plural
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle, something

# ---- three puzzles of one line -----------------------------------------------------------


def _check_share(answer: Answer) -> list[str]:
    for n, done, ranks in ((16, 0, 2), (16, 8, 2), (24, 12, 3), (25, 10, 4), (7, 3, 1)):
        order = [(7 * i + 3) % 101 for i in range(n)]
        shares = []
        for rank in range(ranks):
            given = something(answer(list(order), done, rank, ranks))
            try:
                shares.append([int(one) for one in given])
            except (TypeError, ValueError):
                raise NotYet("return a list of sample numbers") from None
        found = Counter(one for share in shares for one in share)
        wanted = Counter(order[done:])
        if found != wanted:
            n_lost, n_more = (wanted - found).total(), (found - wanted).total()
            raise NotYet(
                f"{n} samples, {done} of them done, {ranks} ranks: {n_lost} of the samples that "
                f"are left get lost, and {n_more} come that should not"
            )
        sizes = [len(one) for one in shares]
        if max(sizes) - min(sizes) > 1:
            raise NotYet(f"{n} samples, {done} done: the {ranks} ranks get {sizes} of them")
    return ["every sample that is left comes once, also on another number of ranks than before"]


def _cost(every_s: float, save_s: float, between_s: float) -> float:
    """Share of the time that is lost: saving, and half an interval for each failure."""
    return save_s / every_s + every_s / (2 * between_s)


def _check_every(answer: Answer) -> list[str]:
    for save_s, between_s in ((30, 172_800), (5, 86_400), (120, 10_800), (1, 10_000_000)):
        given = number(answer(save_s, between_s))
        if not given > 0:
            raise NotYet(f"an interval is longer than 0 s, not {given:g}")
        best = _cost(math.sqrt(2 * save_s * between_s), save_s, between_s)
        lost = _cost(given, save_s, between_s)
        if lost > 1.02 * best:
            raise NotYet(
                f"a save of {save_s} s and a failure every {between_s:,} s: every {given:,.0f} s "
                f"loses {lost:.2%} of the time; the best interval loses {best:.2%}"
            )
    return ["the interval that loses least, within 2 % of it, in four cases"]


def _check_ring(answer: Answer) -> list[str]:
    cases = ((2, 1e9, 1e-5, 1e10), (8, 1e6, 1e-5, 1e9), (1024, 4e9, 2e-5, 5e10), (1, 1e9, 1, 1e3))
    for ranks, size, alpha_s, beta in cases:
        given = number(answer(ranks, size, alpha_s, beta))
        wanted = 2 * (ranks - 1) * (alpha_s + size / ranks / beta)
        if not math.isclose(given, wanted, rel_tol=1e-6, abs_tol=1e-12):
            raise NotYet(
                f"{ranks} ranks, {size:,.0f} B, {alpha_s:g} s a message and {beta:g} B/s: "
                f"{given:.6g} s; counted message by message it is {wanted:.6g} s"
            )
    return ["the time of a ring, in four cases; alone, a rank sends nothing"]


#: The first puzzle: which samples a rank gets after a restart.
share_of_rank = puzzle(
    "the samples of one rank",
    hints=(
        "Skip what is done, whoever did it; then each rank takes every `ranks`-th one.",
        "order[start::step], where the start is different for each rank.",
    ),
    check=_check_share,
)
#: The second puzzle: how often to save.
checkpoint_every = puzzle(
    "how often to save",
    hints=(
        "Saving costs save_s / every of the time. A failure costs half an interval on average: "
        "every / (2 * between_s) of the time.",
        "The sum is least where both are equal.",
        "The square root of 2 * save_s * between_s.",
    ),
    check=_check_every,
)
#: The third puzzle: the time of an all-reduce.
ring_time = puzzle(
    "the time of an all-reduce",
    hints=(
        "How many messages does a rank send one after the other, and how many bytes has each?",
        "2 * (ranks - 1) messages of size / ranks bytes.",
        "Each takes alpha_s + bytes / beta.",
    ),
    check=_check_ring,
)

# ---- the exercise ------------------------------------------------------------------------


class Killed(BaseException):
    """The job's process is gone. No ``except Exception`` sees it, as with a real kill."""


class Job:
    """A small training that is killed before a chosen update, once.

    Attributes:
        samples: how many the data has.
        batch: samples of an update; the last one of an epoch may have fewer.
        epochs: how often all samples are to be trained on.
        every: after so many updates, and not sooner, a checkpoint is due.
        updates: how many the weights have behind them.
    """

    def __init__(
        self,
        *,
        samples: int = 20,
        batch: int = 4,
        epochs: int = 2,
        every: int = 3,
        kill_before: int | None = None,
    ) -> None:
        self.samples, self.batch, self.epochs, self.every = samples, batch, epochs, every
        self.updates = 0
        self._kill_before = kill_before
        self._weight = 1.0
        self._counted: Counter[int] = Counter()
        self._losses: list[float] = []
        self._saved: tuple[Any, ...] | None = None
        self._since_save = 0
        self.most_updates_between_saves = 0
        self.saves_too_soon = 0

    def order(self, epoch: int) -> list[int]:
        """The sample numbers of an epoch, in its order."""
        import random

        order = list(range(self.samples))
        random.Random(1_000 + epoch).shuffle(order)
        return order

    def step(self, numbers: list[int]) -> None:
        """One update with these samples; the process may be killed instead."""
        if self.updates == self._kill_before:
            self._kill_before = None
            raise Killed
        if not numbers:
            raise NotYet("step() was called without a sample")
        if len(numbers) > self.batch:
            raise NotYet(f"step() was called with {len(numbers)} samples; batch is {self.batch}")
        target = sum(math.sin(1 + n) for n in numbers) / len(numbers)
        loss = (self._weight - target) ** 2
        self._weight -= 0.2 * (self._weight - target)
        self._losses.append(loss)
        self._counted.update(numbers)
        self.updates += 1
        self._since_save += 1
        self.most_updates_between_saves = max(self.most_updates_between_saves, self._since_save)
        if self.updates > 4 * self.epochs * -(-self.samples // self.batch):
            raise NotYet("your function does not come to an end")

    def save(self, position: Mapping[str, Any]) -> None:
        """A checkpoint: weights, and the position that you give (plain numbers)."""
        for name, value in dict(position).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise NotYet(f"save({{{name!r}: …}}): a position has plain numbers")
        if self._since_save < self.every:
            self.saves_too_soon += 1
        self._saved = (
            self.updates, self._weight, self._counted.copy(), list(self._losses), dict(position)
        )  # fmt: skip
        self._since_save = 0

    def restart(self) -> dict[str, Any] | None:
        """What torchrun and your loading code do: the last checkpoint; its position, or None."""
        self._since_save = 0
        if self._saved is None:
            self.updates, self._weight = 0, 1.0
            self._counted, self._losses = Counter(), []
            return None
        self.updates, self._weight, counted, losses, position = self._saved
        self._counted, self._losses = counted.copy(), list(losses)
        return dict(position)

    def times(self) -> list[int]:
        """How often each sample is in the weights."""
        return [self._counted[sample] for sample in range(self.samples)]

    def losses(self) -> list[float]:
        """The loss of each update that is in the weights."""
        return list(self._losses)


def _run(answer: Answer, **given: Any) -> Job:
    job = Job(**given)
    position = None
    for _ in range(3):
        try:
            answer(job, position)
        except Killed:
            position = job.restart()
        else:
            return job
    raise NotYet("your function swallowed the kill and went on, or was killed twice")


def _wanted(**given: Any) -> Job:
    job = Job(**given)
    for epoch in range(job.epochs):
        order = job.order(epoch)
        for at in range(0, len(order), job.batch):
            job.step(order[at : at + job.batch])
    return job


def _show(answer: Answer) -> Message:
    job = _run(answer, kill_before=8)
    if not job.updates:
        raise NotYet("your function trains nothing yet")
    times = job.times()
    wanted = _wanted()
    last, right = job.losses()[-1], wanted.losses()[-1]
    return Message(
        "20 samples, 2 epochs, a checkpoint after 3 updates, killed before update 9",
        (
            f"{job.updates} updates; without the kill {wanted.updates}",
            f"samples trained on more than twice: {sum(n > 2 for n in times)}; less than twice: "
            f"{sum(n < 2 for n in times)}",
            f"loss of the last update {last:.6f}; without the kill {right:.6f}",
        ),
    )


def _check(answer: Answer) -> list[str]:
    shapes = (
        {"samples": 20, "batch": 4, "epochs": 2, "every": 3},
        {"samples": 10, "batch": 4, "epochs": 3, "every": 2},
        {"samples": 6, "batch": 1, "epochs": 2, "every": 5},
        {"samples": 8, "batch": 8, "epochs": 4, "every": 1},
    )
    n_kills = 0
    for shape in shapes:
        wanted = _wanted(**shape)
        what = "{samples} samples in batches of {batch}, {epochs} epochs".format(**shape)
        for kill in (None, *range(wanted.updates)):
            job = _run(answer, kill_before=kill, **shape)
            n_kills += kill is not None
            when = "never killed" if kill is None else f"killed before update {kill + 1}"
            if not job.updates:
                raise NotYet("your function trains nothing yet")
            times = job.times()
            lost = sum(n < shape["epochs"] for n in times)
            more = sum(n > shape["epochs"] for n in times)
            if lost or more:
                raise NotYet(
                    f"{what}, {when}: {plural(lost, 'sample')} came too seldom, {more} too often"
                )
            if job.losses() != wanted.losses():
                raise NotYet(
                    f"{what}, {when}: each sample came as often as it should, but in other "
                    "batches: the losses are not those of a run without a kill"
                )
            if job.most_updates_between_saves > shape["every"] + (wanted.updates % shape["every"]):
                raise NotYet(
                    f"{what}: {job.most_updates_between_saves} updates without a checkpoint; one "
                    f"is due after {shape['every']}"
                )
            if job.saves_too_soon > 1:
                raise NotYet(
                    f"{what}: {job.saves_too_soon} checkpoints came before {shape['every']} "
                    "updates had passed since the last; saving takes time"
                )
    return [
        f"killed at {n_kills} places: each sample as often as without a kill",
        "the same losses, to the last digit",
        "a checkpoint when it is due, and not sooner",
    ]


exactly_once = Exercise(
    "a job that resumes where it was",
    spec=(
        "resume(job, position) trains job.epochs epochs. At the first start position is None; "
        "after a kill it is what you gave to the last save, and the weights are those of then.",
        "job.order(epoch) is the list of sample numbers of an epoch. job.step(numbers) is an "
        "update with at most job.batch of them, in order; the last of an epoch may have fewer.",
        "After job.every updates call job.save(position) with a dict of plain numbers. "
        "job.updates counts what the weights have behind them; it goes back with them.",
        "The process may be killed in any step. In the end each sample was trained on once in "
        "each epoch, in the batches of a run without a kill.",
    ),
    hints=(
        "What do you need to know to go on? Which epoch, and how many samples of it are done.",
        "Save after the step, with the number of samples that are done including that step.",
        "Only the first epoch after a restart begins in the middle: set the number back to 0 "
        "after it.",
        "job.updates alone is enough, too: divmod(job.updates, updates of an epoch).",
    ),
    show=_show,
    check=_check,
)
