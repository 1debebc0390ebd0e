"""What the lint saw of a line's tensors: its text does not tell it, and its cure must know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_HALF = frozenset({torch.float16, torch.bfloat16})
_SUMMED = frozenset({"float", "item"})
_KEPT = frozenset({"cpu", "float", "int", "item", "numpy", "tolist"})

#: Words: ``"changes"``: the tensor is changed in place, so a reference to it is no snapshot;
#: ``"half"``: of 16 bits, in which a sum of many steps is lost; ``"no answer"``: not one bool
#: without a dimension; ``"each"``: it brings a value for each element that is chosen; ``"1"`` …:
#: so many dimensions fewer has the mask than what it chooses from; ``"0/2"`` …: of an
#: index of two parts the first is a list or an array of positions; ``"sample"``: a data set did it;
#: ``"first"``: only the first call in a process waits. Of what is copied to the device:
#: ``"computed"``: an operator of the watched code made it; ``"given"``: none did, so a loader may
#: have, in pinned memory. Of what a tensor on the device is made of: ``"number"``: one of Python's;
#: ``"tensors"``: some are among it; ``"data"``: anything else.
Facts = tuple[str, ...]


def facts_of_value(entry: str, tensor: torch.Tensor) -> Facts:
    """Of a tensor that is read to the host."""
    facts = []
    if entry == "bool" and (tensor.dtype is not torch.bool or tensor.dim()):
        facts.append("no answer")
    if entry in _SUMMED and tensor.dtype in _HALF:
        facts.append("half")
    elif entry in _KEPT and _changes(tensor):
        facts.append("changes")
    return tuple(facts)


def facts_of_choice(source: torch.Tensor, masks: Sequence[Any], value: Any = None) -> Facts:
    """Of ``source[mask]``, and of ``source[mask] = value``."""
    facts = []
    missing = source.dim() - masks[0].dim()
    if missing > 0:
        facts.append(str(missing))
    if source.dtype in _HALF:
        facts.append("half")
    if value is not None and value.numel() != 1 and value.dim() > missing:
        facts.append("each")
    return tuple(facts)


def facts_of_positions(are_positions: Sequence[bool]) -> Facts:
    """Of ``x[…]``, by what each part of the index is."""
    return tuple(f"{i}/{len(are_positions)}" for i, is_one in enumerate(are_positions) if is_one)


def places_of_positions(facts: Facts, n_parts: int) -> list[int]:
    """Which parts are positions, in an index of so many; empty if it was another one."""
    pairs = (fact.partition("/") for fact in facts)
    return [int(place) for place, slash, n in pairs if slash and int(n) == n_parts]


def facts_of_data(data: Any) -> Facts:
    """Of what ``torch.tensor(data, device=…)`` copies."""
    if type(data) in (bool, complex, float, int):
        return ("number",)
    return ("tensors",) if _holds_tensors(data) else ("data",)


def _holds_tensors(data: Any) -> bool:
    if isinstance(data, list | tuple):
        return any(map(_holds_tensors, data))
    return isinstance(data, torch.Tensor)


def strength(facts: Facts) -> tuple[bool, int, bool]:
    """Which facts to go by where a line ran several times: a data set is not all that runs it."""
    return "sample" not in facts, len(facts), not {"data", "given"}.isdisjoint(facts)


def _changes(tensor: torch.Tensor) -> bool:
    """Whether it has been, or will be, changed in place: a parameter, a running average."""
    if tensor.is_leaf and tensor.requires_grad:
        return True
    return not tensor.is_inference() and tensor._version > 0
