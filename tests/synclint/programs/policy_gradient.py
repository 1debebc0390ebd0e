"""A clipped policy gradient with an early stop on the divergence."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-4)


def step():
    seen = torch.randn(32, 4)
    with torch.no_grad():
        behaviour = Categorical(logits=actor(seen))  # sync
        actions = behaviour.sample()
        before = behaviour.log_prob(actions)  # sync
    returns = torch.randn(32)
    fractions = []
    for _ in range(2):
        now = Categorical(logits=actor(seen), validate_args=False)
        ratio = (now.log_prob(actions) - before).exp()
        advantage = returns - critic(seen).squeeze(1)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantage.detach(), clipped * advantage.detach()).mean()
        loss = loss + advantage.square().mean() - 0.01 * now.entropy().mean()
        fractions += [((ratio - 1).abs() > 0.2).float().mean().item()]  # sync
        divergence = ((ratio - 1) - ratio.log()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if divergence > 0.5:  # sync
            break
    return fractions
