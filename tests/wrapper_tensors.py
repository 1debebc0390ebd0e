"""A tensor subclass that has no memory of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pair(Tensor):
    """A wrapper subclass: two inner tensors behind one outer without memory."""

    a: Tensor
    b: Tensor

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor, requires_grad: bool = False) -> Pair:
        pair: Pair = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.shape, dtype=a.dtype, device=a.device, requires_grad=requires_grad
        )
        pair.a, pair.b = a, b
        return pair

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def half(value: Any, name: str) -> Any:
            return getattr(value, name) if isinstance(value, Pair) else value

        results = [func(*[half(v, name) for v in args], **(kwargs or {})) for name in ("a", "b")]
        if isinstance(results[0], Tensor):
            return args[0] if results[0] is getattr(args[0], "a", None) else Pair(*results)
        return results[0]
