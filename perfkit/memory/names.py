"""Under which name a user knows a tensor: ``model.fc.weight``, ``losses[3]``, ``batch``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from perfkit.memory.storages import storages_of

#: Elements of one list or dict that are looked at, at most.
MAX_ELEMENTS = 10_000


def names_of_storages(namespace: Mapping[str, Any]) -> dict[int, tuple[str, Tensor]]:
    """``id`` of a storage → the shortest way to it from this namespace, and the tensor there.

    Variables come before what modules and optimizers hold, those before elements of lists and
    dicts, and names that begin with an underscore (IPython's ``_`` and ``_3`` hold results,
    too) after all others.
    """
    variables = sorted(namespace.items(), key=lambda item: item[0].startswith("_"))
    names: dict[int, tuple[str, Tensor]] = {}
    for kind in (_tensor, _module, _optimizer, _elements):
        for variable, value in variables:
            for name, tensor in kind(variable, value):
                for storage in storages_of(tensor) or ():
                    names.setdefault(id(storage), (name, tensor))
    return names


def _tensor(variable: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if issubclass(type(value), Tensor):
        yield variable, value
        if value.is_leaf and value.grad is not None:
            yield f"{variable}.grad", value.grad


def _module(variable: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if not issubclass(type(value), nn.Module):
        return
    for name, parameter in value.named_parameters():
        yield f"{variable}.{name}", parameter
        if parameter.grad is not None:
            yield f"{variable}.{name}.grad", parameter.grad
    for name, buffer in value.named_buffers():
        yield f"{variable}.{name}", buffer


def _optimizer(variable: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if not issubclass(type(value), Optimizer):
        return
    for number, state in enumerate(value.state.values()):
        for name, tensor in state.items() if isinstance(state, dict) else ():
            if isinstance(tensor, Tensor):
                yield f"{variable}.state[{number}]['{name}']", tensor


def _elements(variable: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    items: Iterator[tuple[Any, Any]] = iter(())
    if type(value) is dict:
        items = iter(list(value.items())[:MAX_ELEMENTS])
    elif type(value) in {list, tuple}:
        items = enumerate(value[:MAX_ELEMENTS])
    for key, item in items:
        if issubclass(type(item), Tensor):
            yield f"{variable}[{key!r}]", item
