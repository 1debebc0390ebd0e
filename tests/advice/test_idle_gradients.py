"""Gradients of weights that no optimizer has are told, with the modules that hold them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import perfkit


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
        self.head = nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.backbone(x))
        return y


def _train(how: str) -> None:
    model, teacher = _Classifier(), nn.Linear(64, 4)
    others = [*model.backbone.parameters(), *teacher.parameters()]
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    late = torch.optim.SGD(others if how == "late" else model.head.parameters(), lr=0.1)
    if how == "frozen":
        model.backbone.requires_grad_(False)
        teacher.requires_grad_(False)
    for _ in range(12):
        x = torch.randn(16, 64)
        loss = (model(x) - teacher(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if how == "by hand":
            for p in others:
                p.data -= 0.1 * p.grad
    late.step()


@pytest.mark.parametrize("how", ["forgotten", "frozen", "late", "by hand"])
def test_weights_that_no_optimizer_has(how: str) -> None:
    with perfkit.profile(lines=False) as prof:
        _train(how)
    found = {f.rule: f for f in prof.result.diagnosis.findings}
    assert ("idle-gradients" in found) is (how == "forgotten")
    if how == "forgotten":
        assert found["idle-gradients"].what_to_do.splitlines()[1:] == [
            "model.backbone.requires_grad_(False)",
            "teacher.requires_grad_(False)",
        ]
