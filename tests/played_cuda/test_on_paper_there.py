"""Lesson 17 counts steps on paper, on a machine whose GPU may still be at work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from perfkit.course.lessons.lesson_17_time_or_money.predicted import least_ms, on_paper
from perfkit.trace import Recorder
from perfkit.trace.read.columns import DEVICE_CATEGORIES

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


def test_kernels_of_before_are_no_part_of_a_profile_of_the_cpu() -> None:
    """They made it one of a GPU, on which the step did nothing."""
    step = _training_step()
    matrix = torch.rand(2048, 2048, device="cuda")
    for _ in range(60):
        product = matrix @ matrix
    with Recorder() as recorder:
        for _ in range(8):
            step()
    assert not recorder.recording.trace.is_a(*DEVICE_CATEGORIES).any()
    assert product.isfinite().all()


def test_kernels_of_before_are_no_part_of_a_step_on_paper() -> None:
    matrix = torch.rand(2048, 2048, device="cuda")
    for _ in range(60):
        product = matrix @ matrix
    assert least_ms(on_paper(_training_step), ["L4"])["L4"] > 0
    assert product.isfinite().all()
