"""Lesson 18: three puzzles, and the exercise: another slow training, to be made fast."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, number, puzzle
from perfkit.course.lessons.lesson_18_capstone.slow_training import slow_training

if TYPE_CHECKING:
    import torch

__all__ = [
    "AT_LEAST",
    "epochs_until_it_pays",
    "slow_training",
    "speed_of_all",
    "speed_without",
    "training_without_faults",
    "visits",
]

# ---- three puzzles of one line -----------------------------------------------------------


def _check_without(answer: Answer) -> list[str]:
    for share in (0.0, 0.5, 0.9, 0.03, 0.625):
        given, wanted = number(answer(share)), 1 / (1 - share)
        if not math.isclose(given, wanted, rel_tol=1e-9):
            raise NotYet(
                f"a fault of {share:.0%} of the time: without it {1 - share:.3g} of the time is "
                f"left, and your line says {given:.4g} times as fast"
            )
    return ["right for shares from 0 to 90 %: half of the time can bring 2×, and no more"]


def _check_all(answer: Answer) -> list[str]:
    for times in ([800.0, 400, 200, 100], [900.0, 300, 300, 310], [50.0, 60], [7.0]):
        given, wanted = number(answer(times)), times[0] / times[-1]
        if not math.isclose(given, wanted, rel_tol=1e-9):
            raise NotYet(
                f"epochs of {', '.join(f'{x:g}' for x in times)} ms, one fix after the other: "
                f"{given:.4g} times as fast in all is not right"
            )
    return ["the first against the last, whatever lies between them"]


def _check_pays(answer: Answer) -> list[str]:
    for once, before, after in ((600, 700, 100), (601, 700, 100), (50, 700, 100), (1000, 30, 20)):
        given = number(answer(once, before, after))
        wanted = math.ceil(once / (before - after))
        if given != wanted:
            raise NotYet(
                f"{once:,} ms once, and {after} ms an epoch instead of {before}: after "
                f"{given:g} epochs is not the first time that it has paid"
            )
    return ["the first epoch after which it has paid, in four cases"]


#: The first puzzle: how much faster without a fault of that share.
speed_without = puzzle(
    "the most that one fix can bring",
    hints=("What is left of a time of 1?", "1 / what is left"),
    check=_check_without,
)
#: The second puzzle: how much faster in all.
speed_of_all = puzzle(
    "how much faster in all",
    hints=("The ratios of neighbours, multiplied, cancel out.", "times[0] / times[-1]"),
    check=_check_all,
)
#: The third puzzle: when work that is done once has paid.
epochs_until_it_pays = puzzle(
    "when work that is done once has paid",
    hints=(
        "How much does an epoch save? A whole number of epochs has to save at least `once`.",
        "math.ceil(once / (before - after)); or without math: -(-once // (before - after)).",
    ),
    check=_check_pays,
)

# ---- the exercise ------------------------------------------------------------------------

#: An answer asks for at most this share of the slow one's operators: 1 / AT_LEAST.
AT_LEAST = 12
_STEPS, _BATCH, _FEATURES, _CLASSES = 6, 32, 16, 4
_SEEDS = (0, 1, 2)
#: 32 bits differ from 64 by less than 1e-6 after six steps.
_CLOSE = 1e-4


def visits(*, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Measurements of visitors and which of four things each bought; the first is rare.

    Returns:
        Features, float32 ``(192, 16)`` from 0 to 1, and classes, int64 ``(192,)``.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    features = torch.rand((_STEPS * _BATCH, _FEATURES), generator=random)
    towards = torch.randn((_FEATURES, _CLASSES), generator=random)
    bias = torch.tensor([-1.5, 0.0, 0.3, 0.5])
    return features, ((features - 0.5) @ towards + bias).argmax(1)


def _counted(answer: Answer, seed: int) -> tuple[int, int]:
    """Operators of one training, and its steps."""
    import torch

    from perfkit.course.kit.operators import count_operators

    data = visits(seed=seed)
    steps = 0

    def run() -> None:
        nonlocal steps
        steps = 0
        torch.manual_seed(seed)
        for _ in _losses(answer(*data)):
            steps += 1

    with torch.random.fork_rng():
        return count_operators(run).total, steps


@functools.cache
def _operators_of_the_slow_one() -> tuple[int, int]:
    """The same of ``slow_training``, which takes longest: it is the same in each check."""
    return _counted(slow_training, 0)


def _losses(given: Any) -> Iterator[Any]:
    if given is None:
        raise NotYet("your function returns nothing yet: it has to yield the loss of each step")
    if not hasattr(given, "__iter__"):
        raise NotYet(f"yield the loss of each step: a {type(given).__name__} has no steps")
    return iter(given)


def _same(answer: Answer, seed: int) -> Any:
    from perfkit.experiment.compare.same import same_result

    data = visits(seed=seed)
    # fp32 is asked for: with the coarser format of the two, bf16 would excuse itself
    return same_result(
        lambda: slow_training(*data), lambda: answer(*data), precision="fp32", seed=seed
    )


def _to_the_end(answer: Answer, seed: int) -> None:
    """Raise at the first later step with another loss: ``same_result`` looks at the first ones."""
    losses = _all_losses_of_the_slow_one(seed), _all_losses(answer, seed)
    for step, (wanted, given) in enumerate(zip(*losses, strict=True), start=1):
        if not math.isclose(given, wanted, rel_tol=_CLOSE):
            raise NotYet(f"seed {seed}: the loss of step {step} is {given:.5f}, not {wanted:.5f}")


def _all_losses(program: Answer, seed: int) -> list[float]:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return [float(loss) for loss in _losses(program(*visits(seed=seed)))]


@functools.cache
def _all_losses_of_the_slow_one(seed: int) -> list[float]:
    return _all_losses(slow_training, seed)


def _show(answer: Answer) -> Message:
    slow, _ = _operators_of_the_slow_one()
    yours, steps = _counted(answer, 0)
    return Message(
        f"{steps} steps",
        items=(
            f"{yours:,} operators; the slow one asks for {slow:,}, {slow / max(yours, 1):.1f} "
            "times as many",
            f"seed 0: {_same(answer, 0).sentence}",
        ),
    )


def _check(answer: Answer) -> list[str]:
    slow, wanted = _operators_of_the_slow_one()
    yours, steps = _counted(answer, 0)
    if steps != wanted:
        raise NotYet(f"{steps} steps instead of {wanted}: the batches of 32 belong to the result")
    for seed in _SEEDS:
        found = _same(answer, seed)
        if not found.same:
            raise NotYet(f"seed {seed}: {found.sentence}")
        _to_the_end(answer, seed)
    if yours * AT_LEAST > slow:
        raise NotYet(
            f"the same result, with {yours:,} operators: the slow one asks for {slow:,}, only "
            f"{slow / yours:.1f} times as many"
        )
    return [
        f"losses and gradients of the first steps are the same with {len(_SEEDS)} seeds, and the "
        "losses to the end",
        f"at most 1/{AT_LEAST} of the operators",
    ]


training_without_faults = Exercise(
    "another slow training",
    spec=(
        "training(features, classes) does what slow_training does: it builds the same model, "
        "trains on batches of 32 in the same order, and yields the loss of each step.",
        f"It asks for at most 1/{AT_LEAST} of the operators.",
        "Losses and gradients are the same, as far as fp32 can tell, with three seeds.",
    ),
    hints=(
        "Count where they come from: 32 rows through the model, 32 parts of the loss, four "
        "parameters to clip and to update, and a mean over all losses so far. And does the model "
        "need 64 bits?",
        "The model takes all rows at once. A weight for each row, 3 or 1, takes the place of the "
        'if: cross_entropy(…, reduction="none").',
        "cross_entropy(…, weight=…) with its mean divides by the sum of the weights. The slow one "
        "divides by the number of rows.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5) and AdamW(…, fused=True) do the "
        "rest. Yield loss.detach().",
    ),
    show=_show,
    check=_check,
)
