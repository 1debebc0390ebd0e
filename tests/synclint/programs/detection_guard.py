"""A detector's loop that stops on a loss that is not finite, and sums a dict of losses."""

import math

import torch
from torch import nn

torch.manual_seed(0)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.boxes = nn.Linear(32, 4)
        self.labels = nn.Linear(32, 5)

    def forward(self, features, targets):
        hidden = self.body(features).relu()
        boxes, scores = self.boxes(hidden), self.labels(hidden)
        positive = targets["labels"] > 0
        index = torch.where(positive)[0]  # sync
        regression = nn.functional.smooth_l1_loss(boxes[index], targets["boxes"][index])
        return {
            "regression": regression,
            "classes": nn.functional.cross_entropy(scores, targets["labels"]),
        }


model = Heads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    targets = {"labels": torch.randint(0, 5, (10,)), "boxes": torch.rand(10, 4)}
    losses = model(torch.randn(10, 16), targets)
    total = sum(losses.values())
    value = total.item()  # sync
    if not math.isfinite(value):
        raise RuntimeError("the loss is not finite")
    logged = {name: float(part.detach()) for name, part in losses.items()}  # sync
    optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # sync
    optimizer.step()
    return logged
