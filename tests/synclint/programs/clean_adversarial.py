"""Two players in turn, with losses kept on the device and one host copy of the noise's seed."""

import torch
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
make = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
judged = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
log = torch.zeros(2)


def step():
    real = torch.randn(8, 8)
    fake = maker(torch.randn(8, 4))
    ones, zeros = torch.ones(8, 1), torch.full((8, 1), 0.0)
    loss_judge = criterion(judge(real), ones) + criterion(judge(fake.detach()), zeros)
    judged.zero_grad()
    loss_judge.backward()
    judged.step()
    mix = torch.rand(8, 1)
    between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    loss_maker = criterion(judge(fake), ones) + 0.1 * penalty
    make.zero_grad()
    loss_maker.backward()
    make.step()
    log[0] += loss_judge.detach()
    log[1] += loss_maker.detach()
