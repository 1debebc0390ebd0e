"""Formulas that torch has as one operator, and formulas like them that it has not."""

from __future__ import annotations

import ast
import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from perfkit.base.by_hand import by_hand

_GELU = 'F.gelu(x, approximate="tanh")'
_ONE_OPERATOR = {
    "return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * "
    "(x + 0.044715 * torch.pow(x, 3.0))))": f"return {_GELU}",
    "y = 0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))": f"y = {_GELU}",
    "y = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))": "y = F.gelu(x)",
    "y = w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))": (
        "y = w * F.rms_norm(x, x.shape[-1:], eps=self.eps)"
    ),
    "y = x / torch.sqrt(torch.mean(x ** 2, dim=-1, keepdim=True) + 1e-06)": (
        "y = F.rms_norm(x, x.shape[-1:], eps=1e-06)"
    ),
    "y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + self.eps).sqrt()"
    " * w": "y = F.layer_norm(x, x.shape[-1:], eps=self.eps) * w",
    "y = torch.log(torch.softmax(x, -1)).sum()": "y = F.log_softmax(x, dim=-1).sum()",
}
_NONE = [
    "y = x * torch.sigmoid(1.702 * x)",
    "y = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3)))",  # not quite that one
    "y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)",  # by n - 1
    "y = torch.log(torch.softmax(x, dim=1))",  # not of the last dimension
    "y = x * torch.rsqrt(variance + eps)",  # of two things
    "y = F.gelu(x)",
    "y = torch.tanh(x) + launch(torch.erf(x))",
    "if x.sqrt():",
]


@pytest.mark.parametrize("text", _ONE_OPERATOR)
def test_a_formula_is_told_as_one_operator(text: str) -> None:
    found = by_hand(text, "F")
    assert ast.unparse(ast.parse(found)) == ast.unparse(ast.parse(_ONE_OPERATOR[text]))
    names = {"x": torch.randn(3, 4, 8), "w": torch.randn(8), "self": SimpleNamespace(eps=1e-4)}
    names |= {"torch": torch, "math": math, "F": functional}
    before, after = (
        eval(one.removeprefix("return ").removeprefix("y = "), dict(names)) for one in (text, found)
    )
    assert torch.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("text", _NONE)
def test_what_torch_has_not_is_left_as_it_is(text: str) -> None:
    assert by_hand(text) == ""


def test_the_operator_has_the_name_that_the_program_knows() -> None:
    found = by_hand("y = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))")
    assert found == "y = torch.nn.functional.gelu(x)"
