"""When a claim holds: one function per claim and lesson, which judges what a lesson measured.

A lesson's criteria are in ``perfkit/course/lessons/lesson_NN_slug/criteria.py``::

    @criterion(
        "A9",
        lesson="06-host-to-device",
        title="bytes of a batch, uint8 against float32",
        holds_if="a batch takes fewer bytes as uint8",
    )
    def small_batches(as_float: int, as_uint8: int) -> Outcome:
        ...
        return Outcome(
            holds=as_uint8 < as_float,
            figures={"bytes_ratio": Figure.exact(as_float / as_uint8, "×")},
            headline="bytes_ratio",
            sentence="A batch of uint8 images with uint8 masks is a fifth of the float32 one.",
        )

A cell of the lesson's notebook measures, and ``claim("A9").settle(167772160, 33554432)`` calls the
function. Where the evidence is too thin to say either way, the outcome's ``holds`` is ``None``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perfkit.base.errors import UsageError
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.recording import Outcome, lesson_number

_LESSONS = "perfkit.course.lessons"
#: An interval that includes 1 and stays within this share of it shows that there is no gain worth
#: naming; a wider one decides nothing.
_ALIKE = 0.1


@dataclass(frozen=True)
class Criterion:
    """When a claim holds, as one lesson tests it.

    Attributes:
        claim: id of the ledger's row, e.g. ``"A9"``.
        lesson: the lesson's slug, e.g. ``"06-host-to-device"``.
        title: what is measured, in one line.
        holds_if: the criterion in words; reads on from "holds if".
        judge: takes what the lesson measured, returns an :class:`Outcome`.
    """

    claim: str
    lesson: str
    title: str
    holds_if: str
    judge: Callable[..., Any] = field(repr=False)

    @property
    def number(self) -> str:
        """The lesson's two digits."""
        return lesson_number(self.lesson)


_Judge = TypeVar("_Judge", bound=Callable[..., Outcome])

# by claim and lesson: two lessons may test different sides of one claim
_REGISTRY: dict[tuple[str, str], Criterion] = {}


def criterion(claim: str, *, lesson: str, title: str, holds_if: str) -> Callable[[_Judge], _Judge]:
    """Decorator: register a function that judges a claim; returns it unchanged.

    Raises:
        UsageError: the claim or lesson is unknown, a text is empty, or this lesson already has a
            criterion for it.
    """
    if claim not in claims():
        raise UsageError(f"no claim {claim!r}; `perfkit claims` lists all")
    number = lesson_number(lesson)
    if not title.strip() or not holds_if.strip():
        raise UsageError(f"the criterion of {claim} needs a title and holds_if")

    def register(judge: _Judge) -> _Judge:
        known = _REGISTRY.get((claim, number))
        place = f"{judge.__module__}.{judge.__qualname__}"
        if known is not None:
            before = f"{known.judge.__module__}.{known.judge.__qualname__}"
            if before != place:
                raise UsageError(
                    f"lesson {number} has two criteria for {claim}: {before} and {place}; keep one"
                )
        _REGISTRY[claim, number] = Criterion(claim, lesson, title, holds_if, judge)
        return judge

    return register


def criteria(
    *, claims: Iterable[str] | None = None, lessons: Iterable[str] | None = None
) -> list[Criterion]:
    """The criteria of all lessons, ordered by lesson and claim.

    Args:
        claims: only those for these ids.
        lessons: only those of these lessons, each as ``"06"`` or ``"06-host-to-device"``.

    Raises:
        UsageError: a lesson is invalid.
    """
    _discover()
    wanted = None if claims is None else set(claims)
    numbers = None if lessons is None else {lesson_number(lesson) for lesson in lessons}
    found = [
        one
        for one in _REGISTRY.values()
        if (wanted is None or one.claim in wanted) and (numbers is None or one.number in numbers)
    ]
    return sorted(found, key=lambda one: (one.number, one.claim[0], int(one.claim[1:])))


@functools.cache
def _discover() -> None:
    """Import the criteria of every lesson that has some; they need torch and numpy at most."""
    package = importlib.import_module(_LESSONS)
    for found in pkgutil.iter_modules(package.__path__, f"{_LESSONS}."):
        inside = importlib.import_module(found.name)
        if any(one.name == "criteria" for one in pkgutil.iter_modules(inside.__path__)):
            importlib.import_module(f"{found.name}.criteria")


def faster(comparison: Any) -> bool | None:
    """Whether the second version is faster; ``None`` if the comparison is too unsteady to tell.

    Args:
        comparison: has ``low`` and ``high``, the 95 % interval of a ratio, as the results of
            ``perfkit.compare`` and a :class:`~perfkit.course.ledger.recording.Figure` have.

    Returns:
        True if the whole interval is above 1, False if it is below 1 or within a tenth of it.
    """
    low, high = comparison.low, comparison.high
    if low is None or high is None:
        return None
    if low > 1:
        return True
    if high < 1 or (low >= 1 / (1 + _ALIKE) and high <= 1 + _ALIKE):
        return False
    return None


def all_of(*parts: bool | None) -> bool | None:
    """Whether all parts of a criterion are met; ``None`` if that hangs on one that is open."""
    if any(part is not None and not part for part in parts):
        return False
    return None if any(part is None for part in parts) else True
