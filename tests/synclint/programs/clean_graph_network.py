"""Message passing by scatter, with sizes that are known from the shapes."""

import torch
from torch import nn

torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, nodes, edges):
        source, target = edges
        messages = self.message(torch.cat([nodes[source], nodes[target]], 1)).relu()
        gathered = torch.zeros_like(nodes).index_add_(0, target, messages)
        degree = torch.zeros(len(nodes)).scatter_add_(0, target, torch.ones(len(target)))
        return self.update(gathered / degree.clamp(min=1)[:, None], nodes)


model = nn.ModuleList([Layer(8), Layer(8)])
head = nn.Linear(8, 1)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], weight_decay=1e-4)


def step():
    nodes, edges = torch.randn(20, 8), torch.randint(0, 20, (2, 60))
    graph = torch.arange(4).repeat_interleave(5)
    for layer in model:
        nodes = layer(nodes, edges)
    pooled = torch.zeros(4, 8).scatter_reduce(0, graph[:, None].expand(-1, 8), nodes, "mean")
    ranked = torch.sort(nodes[:, 0], descending=True).values[:5]
    loss = head(pooled).square().mean() + ranked.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
