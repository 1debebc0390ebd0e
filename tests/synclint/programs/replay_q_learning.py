"""Q-learning from a replay memory: next states of unfinished episodes by a mask."""

import random

import torch
from torch import nn

torch.manual_seed(0)
policy, target = nn.Linear(4, 2), nn.Linear(4, 2)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
memory = [
    (torch.randn(1, 4), torch.tensor([[i % 2]]), torch.randn(1, 4) if i % 5 else None, 1.0)
    for i in range(64)
]


def act(state):
    if random.random() < 0.0:
        return torch.tensor([[random.randrange(2)]])
    with torch.no_grad():
        return policy(state).max(1).indices.view(1, 1)


def step():
    action = act(torch.randn(1, 4))
    reward = 1.0 if action.item() == 1 else 0.0  # sync
    batch = random.sample(memory, 32)
    states = torch.cat([one[0] for one in batch])
    actions = torch.cat([one[1] for one in batch])
    rewards = torch.tensor([one[3] + reward for one in batch])
    unfinished = torch.tensor([one[2] is not None for one in batch])
    following = torch.cat([one[2] for one in batch if one[2] is not None])
    values = policy(states).gather(1, actions)
    next_values = torch.zeros(32)
    with torch.no_grad():
        next_values[unfinished] = target(following).max(1).values  # sync
    expected = rewards + 0.99 * next_values
    loss = nn.functional.smooth_l1_loss(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
