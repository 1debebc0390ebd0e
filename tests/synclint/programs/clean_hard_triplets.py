"""The hardest triplets of a batch by masks and extremes, with bfloat16 autocast."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)


def step():
    inputs = torch.randn(12, 8)
    people = torch.arange(12) % 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        places = checkpoint(model, inputs, use_reentrant=False)
    places = nn.functional.normalize(places.float(), dim=1)
    distance = (1 - places @ places.T).clamp(min=0)
    same = people[:, None] == people[None]
    itself = torch.eye(12, dtype=torch.bool)
    farthest = distance.masked_fill(~same | itself, -1.0).max(1).values
    nearest = torch.where(same, torch.inf, distance).min(1).values
    margin = (farthest - nearest + 0.2).relu()
    active = (margin > 0).sum()
    loss = margin.sum() / active.clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
