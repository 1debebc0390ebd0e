"""Work that a step does in a dear way: a matrix function at each use, attention unfused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import perfkit
from perfkit.advice.findings import Finding


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


class _ValuesLast(nn.Module):
    """As in much teaching code: the values are made after the softmax."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.qk, self.value = fused, nn.Linear(32, 64), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.qk(x).chunk(2, -1)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, self.value(x))
        weights = (q @ k.transpose(-2, -1) / 5.7).softmax(-1)
        y: torch.Tensor = weights @ self.value(x)
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


@pytest.mark.parametrize("kind", [_Own, _OfTorch, _ValuesLast])
def test_attention_that_is_not_fused_is_named_with_its_cure(kind: type[nn.Module]) -> None:
    cure = _said_of(kind(False))["own-attention"]
    assert "scaled_dot_product_attention" in cure
    assert "need_weights=False" in cure
    assert "own-attention" not in _said_of(kind(True))


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.weights = nn.Linear(32, 8), nn.Parameter(torch.rand(4, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ self.weights
        y: torch.Tensor = (h * self.router(h).softmax(-1)[..., :1]) @ self.weights
        return y


def test_a_router_of_experts_is_no_attention() -> None:
    """As in a trace of Switch Transformers: 36 % were told of attention, and it took 3 %."""
    assert "own-attention" not in _said_of(_Experts())


def test_the_fused_call_that_torch_does_not_fuse_is_not_told_to_be_made() -> None:
    said = _said_of(_Own(True, dropout=0.1))
    assert "own-attention" not in said
    assert "sdpa_kernel" in said["attention-falls-back"]


def _in_a_loop(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = []
    for i in range(16):
        (row,) = torch.autograd.grad(y[:, i].sum(), x, create_graph=True)
        rows.append(row)
    return torch.stack(rows, 1)


def _slope(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def _by_a_helper(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([_slope(y[:, i], x) for i in range(16)], 1)


def _by_unit_vectors(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = []
    for i in range(16):
        unit = torch.zeros_like(y)
        unit[:, i] = 1.0
        rows.append(torch.autograd.grad(y, x, unit, create_graph=True)[0])
    return torch.stack(rows, 1)


def _by_backward(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = []
    for row in y.sum(0):
        x.grad = None
        row.backward(retain_graph=True)
        rows.append(x.grad)
    return y.sum() * torch.stack([row for row in rows if row is not None]).sum()


def _at_once(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    each = y.sum(0)
    eye = torch.eye(len(each))
    return torch.autograd.grad(each, x, eye, create_graph=True, is_grads_batched=True)[0]


def _of_a_pde(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    slopes = [_slope(y[:, i], x) for i in range(3)]
    return sum((_slope(s[:, 0], x).square() for s in slopes), start=y.square())


def _one_by_another(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    slope, direction = _slope(y.square().sum(), x), torch.ones_like(x)
    for _ in range(12):  # as of conjugate gradients: each needs the one before
        (product,) = torch.autograd.grad(slope, x, direction, retain_graph=True)
        direction = product / product.norm()
    return y * direction.sum()


def _by_parts(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):  # each with a graph of its own
        (_slope(x.pow(3), x) - x).square().sum().backward()
    return y


def _differentiated(by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, Finding]:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def step() -> None:
        x = torch.randn(8, 16, requires_grad=True)
        by(model(x), x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    # long enough for a busy machine to look at its lines
    found = perfkit.profile(step, repeat=250).diagnosis.findings
    return {f.rule: f for f in found}


@pytest.mark.parametrize("by", [_in_a_loop, _by_a_helper, _by_unit_vectors, _by_backward])
def test_rows_of_a_jacobian_one_by_one_are_named_with_the_code_for_all(
    by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    found = _differentiated(by)
    told = found["backward-by-row"]
    assert {"tiny-ops", "small-calls"}.isdisjoint(found)  # they are its own
    assert "17 times a step" in told.title  # and the loss's own
    assert "test_matrix_functions.py" in (told.line or "")


def test_the_code_for_all_rows_at_once_gives_the_same_rows() -> None:
    told = _differentiated(_in_a_loop)["backward-by-row"]
    x = torch.randn(8, 16, requires_grad=True)
    names = {"torch": torch, "x": x, "y": nn.Linear(16, 16)(x).tanh()}
    exec(told.what_to_do, names)
    rows = torch.stack(names["rows"], 1)  # type: ignore[arg-type]
    torch.testing.assert_close(rows, _in_a_loop(names["y"], x))
    assert rows.requires_grad  # it can be trained on
    assert told.gain_at_most > 1.3


@pytest.mark.parametrize("by", [_at_once, _of_a_pde, _one_by_another, _by_parts])
def test_passes_that_are_batched_few_or_of_other_graphs_are_no_finding(
    by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    assert "backward-by-row" not in _differentiated(by)
