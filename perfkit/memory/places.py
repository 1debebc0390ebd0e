"""Where the memory of the peak was made: by module, by source line, by line of one function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.base.plain import fields
from perfkit.base.source import statement
from perfkit.base.user_code import where
from perfkit.memory.categories import OTHER, by_name
from perfkit.memory.ledger import Totals

#: What an allocator's total holds beside tensors: workspaces, rounding, other threads' work.
NOT_TENSORS = "(not in tensors that were seen)"


@dataclass(frozen=True)
class ModuleMemory:
    """What one module, without its children, had of the peak.

    Activations and temporaries belong to the module in which they were made, gradients and
    optimizer state to that of their parameter, where they are of one module alone.

    Attributes:
        path: ``model.layer3.0.conv1``; in brackets where there is no module.
        nbytes: alive at the peak, in bytes.
        by_category: the same by category.
        n_storages: how many storages that were.
    """

    path: str
    nbytes: int
    by_category: Mapping[str, int]
    n_storages: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, by_category=_without_zeros(self.by_category))


@dataclass(frozen=True)
class LineMemory:
    """What was alive at the peak and made by one line of user code (or by what it called).

    Attributes:
        file: the file name under which Python knows the code; empty where there is no line.
        line: its number.
        where: how to name it to a person: ``cell [3], line 7`` or ``train.py:12``; in brackets
            why there is no line.
        function: the function that contains it.
        text: the source line, stripped; empty where it cannot be found.
        nbytes: alive at the peak, in bytes.
        by_category: the same by category.
        n_storages: how many storages that were.
    """

    file: str
    line: int
    where: str
    function: str
    text: str
    nbytes: int
    by_category: Mapping[str, int]
    n_storages: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, by_category=_without_zeros(self.by_category))


@dataclass(frozen=True)
class FunctionLine:
    """One line of a watched function, with what it called. Sizes in bytes.

    Attributes:
        file, line, function, text: the line.
        highest_bytes: the device's highest total when this line made a tensor.
        made_bytes: all that it made, freed or not.
        at_peak_bytes: what of that was alive at the region's peak.
        at_end_bytes: what of that was alive at the region's end.
        n_made: how many storages it made.
    """

    file: str
    line: int
    function: str
    text: str
    highest_bytes: int
    made_bytes: int
    at_peak_bytes: int
    at_end_bytes: int
    n_made: int


def by_module(totals: Totals, not_tensors_bytes: int = 0) -> tuple[ModuleMemory, ...]:
    """The peak by module, most bytes first; adds up to it exactly."""
    found = [
        ModuleMemory(path, stay.total_bytes, by_name(stay.by_category), stay.n_blocks)
        for path, stay in totals.by_owner.items()
    ]
    if not_tensors_bytes:
        rest = by_name({OTHER: not_tensors_bytes})
        found.append(ModuleMemory(NOT_TENSORS, not_tensors_bytes, rest, 0))
    return tuple(sorted(found, key=lambda m: -m.nbytes))


def by_line(totals: Totals, not_tensors_bytes: int = 0) -> tuple[LineMemory, ...]:
    """The peak by source line, most bytes first; adds up to it exactly."""
    found = [
        LineMemory(
            file=file,
            line=line,
            where=where(file, line) if file else function,
            function=function if file else "",
            text=source_of(file, line),
            nbytes=stay.total_bytes,
            by_category=by_name(stay.by_category),
            n_storages=stay.n_blocks,
        )
        for (file, line, function), stay in totals.by_line.items()
    ]
    if not_tensors_bytes:
        rest = by_name({OTHER: not_tensors_bytes})
        found.append(LineMemory("", 0, NOT_TENSORS, "", "", not_tensors_bytes, rest, 0))
    return tuple(sorted(found, key=lambda x: -x.nbytes))


def function_lines(totals: Totals) -> tuple[FunctionLine, ...]:
    """The lines of the watched functions that made tensors, in the order of the source."""
    return tuple(
        FunctionLine(
            file=place[0],
            line=place[1],
            function=place[2],
            text=source_of(place[0], place[1]),
            highest_bytes=seen.highest_bytes,
            made_bytes=seen.made_bytes,
            at_peak_bytes=totals.watched_at_peak.get(place, 0),
            at_end_bytes=totals.watched_at_end.get(place, 0),
            n_made=seen.n_made,
        )
        for place, seen in sorted(totals.watched.items())
    )


def source_of(place_file: str, line: int) -> str:
    """What a source line says (see :mod:`perfkit.base.source`); empty without a source."""
    return statement(place_file, line) if place_file else ""


def _without_zeros(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: nbytes for name, nbytes in parts.items() if nbytes}
