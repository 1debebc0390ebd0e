"""How much of a padded batch is padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Smaller batches and shorter rows are no padded sequences.
_LEAST_ROWS, _LEAST_LENGTH = 4, 16
# This many rows end in the same value: it is what they are padded with.
_ENDS_ALIKE = 0.5
# A larger batch is looked at in part.
_MOST_ELEMENTS = 4_000_000


@dataclass(frozen=True)
class Padding:
    """Padding of a batch of sequences.

    Attributes:
        rows, length: the batch's size.
        share: of its positions that are padding, 0 to 1.
        to_longest: the same if it were padded to its longest row only.
        value: what it is padded with.
    """

    rows: int
    length: int
    share: float
    to_longest: float
    value: float

    @property
    def longest(self) -> int:
        """Positions of the batch's longest row."""
        used = (1 - self.share) * self.rows * self.length
        return round(used / (self.rows * (1 - self.to_longest)))


def padding(batch: Any) -> Padding | None:
    """The padding of one part of a batch on the host; None where its rows do not end alike.

    Rows are the first dimension and positions the second, at whose end (or begin) whole stretches
    hold one value. Reads the memory without an operator of torch's.

    Args:
        batch: a tensor or an array, on the host.
    """
    if getattr(getattr(batch, "device", None), "type", "cpu") != "cpu":
        return None
    if hasattr(batch, "detach"):
        if batch.layout.__str__() != "torch.strided" or str(batch.dtype) == "torch.bfloat16":
            return None
        batch = batch.detach().numpy()
    if (
        not isinstance(batch, np.ndarray)
        or batch.ndim not in (2, 3)
        or batch.dtype.kind not in "iuf"
    ):
        return None
    if batch.shape[0] < _LEAST_ROWS or batch.shape[1] < _LEAST_LENGTH:
        return None
    if batch.size > _MOST_ELEMENTS:
        batch = batch[: max(_MOST_ELEMENTS * batch.shape[0] // batch.size, _LEAST_ROWS)]
    found = [_at_the_end(batch), _at_the_end(batch[:, ::-1])]
    return max((f for f in found if f is not None), key=lambda f: f.share, default=None)


def _at_the_end(rows: np.ndarray[Any, Any]) -> Padding | None:
    n, length = rows.shape[:2]
    last = rows[:, -1].reshape(n, -1)
    if rows.ndim == 3 and last.any(axis=1).mean() > _ENDS_ALIKE:
        return None  # frames of features are padded with zeros
    values, counts = np.unique(last[:, 0], return_counts=True)
    value = values[counts.argmax()]
    if counts.max() < _ENDS_ALIKE * n:
        return None
    holds = rows != value
    if rows.ndim == 3:
        holds = holds.any(axis=2)
    used = np.where(holds.any(axis=1), length - holds[:, ::-1].argmax(axis=1), 0)
    if not used.any() or used.min() == length:
        return None
    return Padding(
        rows=n,
        length=length,
        share=float(1 - used.sum() / (n * length)),
        to_longest=float(1 - used.sum() / (n * used.max())),
        value=float(value),
    )
