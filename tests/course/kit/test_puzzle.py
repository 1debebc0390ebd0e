"""What the reader's function of one line returned."""

from __future__ import annotations

import pytest
import torch

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.puzzle import no_view, number, something, tensor


def test_a_number_is_passed_on_and_anything_else_is_told() -> None:
    assert number(3) == 3
    assert number(0.0) == 0
    assert something(0) == 0
    for given in (True, "3", [3]):
        with pytest.raises(NotYet, match=f"not a {type(given).__name__}"):
            number(given)
    assert tensor(torch.ones(2)).sum() == 2
    with pytest.raises(NotYet, match="return a tensor, not a list"):
        tensor([1.0])
    for take in (number, something, tensor):
        with pytest.raises(NotYet, match="replace None"):
            take(None)


def test_a_puzzle_says_what_it_has() -> None:
    puzzle = Exercise("A puzzle", hints=["think"], show=no_view, check=lambda answer: ["so"])
    assert "only .check(answer) and .hint()" in repr(puzzle.show(lambda: 1))
