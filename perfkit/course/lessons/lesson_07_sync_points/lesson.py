"""Lesson 07: masks, the network of the published figure, and the exercise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.published import (
    ABSENT,
    CLASSES,
    IGNORE,
    PUBLISHED,
    Published,
    masks,
    published_network,
    published_step,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from perfkit.synclint.find import SyncLines

__all__ = [
    "CLASSES",
    "IGNORE",
    "PUBLISHED",
    "Published",
    "crossover",
    "masks",
    "published_network",
    "published_step",
    "score_classes",
]


def crossover(densities: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The density at which a ratio passes 1, interpolated on a log scale.

    The ratio rises with the density. If noise breaks that, neighbours are replaced by their mean
    (of the logarithms) until it rises, so one outlier moves the point little.

    Args:
        densities: ascending, positive.
        ratios: time of compacting ÷ time of ``ignore_index`` at each; positive.

    Returns:
        The density; None if all ratios are on one side of 1.
    """
    rising = _rising([math.log(ratio) for ratio in ratios])
    points = zip(densities, rising, strict=True)
    for (d0, r0), (d1, r1) in itertools.pairwise(points):
        if r0 <= 0 < r1:
            return math.exp(math.log(d0) - r0 / (r1 - r0) * (math.log(d1) - math.log(d0)))
    return None


def _rising(values: Sequence[float]) -> list[float]:
    """The rising sequence closest to these values in least squares: pool adjacent violators."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [statistics.fmean(pool) for pool in pools for _ in pool]


# ---- the exercise ------------------------------------------------------------------------

Answer = Callable[..., Any]
_SIDE = 12


def _network() -> nn.Module:
    """Passes its inputs on, so that mask and scores both count as being on the device."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Conv2d(3, CLASSES, 1)

        def forward(
            self, pictures: torch.Tensor, target: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layer(pictures), target

    return Network()


def _wanted(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Correct pixels ÷ pixels, class by class; NaN for an absent class."""
    import torch

    predicted = logits.argmax(1)
    found = [
        (predicted[target == c] == c).float().mean()  # NaN for no pixels
        for c in range(CLASSES)
    ]
    return torch.stack(found)


def _cases() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    import torch

    torch.manual_seed(1)
    pictures = torch.randn(2, 3, _SIDE, _SIDE)
    one_class = torch.full((2, _SIDE, _SIDE), 3)
    every = torch.arange(2 * _SIDE * _SIDE).view(2, _SIDE, _SIDE) % CLASSES
    return {
        "a mask in which the last class is absent": (pictures, masks(2, _SIDE, 0.6, seed=2)),
        "a mask in which every class occurs": (pictures, every),
        "a mask of one class": (pictures, one_class),
        "a mask of which nothing is labelled": (pictures, torch.full_like(one_class, IGNORE)),
        "one picture": (pictures[:1], masks(1, _SIDE, 0.3, seed=3)),
    }


def _ran(answer: Answer) -> tuple[Any, SyncLines]:
    import torch

    from perfkit.synclint.find import find_syncs

    network = _network()
    pictures, target = _cases()["a mask in which the last class is absent"]
    made: list[Any] = []

    def step() -> None:
        with torch.no_grad():
            made.append(answer(*network(pictures, target)))

    found = find_syncs(step, network)
    return made[0], found


def _result(given: Any) -> torch.Tensor:
    import torch

    if given is None:
        raise NotYet("your function returns nothing yet: return a tensor")
    if not isinstance(given, torch.Tensor):
        raise NotYet(
            f"return one tensor, got {type(given).__name__}: for a Python number "
            "the host has already waited"
        )
    if tuple(given.shape) != (CLASSES,):
        raise NotYet(
            f"return one number a class: shape ({CLASSES},), not {tuple(given.shape)}; the number "
            "of classes is known before you look"
        )
    if given.dtype != torch.float32:
        raise NotYet(f"an accuracy is a share, from 0 to 1: float32, not {given.dtype}")
    return given


def _show(answer: Answer) -> Message:
    given, found = _ran(answer)
    said = [f"{one.place}: {one.op}" for one in found]
    if given is None and not said:
        raise NotYet("your function returns nothing yet: return a tensor")
    value = " ".join(f"{v:.2f}" for v in given.tolist()) if _is_right_shape(given) else repr(given)
    return Message(
        f"Lines that wait: {len(said)}",
        items=(*said, f"for a mask without class {ABSENT} it returns {value:.200}"),
    )


def _is_right_shape(given: Any) -> bool:
    try:
        _result(given)
    except NotYet:
        return False
    return True


def _check(answer: Answer) -> list[str]:
    import torch

    given, found = _ran(answer)
    _result(given)
    network = _network()
    for name, (pictures, target) in _cases().items():
        with torch.no_grad():
            logits, _ = network(pictures, target)
            before = target.clone()
            result = _result(answer(logits, target))
        if not torch.equal(target, before):
            raise NotYet("your function changes the mask that it was given: work on a copy")
        wanted = _wanted(logits, target)
        if not torch.allclose(result.float(), wanted, atol=1e-5, equal_nan=True):
            differs = ~torch.isclose(result.float(), wanted, atol=1e-5, equal_nan=True)
            c = int(differs.nonzero()[0])
            raise NotYet(
                f"for {name}, class {c} has an accuracy of {_said(wanted[c])}, not "
                f"{_said(result[c])}"
            )
    if found:
        first = found[0]
        rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise NotYet(
            f"the values are right, but the host would wait for a GPU at {first.place}: "
            f"{first.op}{rest}"
        )
    return [
        "no line waits for the device",
        "the same accuracies as the slow version, on five masks",
        "an absent class is NaN, and unlabelled pixels do not count",
    ]


def _said(value: torch.Tensor) -> str:
    number = float(value)
    return "NaN (it does not occur)" if math.isnan(number) else f"{number:.3g}"


score_classes = Exercise(
    "the accuracy of each class, without a wait",
    spec=(
        f"class_accuracy(logits, target) takes logits (n, {CLASSES}, height, width) and a mask "
        f"(n, height, width) of classes, in which {IGNORE} marks pixels that are not labelled.",
        f"It returns a float32 tensor of {CLASSES}: for each class the share of its pixels that "
        "argmax gets right; NaN for a class that the mask does not hold.",
        "None of its lines makes the host wait.",
    ),
    hints=(
        "The slow version asks which classes there are. You know: 0 to CLASSES - 1. What you "
        "need of each are two sums: how many pixels, and how many of them are right.",
        "right = (logits.argmax(1) == target) is a mask of the full size, with no index in it. "
        "zeros.scatter_add(0, bins, values) adds each value to the sum of its bin, as in "
        "MaskedLoss's rewrite.",
        "255 is no bin: give what is not labelled a bin of its own, the last one, with "
        "bins = target.clamp(max=CLASSES).flatten(), and cut it off with [:CLASSES].",
        "zeros = torch.zeros(CLASSES + 1, device=target.device); hits = zeros.scatter_add(0, "
        "bins, right.flatten().float()), the pixels likewise with torch.ones_like. 0 / 0 is NaN, "
        "just as wanted: return hits[:CLASSES] / pixels[:CLASSES].",
    ),
    show=_show,
    check=_check,
)
