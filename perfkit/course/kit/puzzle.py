"""A puzzle: an exercise of one line, whose answer returns a value and has no view of its own."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn

from perfkit.course.kit.exercise import NotYet

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["no_view", "number", "something", "tensor"]


def no_view(answer: Callable[..., Any]) -> NoReturn:
    """The ``show`` of a puzzle.

    Raises:
        NotYet: always.
    """
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
        raise NotYet(f"return a number, not a {type(given).__name__}")
    return int(given) if isinstance(given, Integral) else float(given)


def tensor(given: Any) -> Tensor:
    """The tensor that the reader's function returned.

    Raises:
        NotYet: it returned nothing, or no tensor.
    """
    import torch

    if not isinstance(something(given), torch.Tensor):
        raise NotYet(f"return a tensor, not a {type(given).__name__}")
    found: Tensor = given
    return found
