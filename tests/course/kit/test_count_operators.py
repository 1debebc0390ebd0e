"""Operators are counted as they reach a device, backward passes included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.base import torch_compat as compat
from perfkit.base.errors import MeasurementError, UsageError
from perfkit.course.kit.collectives import count_collectives
from perfkit.course.kit.formats import count_formats
from perfkit.course.kit.operators import count_operators


def test_what_computes_counts_and_views_do_not() -> None:
    x = torch.rand(4, 2)
    found = count_operators(lambda: x.view(8).add(1).mul(2).reshape(4, 2).t())
    assert found.total == 2
    assert dict(found.by_name) == {"aten::add": 1, "aten::mul": 1}
    assert count_operators(lambda: torch.empty(3)).total == 0
    assert count_operators(lambda: None).total == 0


def test_a_backward_pass_has_operators_of_its_own() -> None:
    x = torch.rand(4, requires_grad=True)
    forward = count_operators(lambda: (x * x).sum())
    both = count_operators(lambda: torch.autograd.grad((x * x).sum(), x))
    assert both.total > forward.total == 2
    assert both.by_name["aten::mul"] > forward.by_name["aten::mul"] == 1


def test_names_are_sorted_by_how_often_they_are_called() -> None:
    x = torch.rand(4)
    found = count_operators(lambda: (x + 1 + 2 + 3) * 2)
    assert list(found.by_name) == ["aten::add", "aten::mul"]
    assert found.by_name["aten::add"] == 3


def test_what_the_step_raises_is_raised_and_nothing_goes_on_counting() -> None:
    def broken() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        count_operators(broken)
    with pytest.raises(UsageError, match="step is 3"):
        count_operators(3)  # type: ignore[arg-type]
    assert count_operators(lambda: torch.rand(2) + 1).total == 2


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [count_operators, count_formats, count_collectives])
def test_a_count_that_is_not_of_all_operators_is_none(count: Callable[[Any], object]) -> None:
    mode = _Mode()
    mode.__enter__()
    with pytest.raises(MeasurementError, match="not all operators were seen"):
        count(lambda: mode.__exit__(None, None, None))


@pytest.mark.parametrize("count", [count_operators, count_formats, count_collectives])
def test_a_mode_that_the_step_leaves_on_stays_on(count: Callable[[Any], object]) -> None:
    mode = _Mode()
    count(mode.__enter__)
    assert compat.dispatch_mode_is_active(mode)
    assert torch._C._len_torch_dispatch_stack() == 1
    mode.__exit__(None, None, None)
