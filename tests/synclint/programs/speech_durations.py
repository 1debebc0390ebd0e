# ruff: noqa: B905
"""Text to speech: each sound is repeated as long as it is predicted to last."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
encoder, durations, decoder = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 5)
parameters = [p for part in (encoder, durations, decoder) for p in part.parameters()]
optimizer = torch.optim.Adam(parameters)


def stretch(hidden, lasts):
    rows = [torch.repeat_interleave(h, n, dim=0) for h, n in zip(hidden, lasts)]  # sync
    return pad_sequence(rows, batch_first=True)


def step():
    sounds = torch.randn(2, 5, 6)
    hidden = encoder(sounds)
    lasts = durations(hidden).squeeze(-1).exp().round().clamp(1, 4).long()
    frames = decoder(stretch(hidden, lasts))
    longest = int(lasts.sum(1).max())  # sync
    positions = torch.arange(longest)
    inside = positions[None] < lasts.sum(1)[:, None]
    loss = (frames.square().mean(-1) * inside).sum() / inside.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
