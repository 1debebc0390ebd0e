"""A mixture of experts that sends each token to its experts in a Python loop."""

import torch
from torch import nn

torch.manual_seed(0)


class Mixture(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, tokens):
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)  # sync
            part = expert(tokens[rows]) * weights[rows, slots, None]
            result.index_add_(0, rows, part)
        load = torch.bincount(chosen.flatten(), minlength=4)  # sync
        busiest = max(load)  # sync
        return result, busiest


model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    output, _ = model(torch.randn(12, 8))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
