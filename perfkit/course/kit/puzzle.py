"""A puzzle: an exercise of one line, whose answer returns a value and has no view of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn

from perfkit.course.kit.exercise import Exercise, NotYet

if TYPE_CHECKING:
    from torch import Tensor

#: What the reader writes.
Answer = Callable[..., Any]


def puzzle(
    title: str, *, hints: Sequence[str], check: Callable[[Answer], Sequence[str]]
) -> Exercise:
    """A puzzle: its title says it all, so it has no spec; ``show`` refers to the other two.

    Args:
        title: one line.
        hints: from vague to nearly the solution.
        check: as of :class:`~perfkit.course.kit.exercise.Exercise`.

    Raises:
        UsageError: hints is a single text instead of a list.
    """
    return Exercise(title, hints=hints, show=_no_view, check=check)


def _no_view(answer: Answer) -> NoReturn:
    raise NotYet("a puzzle has only .check(answer) and .hint()")


def something(given: Any) -> Any:
    """What the reader's function returned.

    Raises:
        NotYet: it returned nothing.
    """
    if given is None:
        raise NotYet("your function returns nothing yet: replace None")
    return given


def number(given: Any) -> float:
    """The number that the reader's function returned; NumPy's and fractions are numbers, too.

    Raises:
        NotYet: it returned nothing, or no number.
    """
    if isinstance(something(given), bool) or not isinstance(given, Real):
        raise NotYet(f"return a number, got {type(given).__name__}")
    return int(given) if isinstance(given, Integral) else float(given)


def tensor(given: Any) -> Tensor:
    """The tensor that the reader's function returned.

    Raises:
        NotYet: it returned nothing, or no tensor.
    """
    import torch

    if not isinstance(something(given), torch.Tensor):
        raise NotYet(f"return a tensor, got {type(given).__name__}")
    found: Tensor = given
    return found
