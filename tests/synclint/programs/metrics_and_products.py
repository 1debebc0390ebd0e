"""A confusion matrix per step, a product in the loss, and a trunk in a custom function."""

import torch
from torch import nn

torch.manual_seed(0)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        largest = grad.abs().max().tolist()  # sync
        return grad * 2 if largest < 1e6 else grad.clamp(-1, 1) + 0 * x


model = nn.Linear(6, 3)
optimizer = torch.optim.Adagrad(model.parameters())


def confusion(predicted, wanted, n):
    known = (wanted >= 0) & (wanted < n)
    cells = n * wanted[known] + predicted[known]  # sync
    return torch.bincount(cells, minlength=n * n).view(n, n)  # sync


def step():
    output = Scaled.apply(model(torch.randn(20, 6)))
    wanted = torch.randint(0, 3, (20,))
    loss = nn.functional.cross_entropy(output, wanted)
    survival = output.sigmoid()
    loss = loss + survival.prod(1).mean()  # sync
    table = confusion(output.argmax(1), wanted, 3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return table
