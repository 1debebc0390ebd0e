# ruff: noqa: B905
"""The loss of a denoising diffusion model, with an average of its weights."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
betas = torch.linspace(1e-4, 0.02, 100)
kept = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(100, 8)
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.out = nn.Conv2d(8, 1, 3, padding=1)
        self.register_buffer("kept", kept)

    def forward(self, x, t):
        return self.out(self.body(x) + self.time(t)[:, :, None, None])


model = Denoiser()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.NAdam(model.parameters())


def step():
    images = torch.rand(4, 1, 8, 8) * 2 - 1
    t = torch.randint(0, 100, (images.shape[0],), device=images.device)
    noise = torch.randn_like(images)
    level = model.kept.gather(0, t).view(-1, 1, 1, 1)
    noisy = level.sqrt() * images + (1 - level).sqrt() * noise
    predicted = model(noisy, t)
    weight = (level / (1 - level)).clamp(max=5.0)
    loss = (weight * (predicted - noise).square()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.01)
