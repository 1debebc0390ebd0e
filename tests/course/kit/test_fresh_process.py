"""A function that is called in a process of its own, and one that fails there."""

from __future__ import annotations

import math
import os

import pytest

from perfkit.base.errors import MeasurementError
from perfkit.course.kit.fresh_process import in_fresh_process


@pytest.mark.slow
def test_it_returns_what_the_function_returns_elsewhere() -> None:
    assert in_fresh_process(math.hypot, 3, 4) == 5
    assert in_fresh_process(os.getpid) != os.getpid()


@pytest.mark.slow
def test_a_failure_there_is_told_with_its_end() -> None:
    with pytest.raises(MeasurementError, match=r"sqrt failed in a process .*ValueError"):
        in_fresh_process(math.sqrt, -1)
