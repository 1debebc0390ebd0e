"""The arguments of a recorded call: shapes and dtypes, as a trace holds them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

# As Kineto writes them, and torch's names.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
#: dtype → bytes of an element.
SIZES = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_LISTS = ("TensorList", "GenericList")


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of all elements."""
        return self.n * SIZES[self.dtype]


def arguments(dims: str, types: str) -> list[Any]:
    """Each argument as a Tensor, a list of Tensors, or None for anything else.

    The dtype of a list's tensors is ``""``, unless perfkit recorded it (``TensorList[float32]``).

    Args:
        dims: shapes as recorded, JSON.
        types: dtypes as recorded, separated by commas.

    Raises:
        ValueError: they are not what a trace holds.
    """
    shapes = json.loads(dims)
    if not isinstance(shapes, list):
        raise ValueError(f"shapes are not a list: {dims:.60}")
    kinds = types.split(",")
    found: list[Any] = []
    for at, shape in enumerate(shapes):
        kind = kinds[at].strip() if at < len(kinds) else ""
        if kind in _DTYPES and _is_shape(shape):
            found.append(Tensor(tuple(shape), _DTYPES[kind]))
        elif kind.startswith(_LISTS) and isinstance(shape, list) and all(map(_is_shape, shape)):
            dtype = kind.partition("[")[2].rstrip("]")  # where perfkit recorded it
            found.append([Tensor(tuple(one), dtype if dtype in SIZES else "") for one in shape])
        else:
            found.append(None)
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)
