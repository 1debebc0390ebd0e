"""What the reader's function of one line returned."""

from __future__ import annotations

import pytest
import torch

from perfkit.course.kit.exercise import NotYet
from perfkit.course.kit.puzzle import number, puzzle, something, tensor


def test_a_number_is_passed_on_and_anything_else_is_told() -> None:
    assert number(3) == 3
    assert number(0.0) == 0
    assert something(0) == 0
    for given in (True, "3", [3]):
        with pytest.raises(NotYet, match=f"got {type(given).__name__}"):
            number(given)
    assert tensor(torch.ones(2)).sum() == 2
    with pytest.raises(NotYet, match="return a tensor, got list"):
        tensor([1.0])
    for take in (number, something, tensor):
        with pytest.raises(NotYet, match="replace None"):
            take(None)


def test_a_puzzle_says_what_it_has() -> None:
    made = puzzle("A puzzle", hints=["think"], check=lambda answer: [f"{number(answer())} it is"])
    assert "only .check(answer) and .hint()" in repr(made.show(lambda: 1))
    assert "1 it is" in repr(made.check(lambda: 1))
    assert "replace None" in repr(made.check(lambda: None))
    assert "think" in repr(made.hint())
