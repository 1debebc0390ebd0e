# ruff: noqa: N812
"""Vector quantisation: nearest code, straight-through gradient, usage by one-hot and mean."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Codes(nn.Module):
    def __init__(self, n=12, width=6):
        super().__init__()
        self.n = n
        self.codes = nn.Embedding(n, width)
        self.register_buffer("usage", torch.zeros(n))

    def forward(self, x):
        distance = torch.cdist(x, self.codes.weight)
        nearest = distance.argmin(1)
        chosen = F.one_hot(nearest, self.n).to(x.dtype)
        quantised = chosen @ self.codes.weight
        self.usage.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        share = chosen.mean(0)
        perplexity = (-(share * (share + 1e-10).log()).sum()).exp()
        loss = F.mse_loss(quantised, x.detach()) + 0.25 * F.mse_loss(x, quantised.detach())
        return x + (quantised - x).detach(), loss, perplexity.detach()


encoder, codes, decoder = nn.Linear(9, 6), Codes(), nn.Linear(6, 9)
parameters = [*encoder.parameters(), *codes.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adamax(parameters)
seen = []


def step():
    x = torch.randn(16, 9)
    hidden, loss, perplexity = codes(encoder(F.dropout(x, 0.1)))
    loss = loss + F.mse_loss(decoder(hidden), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(perplexity)
