"""One recorded call, and the work that is counted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfkit.limit.arguments import Tensor
from perfkit.limit.flops import counted


@dataclass(frozen=True)
class Work:
    """What one call must do at least.

    Attributes:
        family: e.g. ``"matrix product"``, ``"elementwise"``.
        flops: of matrix products, convolutions and attention, as ``torch.utils.flop_counter``
            counts; 0 for all else.
        least_flops: the same without what a causal mask skips.
        read_bytes, written_bytes: at least.
        dtype: of the first tensor; the format in which FLOPs are done.
        updated_bytes: those that are read and written in the same place.
    """

    family: str
    flops: float
    least_flops: float
    read_bytes: int
    written_bytes: int
    dtype: str
    updated_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def working_set_bytes(self) -> int:
        """Of all tensors together: what is updated in place is there once."""
        return self.n_bytes - self.updated_bytes


@dataclass(frozen=True)
class Call:
    """One call of an operator, and what its counter makes of it.

    Attributes:
        name: e.g. ``"aten::addmm"``.
        base: the same without its namespace.
        args: tensors, lists of tensors, None.
        values: arguments that are no tensors, as texts.
        output: shape of the result where that is known.
    """

    name: str
    base: str
    args: Sequence[Any]
    values: Sequence[Any]
    output: tuple[int, ...] | None

    def tensor(self, at: int) -> Tensor:
        found = self.args[at]
        if not isinstance(found, Tensor):
            raise TypeError(f"argument {at} is not a tensor")
        return found

    @property
    def tensors(self) -> list[Tensor]:
        """All that are tensors by themselves."""
        return [a for a in self.args if isinstance(a, Tensor)]

    @property
    def lists(self) -> list[list[Tensor]]:
        return [a for a in self.args if isinstance(a, list) and a]

    def plain(
        self, family: str, read: int, written: int, dtype: str = "", *, updated: int = 0
    ) -> Work:
        dtype = dtype or self.tensors[0].dtype
        return Work(family, 0.0, 0.0, int(read), int(written), dtype, int(updated))

    def matrix(
        self, family: str, read: int, written: int, skipped: float = 0.0, *, dtype: str = ""
    ) -> Work:
        dims = [list(a.shape) if isinstance(a, Tensor) else [] for a in self.args]
        flops = counted(self.name, dims, self.values)
        if flops is None:
            raise ValueError("the shapes do not say")
        dtype = dtype or self.tensors[0].dtype
        return Work(family, flops, flops * (1 - skipped), int(read), int(written), dtype)
