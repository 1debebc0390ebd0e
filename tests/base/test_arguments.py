"""A public function's arguments are refused by name, from the first wrong value on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfkit.base.arguments import brief, check_flag, check_seconds, check_whole, shown
from perfkit.base.errors import UsageError


def _refused(check: Callable[[], None]) -> str:
    try:
        check()
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("value", "most", "said"),
    [
        (1, None, ""),
        (np.int64(2), None, ""),
        (0, None, "n is 0; give a whole number of at least 1"),
        (True, None, "n is True; give a whole number of at least 1"),
        (2.0, None, "n is 2.0; give a whole number of at least 1"),
        (5, 5, ""),
        (6, 5, "n is 6; give a whole number from 1 to 5"),
    ],
)
def test_a_whole_number(value: Any, most: int | None, said: str) -> None:
    assert _refused(lambda: check_whole("n", value, 1, most)).startswith(said)
    assert bool(_refused(lambda: check_whole("n", value, 1, most))) is bool(said)


@pytest.mark.parametrize("value", [1e-9, 3, np.float32(0.5)])
def test_a_time(value: Any) -> None:
    assert not _refused(lambda: check_seconds("limit", value))


@pytest.mark.parametrize(
    "value", [0, -1, math.inf, np.float32(math.inf), math.nan, 10**400, True, "1", None]
)
def test_what_is_no_time(value: Any) -> None:
    said = _refused(lambda: check_seconds("limit", value))
    assert said.startswith("limit is ")
    assert said.endswith("; give a positive number of seconds")


def test_true_and_false_are_also_numbers_and_numpys() -> None:
    for value in (True, 0, None, np.bool_(True)):
        assert not _refused(lambda value=value: check_flag("on", value))
    assert _refused(lambda: check_flag("on", "no")).startswith("on is 'no'; give True or False")


def test_a_value_is_shown_as_written_if_it_is_short() -> None:
    assert shown(None) == "None"
    assert shown([1]) == "a list"
    assert shown("x" * 58) == f"'{'x' * 58}'"
    assert shown("x" * 59) == f"'{'x' * 59}…"


def test_a_repr_is_brief_and_raises_nothing() -> None:
    class Half:
        def __repr__(self) -> str:
            return self.missing

    assert brief(Half()) == "a Half"
    assert brief(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert brief("x" * 99) == f"'{'x' * 79}"
