"""A function that is called in a process of its own, and one that fails there."""

from __future__ import annotations

import math
import os

import pytest

from perfkit.base.errors import MeasurementError
from perfkit.course.kit.fresh_process import in_fresh_process


@pytest.mark.slow
def test_it_returns_what_the_function_returns_elsewhere() -> None:
    value, pid = in_fresh_process(eval, "[3 + 2, __import__('os').getpid()]")
    assert value == 5
    assert pid != os.getpid()


@pytest.mark.slow
def test_a_failure_there_is_told_with_its_end() -> None:
    with pytest.raises(MeasurementError, match=r"sqrt failed in a process .*ValueError"):
        in_fresh_process(math.sqrt, -1)
