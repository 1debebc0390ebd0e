"""What a forward pass keeps for its backward pass, against arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from perfkit.base.errors import UsageError
from perfkit.memory.kept import KeptForBackward, kept_for_backward

_UNIT = 64 * 32 * 4  # a float32 tensor of 64 rows and 32 columns
# the loss, and the 1 that its backward pass begins with
_ENDS = 8
_SAVED = (torch.ops.aten.addmm.default,)


def _block() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.GELU())


def _keep(block: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = block(x)
    return y


def _recompute(block: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = checkpoint(block, x, use_reentrant=False)
    return y


def _selective(block: nn.Module, x: Tensor) -> Tensor:
    contexts = functools.partial(create_selective_checkpoint_contexts, list(_SAVED))
    y: Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return y


def _kept(through: Callable[[nn.Module, Tensor], Tensor], n: int = 4) -> KeptForBackward:
    torch.manual_seed(0)
    model = nn.Sequential(*[_block() for _ in range(n)])
    batch = torch.randn(64, 32)

    def step() -> None:
        x = batch
        for block in model:
            x = through(block, x)
        x.sum().backward()  # type: ignore[no-untyped-call]

    return kept_for_backward(step, model=model)


def test_each_storage_counts_once_and_the_batch_does_not() -> None:
    found = _kept(_keep)
    # GELU keeps its input, the next linear layer its own; x is the last result
    assert found.total_bytes == 8 * _UNIT + _ENDS
    assert found.n_storages == 10
    assert sum(one.nbytes for one in found.by_module) == found.total_bytes
    assert {one.path: one.nbytes for one in found.by_module}["Sequential.0.1"] == _UNIT
    assert found.by_device == {"cpu": found.total_bytes}
    assert found.warnings == ()


def test_what_is_computed_again_is_not_kept() -> None:
    assert _kept(_recompute).total_bytes == 4 * _UNIT + _ENDS


def test_what_a_selective_checkpoint_keeps_is_counted() -> None:
    assert _kept(_selective).total_bytes == 8 * _UNIT + _ENDS


def test_what_a_hook_packs_is_counted_as_it_is_packed() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.bfloat16(), lambda x: x.float()):
        # saved: half of four inputs of GELU, of three of linear layers, weights and the batch
        found = _kept(_keep)
    assert found.total_bytes < 7 * _UNIT


def test_the_largest_of_several_backward_passes_is_told() -> None:
    layer = nn.Linear(32, 32)

    def step() -> None:
        for rows in (8, 64, 16):
            layer(torch.ones(rows, 32)).tanh().sum().backward()

    assert kept_for_backward(step).total_bytes == _UNIT + _ENDS


def test_nothing_without_a_backward_pass() -> None:
    layer = nn.Linear(32, 32)
    found = kept_for_backward(lambda: layer(torch.ones(64, 32)))
    assert (found.total_bytes, found.n_storages, found.by_module) == (0, 0, ())


def test_the_step_is_a_function_and_its_error_propagates() -> None:
    with pytest.raises(UsageError, match="step"):
        kept_for_backward(3)  # type: ignore[arg-type]

    def failing() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        kept_for_backward(failing)
    assert _kept(_keep).n_storages == 10  # and nothing is left behind
