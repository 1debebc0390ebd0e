"""How many passes of a single row each a graph of autograd has, none of which needs another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from perfkit.base import torch_compat


class SingleRows(NamedTuple):
    n: int


def n_single_rows(nodes: Sequence[Any], products: Sequence[str]) -> int:
    """Of the layer that most rows go through, as they come from no other layer; 0 where a product
    gets what several of them made, as a recurrent state is.

    Args:
        nodes: all of the graph.
        products: names of those that are a product with a weight.
    """
    first_below: dict[Any, set[Any]] = {}  # two of them are enough to know
    n = Counter[Any]()
    for node in sorted(nodes, key=lambda one: one._sequence_nr()):
        following = [one for one, _ in node.next_functions]
        seen = set[Any]().union(*(first_below.get(one, ()) for one in following))
        if node.name() in products:
            left, right = following[-2:]
            if len(first_below.get(left, ())) > 1:
                return 0
            if left is None and right is not None and _has_one_row(node):
                seen = {node}
                n[_weight(right)] += 1
        first_below[node] = set(islice(seen, 2))
    return max(n.values(), default=0)


def _has_one_row(product: Any) -> bool:
    given = [one for one in torch_compat.saved_tensors(product) if type(one).__name__ == "Tensor"]
    return bool(given) and all(one.ndim == 2 and len(one) == 1 for one in given)


def _weight(node: Any) -> Any:
    """What is accumulated below it: the gradient of a weight."""
    while not hasattr(node, "variable"):
        inner = [one for one, _ in node.next_functions if one is not None]
        if len(inner) != 1:
            break
        node = inner[0]
    return node
