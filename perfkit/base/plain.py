"""A result's numbers as plain JSON types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
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


def fields(value: Any, *also: str, without: Collection[str] = (), **instead: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain JSON types; those with ``repr=False`` are left out.

    Args:
        also: properties of it to add.
        instead: values under names of their own, or in place of the fields of these names.
    """
    own = (f.name for f in dataclasses.fields(value) if f.repr)
    names = [*(name for name in own if name not in (*without, *instead)), *also]
    return {name: plain(item) for name, item in instead.items()} | {
        name: plain(getattr(value, name)) for name in names
    }


def _key(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
