# ruff: noqa: N812
"""A small causal language model: shapes decide, never values."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads = heads
        self.register_buffer("causal", torch.tril(torch.ones(16, 16)).bool())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.first(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.causal[:t, :t], float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(50, 16), nn.Embedding(16, 16)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(2))
        self.head = nn.Linear(16, 50, bias=False)

    def forward(self, ids, targets):
        assert ids.size(1) <= 16
        x = self.token(ids) + self.place(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-1)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
corpus = torch.randint(0, 50, (1000,))


def batch():
    starts = torch.randint(0, 1000 - 17, (4,))
    ids = torch.stack([corpus[i : i + 16] for i in starts.tolist()])
    targets = torch.stack([corpus[i + 1 : i + 17] for i in starts.tolist()])
    return ids.clone(), targets.clone()


def step():
    ids, targets = batch()
    for _ in range(2):
        loss = model(ids, targets) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
