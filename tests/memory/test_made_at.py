"""The lines that gave a variable its value, from the code alone."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace

import pytest

from perfkit.memory.made_at import lines_of


def _frames() -> list[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _offsets(name: str, frames: list[FrameType]) -> tuple[str, tuple[int, ...]] | None:
    found = lines_of(name, frames)
    if found is None:
        return None
    frame, lines = found
    return frame.f_code.co_name, tuple(n - frame.f_code.co_firstlineno for n in lines)


def _step(given: int) -> list[FrameType]:
    once = given + 1
    twice, kept = 1, [once]
    if given:
        twice = 2
    for each in range(2):
        kept.append(each)
    table = {}
    table["a"] = twice
    table.setdefault("b", once)
    other = [None, None]
    other[0] = table
    other[given] = twice
    thing = SimpleNamespace(part=[0, 0])
    thing.part[given] = once

    def inner() -> list[FrameType]:
        nonlocal once
        own = kept
        once = len(own)
        return _frames()

    return inner()


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("own", ("inner", (2,))),
        ("once", ("inner", (3,))),
        ("twice", ("_step", (2, 4))),
        ("each", ("_step", (5,))),
        ("given", ("_step", ())),  # an argument
        ("kept[0]", ("inner", ())),  # seen there as a variable of the outer function
        ("table['a']", ("_step", (7, 8, 9))),
        ("table['[x']", ("_step", (7, 8, 9))),
        ("other[1]", ("_step", (10, 11, 12))),
        ("thing[1]", ("_step", (13,))),  # the next line fills a part of it
        ("nowhere", None),
        ("model.fc.weight", None),
        ("optimizer.state[0]['exp_avg']", None),
    ],
)
def test_the_lines(name: str, where: tuple[str, tuple[int, ...]] | None) -> None:
    assert _offsets(name, _step(1)) == where


def test_a_list_that_is_filled() -> None:
    kept = []
    for number in range(2):
        kept.append(number)
    assert _offsets("kept[1]", _frames()) == ("test_a_list_that_is_filled", (1, 3))
