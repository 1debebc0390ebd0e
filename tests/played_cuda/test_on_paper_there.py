"""Lesson 17 counts steps on paper, on a machine whose GPU may still be at work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perfkit.course.lessons.lesson_17_time_or_money.predicted import least_ms, on_paper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def _training_step() -> Callable[[], None]:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


def test_kernels_of_before_are_no_part_of_a_step_on_paper() -> None:
    matrix = torch.rand(2048, 2048, device="cuda")
    for _ in range(60):
        product = matrix @ matrix
    assert least_ms(on_paper(_training_step), ["L4"])["L4"] > 0
    assert product.isfinite().all()
