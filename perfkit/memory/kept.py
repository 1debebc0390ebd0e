"""What a forward pass keeps for its backward pass: by module, to the byte.

Autograd saves what its derivatives need, and several operators often save one and the same tensor.
So storages are counted, each once, at the moment when the backward pass begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from perfkit.base.arguments import check_function
from perfkit.base.torch_compat import WAS_LOST
from perfkit.memory.categories import ACTIVATIONS, by_name
from perfkit.memory.places import ModuleMemory

if TYPE_CHECKING:
    from torch import nn

    from perfkit.memory.ledger import Block


@dataclass(frozen=True)
class KeptForBackward:
    """What was alive of a forward pass when its backward pass began. Sizes in bytes.

    Parameters, buffers and the batch are not in it: they would be there without a backward pass.
    What the step's own variables hold of the forward pass is, such as the loss, and so is the 1
    that a backward pass begins with: 8 bytes for both.

    Attributes:
        total_bytes: storages that the forward pass made and that were alive, each counted once.
        n_storages: how many.
        by_module: the same by the module that made them, most bytes first; adds up to the total.
        by_device: the same by device, such as ``{"cuda:0": 4096, "cpu": 1024}``.
    """

    total_bytes: int
    n_storages: int
    by_module: tuple[ModuleMemory, ...]
    by_device: Mapping[str, int]
    warnings: tuple[str, ...] = ()


def kept_for_backward(
    step: Callable[[], object], *, model: nn.Module | None = None
) -> KeptForBackward:
    """Run ``step()`` once and say what its forward pass keeps for the backward pass.

    With activation checkpointing, what is computed again is not in it, but the inputs of the
    recomputed part are; tensors that a pack hook has moved to the host are listed there. If the
    step calls ``backward()`` several times, the call that found most is shown.

    Args:
        step: a function without arguments: forward and backward pass. Its result is discarded.
        model: whose modules are named, from the model's class downwards; by default all that are
            alive.

    Returns:
        A :class:`KeptForBackward`; all zero if nothing called ``backward()``.

    Raises:
        UsageError: ``step`` is not a function. What it raises propagates.

    Example::

        >>> layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        >>> kept_for_backward(lambda: layers(torch.rand(8, 64)).sum().backward()).total_bytes
        2056
    """
    check_function("step", step)
    from perfkit.memory.tracker import Tracker

    found: list[_Left] = []

    def look(blocks: list[Block]) -> None:
        left = [
            _Left(block.owner, str(storage.device), block.nbytes)
            for block in blocks
            if (storage := block()) is not None
        ]
        if _total(left) > _total(found):
            found[:] = left

    tracker = Tracker()
    tracker.start(modules=() if model is None else (model,), on_backward=look)
    try:
        step()
    finally:
        tracker.stop()
    warnings = []
    if tracker.instrument.failure is not None:
        warnings.append(tracker.instrument.failure.sentence())
    if tracker.was_lost:
        warnings.append(WAS_LOST)
    if tracker.compiled:
        warnings.append("what compiled code keeps for its backward pass is not seen")
    by_device: dict[str, int] = {}
    groups: dict[str, list[int]] = {}
    for one in found:
        groups.setdefault(one.path, []).append(one.nbytes)
        by_device[one.device] = by_device.get(one.device, 0) + one.nbytes
    modules = [
        ModuleMemory(path, sum(sizes), by_name({ACTIVATIONS: sum(sizes)}), len(sizes))
        for path, sizes in groups.items()
    ]
    return KeptForBackward(
        total_bytes=_total(found),
        n_storages=len(found),
        by_module=tuple(sorted(modules, key=lambda one: -one.nbytes)),
        by_device=MappingProxyType(by_device),
        warnings=tuple(warnings),
    )


class _Left(NamedTuple):
    path: str
    device: str
    nbytes: int


def _total(left: Iterable[_Left]) -> int:
    return sum(one.nbytes for one in left)
