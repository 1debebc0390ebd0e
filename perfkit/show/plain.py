"""A result's numbers as plain JSON types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """``value`` in what JSON has: no NaN, no infinity, no array, no key that is not text.

    A dataclass gives its ``to_dict()``, or else its fields; anything else that JSON lacks its
    ``str``.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if callable(getattr(value, "to_dict", None)):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value):
        return plain(fields(value))
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if callable(getattr(value, "tolist", None)):
        return plain(value.tolist())  # an array or a number of numpy
    return value.as_posix() if isinstance(value, PurePath) else str(value)


def fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain JSON types."""
    return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}


def _key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
