"""Lesson 08: pictures of cells, and the exercise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.cells import cells
from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.puzzle import Answer, puzzle, tensor

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "FAR",
    "NEAR",
    "NUMBERS",
    "cells",
    "every_bin",
    "own_means",
    "push_apart",
    "quadratic",
    "safe_means",
]

#: Numbers that the network gives to each pixel: its embedding.
NUMBERS = 8
#: A pixel is not pulled if it is within this distance of the mean of its cell.
NEAR = 0.5
#: Two means are not pushed if they are this far apart.
FAR = 3.0


def quadratic(counts: Mapping[int, int]) -> Callable[[int], int]:
    """The parabola through three counts, e.g. of operators by the number of instances.

    Args:
        counts: x → count, three of them.

    Returns:
        A function: x → the predicted count.
    """
    points = list(counts.items())

    def at(x: int) -> int:
        total = Fraction(0)
        for i, (xi, count) in enumerate(points):  # Lagrange's form: exact for whole numbers
            term = Fraction(count)
            for j, (xj, _) in enumerate(points):
                if i != j:
                    term *= Fraction(x - xj, xi - xj)
            total += term
        return round(total)

    return at


# ---- three puzzles of one line -----------------------------------------------------------


def _has_shape(given: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(given.shape) != shape:
        raise NotYet(f"the shape is {shape}, not {tuple(given.shape)}")
    return given


def _check_bins(answer: Answer) -> list[str]:
    import torch

    most = 5
    for n in (1, 3):
        instances = (torch.arange(most + 1) + torch.arange(n)[:, None]).view(n, 2, 3) % (most + 1)
        bins = _has_shape(tensor(answer(instances, most)), (n, 2, 3))
        if bins.dtype != torch.int64:
            raise NotYet(f"a bin is a whole number: int64, not {bins.dtype}")
        if int(bins.min()) < 0 or int(bins.max()) >= n * (most + 1):
            raise NotYet(
                f"with {n} pictures there are {n * (most + 1)} bins, from 0 to "
                f"{n * (most + 1) - 1}; yours go from {int(bins.min())} to {int(bins.max())}"
            )
        pairs = set(zip(instances.flatten().tolist(), _pictures(instances), strict=True))
        places = zip(pairs, (_bins_of(instances, bins, *pair) for pair in pairs), strict=True)
        taken: dict[int, tuple[int, int]] = {}
        for pair, numbers in places:
            if len(numbers) != 1:
                raise NotYet("the pixels of one instance fall into different bins")
            (number,) = numbers
            if number in taken:
                raise NotYet(
                    f"instance {pair[0]} of picture {pair[1]} and instance {taken[number][0]} of "
                    f"picture {taken[number][1]} fall into the same bin, {number}"
                )
            taken[number] = pair
    return ["every instance of every picture has a bin of its own"]


def _pictures(instances: torch.Tensor) -> list[int]:
    """The number of its picture for each pixel, in the order of ``flatten``."""
    n = len(instances)
    return [i for i in range(n) for _ in range(instances[0].numel())]


def _bins_of(instances: torch.Tensor, bins: torch.Tensor, instance: int, picture: int) -> set[int]:
    here = bins[picture][instances[picture] == instance]
    return {int(number) for number in here}


def _check_own(answer: Answer) -> list[str]:
    import torch

    means = torch.arange(12.0).view(4, 3)
    bins = torch.tensor([2, 0, 2, 3, 1, 1])
    given = _has_shape(tensor(answer(means, bins)), (6, 3))
    wanted = torch.stack([means[int(b)] for b in bins])
    if not torch.equal(given, wanted):
        raise NotYet("a pixel has the mean of another bin")
    return ["each pixel has the mean of its own bin, in one operator"]


def _check_safe(answer: Answer) -> list[str]:
    import torch

    total = torch.tensor([[2.0, 4.0], [0.0, 0.0], [9.0, 3.0]], requires_grad=True)
    count = torch.tensor([2.0, 0.0, 3.0])
    given = _has_shape(tensor(answer(total, count)), (3, 2))
    wanted = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
    if not bool(given.isfinite().all()):
        raise NotYet("the bin without pixels gives NaN or infinity")
    if not torch.allclose(given, wanted):
        raise NotYet("a bin with pixels must keep its true mean, and one without gets 0")
    given.sum().backward()  # type: ignore[no-untyped-call]
    if total.grad is None or not bool(total.grad.isfinite().all()):
        raise NotYet("the means are right, but the gradient of the empty bin is not finite")
    return ["the means are right, 0 where nothing is, and so are their gradients"]


#: The first puzzle: bins for a whole batch.
every_bin = puzzle(
    "bins for a whole batch",
    hints=(
        "Picture 0 may keep its numbers, 0 to most. Where do those of picture 1 begin?",
        "Add (most + 1) times the picture's number: torch.arange(n)[:, None, None] has the "
        "shape to add.",
    ),
    check=_check_bins,
)
#: The second puzzle: each pixel's own mean.
own_means = puzzle(
    "each pixel's own mean",
    hints=("An index may be a tensor of whole numbers, longer than what it indexes.",),
    check=_check_own,
)
#: The third puzzle: means of bins that may be empty.
safe_means = puzzle(
    "means, also of nothing",
    hints=("Where the count is 0 the sum is 0 too: any number but 0 will do to divide by.",),
    check=_check_safe,
)

# ---- the exercise ------------------------------------------------------------------------

_PICTURES = 2
_OF_CASES, _MANY = 8, 192
# torch.cdist has another algorithm from 26 on, with a few more operators
_FEW, _MORE = 32, 48
_UNIT_BYTES = 4 * _PICTURES * _MANY**2  # a float32 for each pair of instances
# The right answers need 4 to 7 of these at once; with a difference for each pair at least 16.
_MOST_UNITS = 12
_CLOSE = 1e-4


def _wanted(means: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The slow version: pair by pair."""
    import torch

    pictures = []
    for of_picture, here in zip(means, present, strict=True):
        found = [mean for mean, there in zip(of_picture, here, strict=True) if there]
        pushes = [
            torch.relu(FAR - (a - b).norm()).square() for a, b in itertools.combinations(found, 2)
        ]
        pictures.append(torch.stack(pushes).mean() if pushes else 0 * of_picture.sum())
    return torch.stack(pictures).mean()


def _made(k: int, *, seed: int = 0, n: int = _PICTURES) -> torch.Tensor:
    import torch

    return torch.randn((n, k, NUMBERS), generator=torch.Generator().manual_seed(seed))


def _cases() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    import torch

    every = torch.ones(_PICTURES, _OF_CASES, dtype=torch.bool)
    some, one, none = every.clone(), every.clone(), every.clone()
    some[0, [1, 4, 5]], some[1, 7] = False, False
    one[0, 1:] = False
    none[1] = False
    equal = _made(_OF_CASES, seed=3, n=3)
    equal[0, 2] = equal[0, 5]

    def cleared(means: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return torch.where(present[:, :, None], means, 0.0)

    return {
        "every instance present": (_made(_OF_CASES), every),
        "some instances absent": (cleared(_made(_OF_CASES, seed=1), some), some),
        "a picture with one instance": (cleared(_made(_OF_CASES, seed=2), one), one),
        "a picture without any": (cleared(_made(_OF_CASES, seed=2), none), none),
        # not two: who divides by 2 takes a mean that is right for the lesson's batches alone
        "three pictures, and two equal means": (equal, every[:1].expand(3, -1)),
    }


def _value(given: Any) -> torch.Tensor:
    import torch

    if given is None:
        raise NotYet("your function returns nothing yet: return a tensor")
    if not isinstance(given, torch.Tensor):
        raise NotYet(f"return one tensor, got {type(given).__name__}")
    if given.dim():
        raise NotYet(f"return one number for the batch: shape (), not {tuple(given.shape)}")
    if given.dtype != torch.float32:
        raise NotYet(f"return float32, not {given.dtype}")
    return given


def _gradient(answer: Answer, means: torch.Tensor, present: torch.Tensor) -> Any:
    """The value and its gradient."""
    import torch

    leaf = means.clone().requires_grad_()
    value = _value(answer(leaf, present.clone()))
    if not value.requires_grad:
        raise NotYet("nothing flows back to the means: the result has no gradient")
    (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return value.detach(), torch.zeros_like(leaf) if gradient is None else gradient


def _step(answer: Answer, k: int) -> Callable[[], None]:
    import torch

    means = _made(k)
    present = torch.ones(_PICTURES, k, dtype=torch.bool)

    def step() -> None:
        _gradient(answer, means, present)

    return step


def _operators(answer: Answer, k: int) -> int:
    from perfkit.course.kit.operators import count_operators

    return count_operators(_step(answer, k)).total


def _units(answer: Answer) -> float:
    """The peak of a step, in floats per pair of instances."""
    from perfkit.course.kit.rise import rise_bytes

    return rise_bytes(_step(answer, _MANY)) / _UNIT_BYTES


def _waiting(answer: Answer) -> list[str]:
    """Lines that would wait for a GPU."""
    from torch import nn

    from perfkit.synclint.find import find_syncs

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.means = nn.Parameter(_made(_OF_CASES))

        def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
            return self.means * 1, self.means.detach()[:, :, 0] < 9  # all present

    model: nn.Module = Means()

    def step() -> None:
        answer(*model()).backward()

    return [f"{line.place}: {line.op}" for line in find_syncs(step, model)]


def _show(answer: Answer) -> Message:
    means, present = _cases()["every instance present"]
    value, gradient = _gradient(answer, means, present)
    few, more = _operators(answer, _FEW), _operators(answer, _MORE)
    said = [f"operators, forward and backward: {few:,} for {_FEW} instances, {more:,} for {_MORE}"]
    if more <= few:  # a loop would take minutes
        said.append(f"peak for {_MANY} instances: {_units(answer):.1f} floats for each pair")
    return Message(
        f"The push term is {float(value):.4f}, the largest gradient {gradient.abs().max():.4f}",
        items=tuple(said),
    )


def _check(answer: Answer) -> list[str]:
    import torch

    for name, (means, present) in _cases().items():
        value, gradient = _gradient(answer, means, present)
        leaf = means.clone().requires_grad_()
        slow = _wanted(leaf, present)
        (slope,) = torch.autograd.grad(slow, leaf)
        wanted = slow.detach()
        if not torch.allclose(value, wanted, rtol=_CLOSE, atol=1e-6):
            raise NotYet(
                f"{name}: the push term is {float(wanted):.4f}, not {float(value):.4f}"
                + (f", {float(value / wanted):.3g} times as much" if wanted > 0 else "")
            )
        if not bool(gradient.isfinite().all()):
            raise NotYet(f"{name}: the value is right, but its gradient is not finite")
        if not torch.allclose(gradient, slope, rtol=1e-3, atol=1e-4 * float(slope.abs().max())):
            raise NotYet(f"{name}: the value is right, but its gradient is not")
    few, more = _operators(answer, _FEW), _operators(answer, _MORE)
    if more > few:
        raise NotYet(
            f"the values are right, but the operators grow with the instances: {few:,} for "
            f"{_FEW}, {more:,} for {_MORE}"
        )
    units = _units(answer)
    if units > _MOST_UNITS:
        raise NotYet(
            f"the values are right, but at its peak it holds {units:.0f} floats for each pair of "
            f"instances; at most {_MOST_UNITS} are allowed"
        )
    waiting = _waiting(answer)
    if waiting:
        raise NotYet(f"the values are right, but the host would wait for a GPU at {waiting[0]}")
    return [
        "values and gradients of the slow version, in five cases",
        f"{more} operators, however many instances",
        f"at its peak {units:.1f} floats for each pair",
        "no line waits",
    ]


push_apart = Exercise(
    "the push term in little memory",
    spec=(
        f"push(means, present) takes the means, float32 (n, k, {NUMBERS}), and which of them "
        "belong to an instance that is there, bool (n, k). The others are zeros.",
        "It returns one float32: for each picture the mean over its pairs of relu(FAR - gap)², 0 "
        "if there is no pair; then the mean over pictures. gap is the distance of the two means. "
        "The gradient is right and finite.",
        "The number of operators does not depend on k, and no line waits.",
        f"At its peak it holds at most {_MOST_UNITS} floats for each pair of instances.",
    ),
    hints=(
        "VectorLoss's push first makes a difference for each pair, 8 numbers, and keeps it for "
        "the backward pass. You only need the distance: one number. torch has a function for "
        "distances of all pairs.",
        "gap = torch.cdist(means, means) has the shape (n, k, k). Which of its entries are pairs "
        "of two instances that are there, each pair once?",
        "pair = (present[:, :, None] & present[:, None]).triu(1). Weigh with it instead of "
        "indexing; the number of pairs of a picture is pair.sum((1, 2)), which may be 0.",
        "each = torch.relu(FAR - gap).square() * pair; then (each.sum((1, 2)) / "
        "pair.sum((1, 2)).clamp(min=1)).mean()",
    ),
    show=_show,
    check=_check,
)
