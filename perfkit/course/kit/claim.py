"""``claim("A9")`` in a lesson: the claim, its criterion, and what a cell says about it."""

from __future__ import annotations

from perfkit.base.errors import UsageError
from perfkit.course.kit._recorded import recorded_folders
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import criteria
from perfkit.course.ledger.records import read_records
from perfkit.course.ledger.settle import LessonClaim, is_recorded


def claim(name: str, *, lesson: str = "") -> LessonClaim:
    """A claim as a lesson tests it: show it, or ``settle`` it with what you measured.

    Args:
        name: the claim's id, e.g. ``"A9"``.
        lesson: two digits, if several lessons test the claim; by default the first of them.

    Raises:
        UsageError: the claim is not in the ledger, or no lesson has a criterion for it.

    Example:
        >>> claim("E1").criterion.lesson
        '07-sync-points'
    """
    known = claims().get(name)
    if known is None:
        raise UsageError(f"no claim {name!r}; `perfkit claims` lists all")
    found = criteria(claims=[name], lessons=[lesson] if lesson else None)
    if not found:
        where = f"lesson {lesson}" if lesson else "the lessons"
        raise UsageError(f"no cell of {where} settles claim {name}")
    chosen = min(found, key=lambda one: (one.number != known.lessons[0], one.number))
    records = read_records(recorded_folders()).of(name)
    beside = tuple(one for one in records if one.number == chosen.number)
    return LessonClaim(known, chosen, beside)


def recorded(*claims: str) -> bool:
    """Whether ``perfkit record`` runs this cell for one of these claims.

    A measurement that takes longer than a reader waits comes after this question in the lesson,
    and runs only for the record. To run it yourself, take the ``if`` away.

    Args:
        claims: ids, e.g. ``"A5"``.
    """
    return is_recorded(claims)
