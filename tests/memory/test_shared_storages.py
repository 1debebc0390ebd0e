"""A storage that belongs to several modules is not told as one module's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfkit import show
from perfkit.memory.account import MemoryAccount, account


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1))


def _by_lbfgs(net: nn.Module, n_steps: int) -> MemoryAccount:
    x = torch.randn(4, 8)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, history_size=40)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    def train() -> None:
        for _ in range(n_steps):
            optimizer.step(closure)

    train()  # the history was there before, or is made in the region
    return account(train)


def test_the_history_of_lbfgs_is_of_all_parameters() -> None:
    net = _net()
    found = _by_lbfgs(net, 2)
    state_bytes = found.at_peak_bytes["optimizer state"]
    flat_bytes = 4 * sum(p.numel() for p in net.parameters())
    assert state_bytes > 10 * flat_bytes
    of = {m.path: m.by_category["optimizer state"] for m in found.by_module}
    assert of["(of all parameters)"] >= 0.95 * state_bytes
    assert sum(of.values()) == state_bytes
    assert not any(of[path] for path in of if not path.startswith("("))
    text = " ".join(show.text(found).split())
    assert "of them in" not in text.partition(";")[0]


def test_the_history_of_a_single_parameter_is_its_own() -> None:
    net = nn.Linear(64, 64, bias=False)
    x = torch.randn(4, 64)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    found = account(lambda: optimizer.step(closure), model=net)
    (own,) = [m for m in found.by_module if m.by_category["parameters"]]
    assert own.by_category["optimizer state"] >= 0.95 * found.at_peak_bytes["optimizer state"]


class _Preconditioned(torch.optim.SGD):
    """Keeps more for a parameter than the parameter, as Shampoo does, and for each of them."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("square", torch.eye(p.numel()))


def test_a_preconditioner_larger_than_its_parameter_stays_with_it() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = _Preconditioned(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    step()
    found = account(step, model=net, optimizer=optimizer)
    of = {m.path.rpartition(".")[2]: m.by_category["optimizer state"] for m in found.by_module}
    assert of["0"] == 4 * (64**2 + 8**2)
    assert of["1"] == 4 * (16**2 + 2**2)


def test_gradients_in_one_flat_buffer_are_no_single_modules() -> None:
    """As DistributedDataParallel keeps them with ``gradient_as_bucket_view``."""
    net = _net()
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()

    def step() -> None:
        net(torch.randn(4, 8)).sum().backward()

    found = account(step, model=net)
    of = {m.path: m.by_category["gradients"] for m in found.by_module if m.by_category["gradients"]}
    assert of == {"(shared by modules)": flat.nbytes}


def test_two_gradients_in_a_buffer_of_one_module_are_its_own() -> None:
    net = nn.Sequential(nn.Linear(8, 64))
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    net[0].weight.grad, net[0].bias.grad = flat[:512].view(64, 8), flat[512:]

    def step() -> None:
        net(torch.randn(4, 8)).sum().backward()

    found = account(step, model=net)
    (own,) = [m for m in found.by_module if m.by_category["gradients"]]
    assert own.path.endswith("0")
    assert own.by_category["gradients"] == flat.nbytes


def test_a_gradient_made_in_the_call_of_another_module_is_its_parameters() -> None:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 64, bias=False)

        def forward(self, x: Tensor) -> None:
            self.inner(x).sum().backward()

    net = Trains()
    found = account(lambda: net(torch.randn(4, 8)), model=net)
    (own,) = [m for m in found.by_module if m.by_category["gradients"]]
    assert own.path.endswith("inner")
    assert own.by_category["gradients"] == 4 * 8 * 64
