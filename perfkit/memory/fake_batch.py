"""Batches of any size as fake tensors, from the real ones of two sizes.

A user's ``make_batch`` may read a data set, which has an end: it is asked for the batch that is
wanted and for half of it, never for more. Where every dimension grows evenly with the number of
samples, a batch of any other size follows from those two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from perfkit.base import torch_compat


class Batches:
    """What ``make_batch`` gives, for any number of samples.

    Attributes:
        takes_size: ``make_batch`` takes the number of samples.
        may_grow: other sizes than the one wanted can be predicted.
        why_not: the reason where they cannot although ``takes_size``; else empty.
    """

    def __init__(
        self, mode: Any, make_batch: Callable[..., Any], batch: int, *, takes_size: bool
    ) -> None:
        """Calls ``make_batch`` for ``batch`` and, where it takes a size, for half of it."""
        self._mode = mode
        self._make = make_batch
        self._asked = batch
        self.takes_size = self.may_grow = takes_size
        self.why_not = ""
        self._leaves, self._spec = self._flat(make_batch(batch) if takes_size else make_batch())
        self._slopes: list[Any] | None = None
        if takes_size:
            self._learn(max(batch // 2, 1) if batch > 1 else 2)

    @property
    def grows_evenly(self) -> bool:
        """A batch of any size follows from the two that were made."""
        return self._slopes is not None

    def of(self, n: int) -> Any:
        """A new batch of ``n`` samples, as fake CPU tensors that share no storage with another."""
        if self._slopes is not None:
            # by identity: a tensor that is input and target stays one
            grown: dict[tuple[int, Any], Any] = {}
            for leaf, slope in zip(self._leaves, self._slopes, strict=True):
                if (id(leaf), slope) not in grown:
                    grown[id(leaf), slope] = _grown(leaf, slope, n - self._asked)
            pairs = zip(self._leaves, self._slopes, strict=True)
            return self._fresh([grown[id(leaf), slope] for leaf, slope in pairs], self._spec)
        if n == self._asked or not self.takes_size:
            return self._fresh(self._leaves, self._spec)
        return self._fresh(*self._flat(self._make(n)))

    def _learn(self, other: int) -> None:
        """See what grows with the number of samples, and by how much for each."""
        try:
            leaves, spec = self._flat(self._make(other))
        except Exception as error:
            if other < self._asked:
                raise
            self.may_grow = False
            self.why_not = f"make_batch({other}) raised {type(error).__name__}"
            return
        if spec != self._spec:
            return  # a list of samples, for example: other sizes must be made to be seen
        step = self._asked - other
        slopes = [_slope(a, b, step) for a, b in zip(leaves, self._leaves, strict=True)]
        if any(slope is None for slope in slopes):
            self.why_not = (
                f"the sizes in make_batch({self._asked}) and make_batch({other}) are not in "
                "step with the number of samples (is the data set smaller than the batch?)"
            )
        elif not any(isinstance(slope, tuple) and any(slope) for slope in slopes):
            self.why_not = (
                f"make_batch({self._asked}) and make_batch({other}) give tensors of the same size"
            )
        else:
            self._slopes = slopes
        self.may_grow = not self.why_not

    def _flat(self, batch: Any) -> tuple[list[Any], TreeSpec]:
        if isinstance(batch, Mapping):  # such as the BatchEncoding of a tokenizer
            batch = dict(batch)
        with self._mode:
            return tree_flatten(tree_map_only(Tensor, self._fake, batch))

    def _fake(self, tensor: Tensor) -> Tensor:
        fake: Tensor = tensor if torch_compat.is_fake(tensor) else self._mode.from_tensor(tensor)
        # also where it is made on a GPU: the step is run on fake CPU tensors
        stays = fake.device.type in ("cpu", "meta")
        return fake if stays else torch.empty_like(fake, device="cpu")

    def _fresh(self, leaves: list[Any], spec: TreeSpec) -> Any:
        """New tensors of these shapes: a view of a data set is copied to a GPU as it is shown."""
        made: dict[int, Tensor] = {}

        def new(tensor: Tensor) -> Tensor:
            if tensor.layout != torch.strided:
                return tensor
            if id(tensor) not in made:
                made[id(tensor)] = torch.empty_like(tensor)
            return made[id(tensor)]

        return tree_map_only(Tensor, new, tree_unflatten(leaves, spec))


def _slope(smaller: Any, larger: Any, samples: int) -> Any:
    """What one more sample adds to each dimension, or to a number; None where it is uneven."""
    if isinstance(larger, Tensor):
        if not isinstance(smaller, Tensor) or smaller.dim() != larger.dim():
            return None
        slopes = [_even(a, b, samples) for a, b in zip(smaller.shape, larger.shape, strict=True)]
        return None if None in slopes else tuple(slopes)
    if type(larger) is int and type(smaller) is int:
        return _even(smaller, larger, samples)
    return 0


def _even(smaller: int, larger: int, samples: int) -> int | None:
    slope, rest = divmod(larger - smaller, samples)
    return slope if rest == 0 and slope >= 0 else None


def _grown(leaf: Any, slope: Any, more: int) -> Any:
    if isinstance(leaf, Tensor) and any(slope):
        shape = [size + each * more for size, each in zip(leaf.shape, slope, strict=True)]
        last = leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last)
        layout = (
            torch.channels_last if last and not leaf.is_contiguous() else torch.contiguous_format
        )
        return torch.empty(shape, dtype=leaf.dtype, device=leaf.device, memory_format=layout)
    return leaf + slope * more if type(leaf) is int else leaf
