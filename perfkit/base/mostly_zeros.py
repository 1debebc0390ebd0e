"""Factors of matrix products that are hardly more than zeros: one-hot rows, a graph's adjacency."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Of fewer classes, or columns, nothing large is made.
MANY = 256
# So many rows are not one-hot by chance.
_ROWS = 64
# A product of a sparse matrix takes less from about so few numbers on that are not zero.
_FEW = 0.01

#: What a product of a sparse matrix is.
AS_SPARSE = (
    "adjacency = adjacency.to_sparse()  # once, where it stays the same; then as before:\n"
    "y = adjacency @ x\n"
    "# where each batch has its own: made of its places and values, never with the zeros\n"
    "places = torch.stack((rows, columns))\n"
    "adjacency = torch.sparse_coo_tensor(places, values, (n_rows, n_columns))"
)


@dataclass(frozen=True)
class OneHotFactor:
    """One-hot rows that are multiplied by a matrix, which is or is made of a parameter."""

    n_classes: int
    table: weakref.ref[Any]


@dataclass(frozen=True)
class SparseFactor:
    """A matrix of a product of which so much is not zero."""

    n_rows: int
    n_columns: int
    share: float
    back: int  # how long before the loss the product was made


def mostly_zeros(
    product: Any, saved: Sequence[Any], last: int
) -> Iterator[OneHotFactor | SparseFactor]:
    """What a product's node in a graph has saved for the gradient of its right factor.

    Args:
        last: the number of the node that was made last.
    """
    (left, _), (right, _) = product.next_functions[-2:]
    for rows in saved if left is None and right is not None else ():
        if rows.ndim == 2 and rows.shape[1] >= MANY:
            some = rows.detach()[:_ROWS].cpu().float().numpy()
            filled = np.count_nonzero(some, axis=1)
            if (filled == 1).all() and (some.max(axis=1) == 1).all():
                while not hasattr(right, "variable"):
                    right = next(one for one, _ in right.next_functions if one is not None)
                yield OneHotFactor(rows.shape[1], weakref.ref(right.variable))
            elif 0 < filled.sum() < _FEW * some.size:
                share, back = float(filled.sum() / some.size), last - product._sequence_nr()
                yield SparseFactor(rows.shape[0], rows.shape[1], share, back)
