"""Work that a step does in a dear way: a matrix function at each use, attention unfused."""

from __future__ import annotations

import pytest
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


class _Own(nn.Module):
    def __init__(self, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.fused, self.dropout, self.qkv = fused, dropout, nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(4, 256, 3, 2, 16).permute(2, 0, 3, 1, 4)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        weights = (q @ k.transpose(-2, -1) / 4.0).softmax(-1)
        return weights @ v


class _OfTorch(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.attention = fused, nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.attention(x, x, x, need_weights=not self.fused)[0]
        return y


def _said_of(model: nn.Module) -> dict[str, str]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(4, 256, 32)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    findings = perfkit.profile(step, lines=False).diagnosis.findings
    return {f.rule: f.what_to_do for f in findings}


@pytest.mark.parametrize("kind", [_Own, _OfTorch])
def test_attention_that_is_not_fused_is_named_with_its_cure(kind: type[nn.Module]) -> None:
    cure = _said_of(kind(False))["own-attention"]
    assert "scaled_dot_product_attention" in cure
    assert "need_weights=False" in cure
    assert "own-attention" not in _said_of(kind(True))


def test_the_fused_call_that_torch_does_not_fuse_is_not_told_to_be_made() -> None:
    said = _said_of(_Own(True, dropout=0.1))
    assert "own-attention" not in said
    assert "sdpa_kernel" in said["attention-falls-back"]
