# ruff: noqa: B905, N812
"""Contrastive learning with a queue of keys whose position is kept in a buffer."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Contrast(nn.Module):
    def __init__(self, size=32):
        super().__init__()
        self.online, self.slow = nn.Linear(8, 4), nn.Linear(8, 4)
        self.register_buffer("queue", F.normalize(torch.randn(4, size), dim=0))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.size = size

    @torch.no_grad()
    def enqueue(self, keys):
        start = int(self.position)  # sync
        self.queue[:, start : start + len(keys)] = keys.T
        self.position[0] = (start + len(keys)) % self.size  # sync

    def forward(self, one, other):
        q = F.normalize(self.online(one), dim=1)
        with torch.no_grad():
            for fast, slow in zip(self.online.parameters(), self.slow.parameters()):
                slow.data.mul_(0.99).add_(fast.data, alpha=0.01)
            k = F.normalize(self.slow(other), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        scores = torch.cat([positive, q @ self.queue.clone()], 1) / 0.1
        self.enqueue(k)
        return F.cross_entropy(scores, torch.zeros(len(q), dtype=torch.long))


model = Contrast()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    views = torch.randn(2, 8, 8)
    loss = model(views[0], views[1])
    pairs = F.normalize(model.online(views.flatten(0, 1)), dim=1)
    similar = pairs @ pairs.T
    others = similar[~torch.eye(16, dtype=torch.bool)].view(16, 15)  # sync
    loss = loss + others.logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
