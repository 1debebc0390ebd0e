"""Everything the catalogue's snippets need to run, on any device."""

from __future__ import annotations

import io
import linecache
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that the snippets use
from torch import nn


def namespace(device: str = "cpu") -> dict[str, Any]:
    """Names that are on the device, made from a model's output."""
    torch.manual_seed(0)
    with torch.device(device):
        net = nn.Linear(3, 5)
        x = net(torch.randn(4, 3))
        target = torch.tensor([0, 2, 5, 1]) + (x[:, 0] * 0).long()
        paths = torch.randn(6, 2, 5).log_softmax(-1) + x.mean()
        repeats = target * 0 + 2
        return {
            "F": F,
            "io": io,
            "label_lengths": repeats[:2],
            "labels": torch.tensor([[1, 2], [3, 1]]),
            "lengths": repeats[:2] * 3,
            "loss": x.square().mean(),
            "mask": x > 0,
            "n": target[1].clone(),
            "paths": paths,
            "repeats": repeats,
            "square": x.T @ x + torch.eye(5),
            "target": target,
            "torch": torch,
            "total": torch.zeros(()),
            "weight": _with_gradient(net.weight),
            "x": x,
            "x0": x.detach().clone(),
        }


def _with_gradient(weight: nn.Parameter) -> nn.Parameter:
    weight.grad = torch.ones_like(weight)
    return weight


def compiled(code: str) -> CodeType:
    """The snippet as a program with visible source lines."""
    name = f"<snippet {hash(code)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    return compile(code, name, "exec")
