"""A matrix function that a step computes again at each use of a weight."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import perfkit


def test_a_parametrization_at_each_use_is_named_with_its_cure() -> None:
    layer = parametrizations.orthogonal(nn.Linear(48, 48, bias=False))
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def step() -> None:
        h = torch.randn(4, 48)
        for _ in range(12):
            h = layer(h)
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def step_once() -> None:
        with parametrize.cached():
            step()

    found = perfkit.profile(step, lines=False).diagnosis.findings
    (first,) = (f for f in found if f.rule == "matrix-functions")
    assert "24 times a step" in first.title  # forward and backward
    assert "parametrize.cached()" in first.what_to_do
    cured = perfkit.profile(step_once, lines=False).diagnosis.findings
    assert "matrix-functions" not in {f.rule for f in cured}
