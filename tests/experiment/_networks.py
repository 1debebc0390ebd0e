"""Small real networks and a few training steps, with common mistakes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it


class Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(o)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1)  # its bias has no gradient but rounding
        self.b2 = nn.BatchNorm2d(o)
        self.short = nn.Conv2d(i, o, 1, stride) if i != o else nn.Identity()

    def forward(self, x):
        y = self.c2(F.relu(self.b1(self.c1(x))))
        return F.relu(self.b2(y) + self.short(x))


def resnet() -> nn.Module:
    body = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), *body, *head)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, x):
        return self.head(self.layers(self.embed(x))).flatten(0, 1)


def mlp() -> nn.Module:
    hidden = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet,
    "transformer": Transformer,
    "mlp": mlp,
}


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "resnet":
        return torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
    if name == "transformer":
        tokens = torch.randint(0, 50, (8, 17))
        return tokens[:, :-1], tokens[:, 1:].flatten()
    return torch.randn(32, 64), torch.randint(0, 10, (32,))


def training(
    name: str = "mlp",
    *,
    optimizer: str = "sgd",
    steps: int = 3,
    seed: int | None = None,
    channels_last: bool = False,
    autocast: torch.dtype | None = None,
    dtype: torch.dtype | None = None,
    zero_grad: bool = True,
    parts: int = 1,
    divided: bool = True,
    broken_loss: bool = False,
    detached: bool = False,
    augmented: bool = False,
    compiled_names: bool = False,
) -> Callable[[], Any]:
    """A generator function of training steps that yield the loss."""

    def train():
        if seed is not None:
            torch.manual_seed(seed)
        model = NETWORKS[name]()
        data = [batch(name) for _ in range(steps)]
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        if dtype is not None:
            model = model.to(dtype)
        inner = model
        if compiled_names:
            model = nn.Sequential()
            model.add_module("_orig_mod", inner)
        make = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
        chosen = make(model.parameters(), lr=0.05 if optimizer == "sgd" else 1e-3)
        for x, y in data:
            if augmented:
                noise = torch.Generator().manual_seed(int(torch.seed() % 2**31))
                x = x + 0.3 * torch.randn(x.shape, generator=noise)
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            if dtype is not None and x.is_floating_point():
                x = x.to(dtype)
            if zero_grad:
                chosen.zero_grad()
            total = 0.0
            for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                on = (
                    contextlib.nullcontext()
                    if autocast is None
                    else torch.autocast("cpu", autocast)
                )
                with on:
                    out = model(xs)
                    if detached:
                        out = out + 0 * out.sum() - (inner[0](xs) - inner[0](xs).detach()).sum() * 0
                    loss = F.cross_entropy(out.float() if dtype is None else out, ys)
                if broken_loss:
                    loss = loss + 0.5 * out.float().pow(2).mean()
                (loss / parts if divided else loss).backward()
                total += loss.item() / parts
            if detached:
                inner[0].weight.grad = None
            chosen.step()
            yield torch.tensor(total)

    return train
