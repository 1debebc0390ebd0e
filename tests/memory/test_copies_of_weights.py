"""What weights alone make is no input, and what another package's optimizer holds is state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from perfkit.memory.account import MemoryAccount, account
from perfkit.memory.live import now

_WIDTH = 512
_WEIGHTS_BYTES = 4 * (64 * _WIDTH + _WIDTH + 2 * _WIDTH)
_BATCH_BYTES = 4 * 2 * 64


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, _WIDTH), nn.BatchNorm1d(_WIDTH))


def _peak(result: MemoryAccount, category: str) -> int:
    # other tests' leftovers are in this process, too
    return result.at_peak_bytes[category] - result.at_start_bytes[category]


class _Average:
    """An average of the weights as it is written by hand."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.kept[name].lerp_(p, 0.1)


def _train(copied: Callable[[nn.Module], object], *, late: bool) -> None:
    """Two steps; the copy is made before them, or between them, and dies with them."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = None if late else copied(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()
        if isinstance(kept, _Average):
            kept.update(model)
        elif late:
            kept = copied(model)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, _Average, lambda model: copy.deepcopy(model.state_dict())]
)
def test_a_copy_of_the_weights_is_no_input(
    copied: Callable[[nn.Module], object], late: bool
) -> None:
    result = account(lambda: _train(copied, late=late))
    assert _peak(result, "inputs") <= 2 * _BATCH_BYTES
    # it does not shrink with the batch, either: nothing would be saved
    assert result.half_batch_peak_bytes is None
    # the parameters, their gradients and the copy
    held = sum(_peak(result, name) for name in ("parameters", "gradients", "temporary"))
    assert held >= 3 * _WEIGHTS_BYTES


def test_a_module_that_dies_uncalled_in_the_region_has_parameters() -> None:
    result = account(lambda: _train(copy.deepcopy, late=False))
    assert _peak(result, "parameters") == 2 * _WEIGHTS_BYTES


def test_what_weights_and_a_batch_make_is_an_input_still() -> None:
    """Targets of a projection, say, or rows of a table: they grow with the batch."""
    model = _net()
    table = nn.Parameter(torch.randn(64, _WIDTH), requires_grad=False)

    def step() -> None:
        x = torch.randn(128, 64)
        target = x @ table
        (model(x) - target).square().sum().backward()

    step()
    result = account(step, model=model)
    assert _peak(result, "inputs") == 4 * 128 * (64 + _WIDTH)


class _Variable:
    """As Keras wraps what its optimizers keep."""

    def __init__(self, value: Tensor) -> None:
        self._value = nn.Parameter(value, requires_grad=False)


class _Momentum:
    """Of no package, and no ``torch.optim.Optimizer``."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.velocities = [_Variable(torch.zeros(p.shape)) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        for p, velocity in zip(self.parameters, self.velocities, strict=True):
            assert p.grad is not None
            velocity._value.mul_(0.9).add_(p.grad)
            p.sub_(velocity._value, alpha=0.1)


class MomentumOptimizer(_Momentum):
    """Its name says what it is."""


def _step(kind: type[_Momentum], kept: list[object]) -> None:
    model = _net()
    optimizer = kind(model.parameters())
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    kept.extend((model, optimizer))


def _change(result: MemoryAccount, category: str) -> int:
    return result.at_end_bytes[category] - result.at_start_bytes[category]


def test_what_another_packages_optimizer_holds_is_its_state() -> None:
    kept: list[object] = []
    before = sum(parts["optimizer state"] for parts in now().by_device.values())
    result = account(lambda: _step(MomentumOptimizer, kept))
    assert _change(result, "optimizer state") == _WEIGHTS_BYTES
    assert _change(result, "parameters") == _WEIGHTS_BYTES  # a module holds these, too
    after = sum(parts["optimizer state"] for parts in now().by_device.values())
    assert after - before == _WEIGHTS_BYTES

    again = account(lambda: None)
    assert again.at_start_bytes["optimizer state"] == after


def test_an_optimizers_state_that_dies_in_the_region_is_known() -> None:
    result = account(lambda: _step(MomentumOptimizer, []))
    assert _peak(result, "optimizer state") == _WEIGHTS_BYTES


def test_parameters_that_nothing_shows_to_be_an_optimizers_stay_parameters() -> None:
    kept: list[object] = []
    result = account(lambda: _step(_Momentum, kept))
    assert _change(result, "optimizer state") == 0
    assert _change(result, "parameters") == 2 * _WEIGHTS_BYTES
