"""What the graph of a loss shows of work that its result does not need; it reads a few values."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.base import torch_compat
from perfkit.base.single_rows import SingleRows, n_single_rows

#: Nodes of losses of classes, and of matrix products.
LOSSES = ("NllLossBackward0", "NllLoss2DBackward0")
PRODUCTS = ("AddmmBackward0", "MmBackward0")
_MOST_NODES = 20_000
# Of fewer classes nothing large is made; so many rows are not one-hot by chance; and so many nodes
# are between a product and the loss of its result.
_MANY, _ROWS, _FAR = 256, 64, 12


@dataclass(frozen=True)
class IgnoredTargets:
    """Targets that a loss ignores, of scores that a matrix product made."""

    n: int
    n_ignored: int
    n_classes: int
    value: int  # of those ignored
    back: tuple[int, ...]  # how long before the loss each node from the product on was made


@dataclass(frozen=True)
class OneHotFactor:
    """One-hot rows that are multiplied by a matrix, which is or is made of a parameter."""

    n_classes: int
    table: weakref.ref[Any]


Seen = IgnoredTargets | OneHotFactor | SingleRows


def look_into(roots: Iterable[Any]) -> Iterator[Seen]:
    """Look at the graphs below these nodes, before the backward pass frees them."""
    waiting = [node for node in roots if node is not None]
    uses = Counter[Any](waiting)
    nodes = []
    while waiting and len(uses) < _MOST_NODES:
        nodes.append(waiting.pop())
        for following in _following(nodes[-1]):
            waiting += [following] * (following not in uses)
            uses[following] += 1
    yield SingleRows(n_single_rows(nodes, PRODUCTS))
    for node in nodes:
        try:
            if node.name() in LOSSES:
                yield from _ignored(node, uses)
            elif node.name() in PRODUCTS:
                yield from _one_hot(node)
        except Exception:  # a tensor of a kind that nobody has seen
            continue


def _following(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions if one is not None]


def _plain(node: Any) -> list[Any]:
    return [one for one in torch_compat.saved_tensors(node) if type(one).__name__ == "Tensor"]


def _ignored(loss: Any, uses: Counter[Any]) -> Iterator[IgnoredTargets]:
    saved = _plain(loss)
    target = next(one for one in saved if not one.is_floating_point())
    n_classes = next(one.shape[1] for one in saved if one.ndim in (2, 4) and one is not target)
    chain = [loss]
    while len(chain) < _FAR and chain[-1].name() not in PRODUCTS:
        chain += _following(chain[-1])[:1] or [loss] * _FAR
    # what else the scores are for may need all of them
    only = all(uses[node] == 1 for node in chain[1:] if "LogSoftmax" not in node.name())
    is_wide = n_classes >= _MANY and any(n_classes in one.shape for one in _plain(chain[-1]))
    if chain[-1].name() in PRODUCTS and only and is_wide:
        # torch tells it as an unsigned number
        value, made = (loss._saved_ignore_index + 2**63) % 2**64 - 2**63, loss._sequence_nr()
        n_ignored = int((target.detach().cpu().numpy() == value).sum())
        back = tuple(made - node._sequence_nr() for node in chain)
        yield IgnoredTargets(target.numel(), n_ignored, n_classes, value, back)


def _one_hot(product: Any) -> Iterator[OneHotFactor]:
    (left, _), (right, _) = product.next_functions[-2:]
    for rows in _plain(product) if left is None and right is not None else ():
        if rows.ndim == 2 and rows.shape[1] >= _MANY:
            some = rows.detach()[:_ROWS].cpu().float().numpy()
            if (np.count_nonzero(some, axis=1) == 1).all() and (some.max(axis=1) == 1).all():
                while not hasattr(right, "variable"):
                    right = _following(right)[0]
                yield OneHotFactor(rows.shape[1], weakref.ref(right.variable))
