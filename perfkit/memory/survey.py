"""All tensors of this process that Python can reach, and what they are for.

The garbage collector knows every tensor that has a Python object; what only the autograd graph
holds is found by walking the graphs that hang on them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from perfkit.base import torch_compat
from perfkit.base.device import accelerators
from perfkit.memory.categories import ACTIVATIONS, BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS

#: Nodes of autograd graphs that are looked at, at most: a graph that grew over an epoch (the
#: leak of `losses.append(loss)`) has millions, and the walk costs some microseconds a node.
MAX_NODES = 200_000

#: Entries of one container of an optimizer that are looked at, at most.
MAX_ENTRIES = 10_000

# The name of an optimizer's class, or the module that it comes from.
_OPTIMIZER = re.compile(r"optimi[sz]er|(^|[._])optim([._]|$)", re.IGNORECASE)

Labelled = tuple[Tensor, int]


@dataclass
class Survey:
    """What :func:`survey` saw. Holds the tensors themselves: keep it for a moment only.

    Attributes:
        tensors: each with a category number, or None where nothing says what it is for. The
            same storage may come several times, through views.
        modules: every module that is alive.
        parameters: the tensors whose ``.grad`` may be a gradient.
        compiled: code compiled by ``torch.compile`` exists in this process.
        cuda_graphs: a CUDA graph exists in this process.
        cut_short: the autograd graphs were too large to be walked to their ends.
    """

    tensors: list[tuple[Tensor, int | None]] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    compiled: bool = False
    cuda_graphs: bool = False
    cut_short: bool = False


def module_tensors(module: nn.Module) -> Iterator[Labelled]:
    """This module's own parameters and buffers, not those of its children."""
    try:
        for parameter in module.parameters(recurse=False):
            yield parameter, PARAMETERS
        for buffer in module.buffers(recurse=False):
            yield buffer, BUFFERS
    except AttributeError:
        # a module between __new__ and nn.Module.__init__ has neither
        return


def optimizer_tensors(optimizer: Optimizer) -> Iterator[Labelled]:
    """The tensors that an optimizer was given, and those of its state."""
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            yield parameter, PARAMETERS
    state = getattr(optimizer, "state", {})
    for value in list(state.values()):
        for tensor in tensors_in(value):
            yield tensor, OPTIMIZER_STATE


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Tensors in nested dicts, lists and tuples (LBFGS keeps lists of them)."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)


def tensor_ids() -> set[int]:
    """``id`` of every tensor that is a Python object now.

    To tell them from those that :func:`survey` makes objects of, by asking graphs for theirs.
    """
    objects = gc.get_objects()
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    return {id(obj) for obj in objects if type(obj) in types}


def survey(*, graphs: bool = True) -> Survey:
    """Look at every object that the garbage collector tracks (20 to 100 ms) and sort it.

    Args:
        graphs: also look for what only autograd graphs hold.
    """
    seen = Survey()
    compiled = torch_compat.compiled_code_types()
    cuda_graphs = tuple(kind for device in accelerators() if (kind := device.graph_type()))
    wanted = (Tensor, nn.Module, Optimizer, *compiled, *cuda_graphs)
    objects = gc.get_objects()
    # by type, not by isinstance: that would ask each object's __class__, which may run code
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, wanted)}
    found = [obj for obj in objects if type(obj) in types]

    plain: list[Tensor] = []
    loose: list[Tensor] = []
    for obj in found:
        kind = type(obj)
        if issubclass(kind, compiled):
            seen.compiled = True
        if issubclass(kind, nn.Module):
            seen.modules.append(obj)
            seen.tensors.extend(module_tensors(obj))
        elif issubclass(kind, Optimizer):
            seen.tensors.extend(optimizer_tensors(obj))
        elif issubclass(kind, Tensor):
            if issubclass(kind, nn.Parameter):
                loose.append(obj)
            plain.append(obj)
        elif issubclass(kind, cuda_graphs):
            seen.cuda_graphs = True
    known = {id(tensor) for tensor, _ in seen.tensors}
    loose = [parameter for parameter in loose if id(parameter) not in known]
    held = _held_by_optimizers(objects) if loose else set()
    del objects
    seen.tensors.extend((p, OPTIMIZER_STATE if id(p) in held else PARAMETERS) for p in loose)
    seen.parameters = [tensor for tensor, category in seen.tensors if category == PARAMETERS]
    for tensor in plain:
        # only a leaf may be asked for .grad without a warning
        if tensor.is_leaf and tensor.requires_grad:
            seen.parameters.append(tensor)
            if tensor.grad is not None:
                seen.tensors.append((tensor.grad, GRADIENTS))
    seen.tensors.extend((t, None if t.grad_fn is None else ACTIVATIONS) for t in plain)
    if graphs:
        _walk_graphs(plain, seen)
    return seen


def _held_by_optimizers(objects: list[Any]) -> set[int]:
    """``id`` of the tensors that optimizers of any package hold, as Keras its moments."""
    kinds = {kind for kind in set(map(type, objects)) if _is_optimizer(kind)}
    return {
        id(tensor)
        for obj in objects
        if type(obj) in kinds
        for value in _attributes(obj)
        for tensor in _tensors_of(value)
    }


def _is_optimizer(kind: type) -> bool:
    names = (f"{vars(one).get('__module__')}.{one.__name__}" for one in kind.__mro__)
    return not issubclass(kind, (nn.Module, type)) and any(map(_OPTIMIZER.search, names))


def _tensors_of(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Tensors in nested containers, and those that another package's variables wrap."""
    kind = type(value)
    if issubclass(kind, Tensor):
        yield value
    elif issubclass(kind, (dict, list, tuple, set)):
        entries = value.values() if issubclass(kind, dict) else value
        for entry in islice(entries, MAX_ENTRIES if depth else 0):
            yield from _tensors_of(entry, depth - 1)
    else:
        yield from (one for one in _attributes(value) if issubclass(type(one), Tensor))


def _attributes(obj: Any) -> tuple[Any, ...]:
    try:
        own = object.__getattribute__(obj, "__dict__")
    except AttributeError:  # it has slots
        return ()
    return tuple(own.values())


def _walk_graphs(tensors: list[Tensor], seen: Survey) -> None:
    """Add what the autograd graphs of these tensors keep for their backward."""
    waiting = [t.grad_fn for t in tensors if t.grad_fn is not None]
    known = set(waiting)
    while waiting:
        if len(known) > MAX_NODES:
            seen.cut_short = True
            return
        node = waiting.pop()
        seen.tensors.extend((t, ACTIVATIONS) for t in torch_compat.saved_tensors(node))
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)
