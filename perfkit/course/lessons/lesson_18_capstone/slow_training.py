"""The training of the exercise in lesson 18, as people write it: every fault is on purpose."""

# mypy: ignore-errors
# ruff: noqa: B905

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def slow_training(features: torch.Tensor, classes: torch.Tensor) -> Iterator[float]:
    """Train on batches of 32, in order; yields the loss of each step."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    seen = []
    for start in range(0, len(features), 32):
        rows, wanted = features[start : start + 32], classes[start : start + 32]
        # numbers around 0, one row at a time
        scores = []
        for row in rows:
            scores.append(model((row.double() - 0.5) / 0.25))
        # the rare class counts three times
        loss = 0
        for score, label in zip(scores, wanted):
            part = cross_entropy(score[None], label[None])
            loss = loss + (3 * part if label == 0 else part)
        loss = loss / len(rows)
        optimizer.zero_grad()
        loss.backward()
        # no gradient longer than 0.5
        length = 0
        for parameter in model.parameters():
            length += parameter.grad.norm().item() ** 2
        length = length**0.5
        for parameter in model.parameters():
            if length > 0.5:
                parameter.grad.mul_(0.5 / length)
        optimizer.step()
        # the mean so far, for the log
        seen.append(loss)
        mean = sum(seen) / len(seen)
        assert mean.isfinite()
        yield loss.item()
