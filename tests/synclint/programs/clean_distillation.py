# ruff: noqa: N812
"""A student learns from a teacher, with soft labels, smoothing, and mixed samples."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
random.seed(0)
teacher = nn.Linear(10, 5).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 5))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, nesterov=True, momentum=0.9)
plateau = torch.optim.lr_scheduler.StepLR(optimizer, 3)


def step():
    inputs, labels = torch.randn(16, 10), torch.randint(0, 5, (16,))
    share = random.betavariate(0.4, 0.4)
    order = torch.randperm(16)
    mixed = share * inputs + (1 - share) * inputs[order]
    with torch.no_grad():
        soft = (teacher(mixed) / 4).softmax(1)
    scores = student(mixed)
    hard = share * F.cross_entropy(scores, labels, label_smoothing=0.1)
    hard = hard + (1 - share) * F.cross_entropy(scores, labels[order], label_smoothing=0.1)
    loss = hard + 16 * F.kl_div((scores / 4).log_softmax(1), soft, reduction="batchmean")
    confident, _ = soft.max(1)
    sure = (confident > 0.9).float()
    loss = loss + (F.cross_entropy(scores, labels, reduction="none") * sure).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plateau.step()
