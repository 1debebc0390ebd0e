"""How large the autograd graphs of a process are, in nodes.

A node is an object of C++ that belongs to no tensor: ``total = total + loss`` keeps one 4-byte
tensor and the graph of every step so far. After ``backward()`` a graph has given back the tensors
that it saved, but its nodes stay as long as a tensor leads to them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from perfkit.memory.survey import MAX_NODES

_NO_NUMBER = 2**63


class GraphSize:
    """Counts the nodes that live tensors lead to, again and again."""

    def __init__(self) -> None:
        # the collector does not list objects that gc.freeze() sets aside after this
        self._known = [weakref.ref(tensor) for tensor in _tensors()]

    def nodes(self) -> int:
        """The nodes now, at most :data:`~perfkit.memory.survey.MAX_NODES`."""
        known = (ref() for ref in self._known)
        roots = {id(t): t for t in (*(t for t in known if t is not None), *_tensors())}
        return sum(nodes_of(list(roots.values())))


def nodes_of(tensors: Sequence[Tensor], made_from: int = 0) -> list[int]:
    """For each tensor, the nodes of its graph that no tensor before it leads to.

    Args:
        tensors: where the walks begin.
        made_from: count only nodes with this sequence number or a later one.
    """
    seen: set[Any] = set()
    return [_walk(tensor.grad_fn, seen, made_from) for tensor in tensors]


def _walk(node: Any, seen: set[Any], made_from: int) -> int:
    found = 0
    waiting = [node]
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            # those that only add up gradients have the largest number there is
            found += not made_from or made_from <= node._sequence_nr() < _NO_NUMBER
            waiting += [following for following, _ in node.next_functions]
    return found


def _tensors() -> Iterable[Tensor]:
    objects = gc.get_objects()
    types = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    return [obj for obj in objects if type(obj) in types]
