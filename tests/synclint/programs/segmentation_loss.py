# ruff: noqa: N812
"""A loss over the labelled pixels only, written as one first writes it."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOID = 21
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
history = []


def loss_of(scores, labels):
    known = labels != VOID
    where = known.nonzero()  # sync
    present = labels.unique()  # sync
    picked = scores.movedim(1, -1)[known]  # sync
    wanted = labels[known]  # sync
    loss = F.cross_entropy(picked, wanted)
    first = scores[:, 0].masked_select(known)  # sync
    for label in present.tolist():  # sync
        share = (wanted == label).float().mean()
        loss = loss + 0.01 * share
    while loss > 50:  # sync
        loss = loss / 2
    history.append(loss.detach().item())  # sync
    painted = scores.detach().clone()
    painted[(~known).unsqueeze(1).expand_as(painted)] = 0
    painted[:, 1][known] = torch.rand(where.shape[0])  # sync
    seen = scores.detach().mean((0, 2, 3)).cpu().numpy()  # sync
    assert seen.shape == (scores.shape[1],)
    return loss + 0 * first.mean()


def step():
    images = torch.randn(2, 3, 8, 8)
    labels = torch.randint(0, 6, (2, 8, 8))
    labels[:, :2] = VOID
    optimizer.zero_grad()
    loss_of(net(images), labels).backward()
    optimizer.step()
