"""What the graph of a loss shows of work that its result does not need; it reads a few values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.mostly_zeros import MANY, OneHotFactor, SparseFactor, mostly_zeros
from perfkit.base.single_rows import SingleRows, n_single_rows

#: Nodes of losses of classes, and of matrix products.
LOSSES = ("NllLossBackward0", "NllLoss2DBackward0")
PRODUCTS = ("AddmmBackward0", "MmBackward0")
_MOST_NODES = 20_000
# So many nodes are between a product and the loss of its result.
_FAR = 12


@dataclass(frozen=True)
class IgnoredTargets:
    """Targets that a loss ignores, of scores that a matrix product made."""

    n: int
    n_ignored: int
    n_classes: int
    value: int  # of those ignored
    back: tuple[int, ...]  # how long before the loss each node from the product on was made


GraphLook = IgnoredTargets | OneHotFactor | SparseFactor | SingleRows


def look_into(roots: Iterable[Any]) -> Iterator[GraphLook]:
    """Look at the graphs below these nodes, before the backward pass frees them."""
    waiting = [node for node in roots if node is not None]
    last = max((node._sequence_nr() for node in waiting), default=0)
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
                yield from mostly_zeros(node, _plain(node), last)
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
    is_wide = n_classes >= MANY and any(n_classes in one.shape for one in _plain(chain[-1]))
    if chain[-1].name() in PRODUCTS and only and is_wide:
        # torch tells it as an unsigned number
        value, made = (loss._saved_ignore_index + 2**63) % 2**64 - 2**63, loss._sequence_nr()
        n_ignored = int((target.detach().cpu().numpy() == value).sum())
        back = tuple(made - node._sequence_nr() for node in chain)
        yield IgnoredTargets(target.numel(), n_ignored, n_classes, value, back)
