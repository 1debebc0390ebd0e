"""Figures and outcomes: what settles a claim (:mod:`perfkit.course.ledger.criteria`)."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from perfkit.base.errors import UsageError

FigureKind = Literal["exact", "measured", "predicted", "simulated"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_LESSON = re.compile(r"([0-9]{2})(-[a-z0-9-]+)?")


@dataclass(frozen=True)
class Figure:
    """One number of a record.

    Attributes:
        value: the number; if measured, a median or a ratio of medians.
        unit: its unit: ``"×"``, ``"B"``, ``"ms"``, ``"GB/s"``, ``"1"`` for a plain number …
        low, high: its 95 % interval; both ``None`` if there is none, as for an exact count.
        kind: ``"exact"`` for figures that do not depend on a clock (bytes, counts), ``"measured"``,
            ``"predicted"``, or ``"simulated"``, also if a sleep sets the outcome of a measurement.

    Raises:
        UsageError: a value is not a finite number, one end of the interval is missing or they are
            swapped, the unit is empty, or the kind is unknown.
    """

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    kind: FigureKind = "measured"

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if name == "value" or number is not None:
                object.__setattr__(self, name, _plain(number))
        ends = [end for end in (self.low, self.high) if end is not None]
        if not self.unit.strip():
            raise UsageError('a figure needs a unit; a plain number has the unit "1"')
        if len(ends) == 1 or (len(ends) == 2 and ends[0] > ends[1]):
            raise UsageError(f"an interval goes from low to high, not {self.low} to {self.high}")
        if self.kind not in get_args(FigureKind):
            kinds = ", ".join(get_args(FigureKind))
            raise UsageError(f"a figure cannot be {self.kind!r}; it is one of: {kinds}")

    @classmethod
    def exact(cls, value: float, unit: str = "1") -> Figure:
        """A figure that does not depend on a clock; by default a plain number.

        Raises:
            UsageError: as of the class.
        """
        return cls(value, unit, kind="exact")

    @classmethod
    def of(cls, comparison: Any, *, kind: FigureKind = "measured") -> Figure:
        """The ratio of a ``perfkit.compare`` or ``perfkit.ab`` result, with its interval.

        Args:
            comparison: has ``ratio``, ``low`` and ``high``.
            kind: ``"simulated"`` if a sleep, rather than work, sets how long an arm takes.

        Raises:
            UsageError: it has none of these, or its ratio is not a finite number.
        """
        try:
            value, low, high = (float(getattr(comparison, a)) for a in ("ratio", "low", "high"))
        except (AttributeError, TypeError, ValueError):
            name = type(comparison).__name__
            raise UsageError(f"a {name} has no ratio with an interval to take") from None
        if not (math.isfinite(low) and math.isfinite(high)):  # one block gives no interval
            return cls(value, "×", kind=kind)
        return cls(value, "×", low, high, kind)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return {
            "value": self.value,
            "unit": self.unit,
            "low": self.low,
            "high": self.high,
            "kind": self.kind,
        }


@dataclass(frozen=True)
class Outcome:
    """What was found for a claim on this machine.

    Attributes:
        holds: whether the claim's direction holds here; ``None`` if the evidence is too thin to
            say, which no record holds.
        figures: by short name (lower case, digits and ``_``), e.g. ``"bytes_ratio"``.
        headline: the name of the figure that the ledger shows.
        sentence: one sentence of plain text.

    Raises:
        UsageError: a name is invalid, the headline names no figure, or the sentence is empty or has
            several lines.
    """

    holds: bool | None
    figures: Mapping[str, Figure]
    headline: str
    sentence: str

    def __post_init__(self) -> None:
        for name, figure in self.figures.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise UsageError(
                    f"a figure cannot be called {name!r}: take lower case, digits and _, "
                    "as in 'bytes_ratio'"
                )
            if not isinstance(figure, Figure):
                raise UsageError(f"figure {name!r} is a {type(figure).__name__}, not a Figure")
        if self.headline not in self.figures:
            names = ", ".join(self.figures) or "none"
            raise UsageError(f"the headline {self.headline!r} is not a figure; there are: {names}")
        if not self.sentence.strip() or "\n" in self.sentence.strip():
            raise UsageError(f"an outcome has one sentence on one line, not {self.sentence!r}")
        if self.holds is not None:
            object.__setattr__(self, "holds", bool(self.holds))  # numpy's bool is no JSON
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; :meth:`from_dict` reads it back."""
        return {
            "holds": self.holds,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "headline": self.headline,
            "sentence": self.sentence,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UsageError: it is no outcome.
            KeyError, TypeError: a part of it is missing or unknown.
        """
        figures = {name: Figure(**values) for name, values in data["figures"].items()}
        return cls(data["holds"], figures, data["headline"], data["sentence"])


def lesson_number(lesson: str) -> str:
    """``"06"`` of ``"06-host-to-device"``.

    Raises:
        UsageError: it does not start with the two digits of a lesson.
    """
    found = _LESSON.fullmatch(lesson)
    if found is None:
        raise UsageError(f"no lesson {lesson!r}; one looks like 06 or 06-host-to-device")
    return found[1]


def _plain(number: Any) -> float:
    """The number as a Python int or float, also from numpy, so that JSON can hold it."""
    good = isinstance(number, numbers.Real) and not isinstance(number, bool)
    try:
        good = good and math.isfinite(float(number))
    except OverflowError:  # a whole number that no float can hold
        good = False
    if not good:
        raise UsageError(f"a figure must be a finite number, not {number!r}")
    return int(number) if isinstance(number, numbers.Integral) else float(number)
