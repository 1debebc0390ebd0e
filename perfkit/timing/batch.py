"""How many samples a batch holds: the first dimension of the first tensor or array in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["SampleCounter"]

_DEEPEST = 4

_Step = tuple[Callable[[Any, Any], Any], Any]


class SampleCounter:
    """Counts the samples of successive batches; remembers where the first tensor was found.

    Only ``shape`` is read, which is host metadata: no device is touched. Looked into are lists,
    tuples, mappings and dataclasses. A tuple of equally long tuples is taken for the idiom
    ``tuple(zip(*samples))`` of detection models, whose length counts.
    """

    __slots__ = ("_path",)

    def __init__(self) -> None:
        self._path: tuple[_Step, ...] | None = None

    def __call__(self, batch: Any) -> int | None:
        """Samples of this batch; None where nothing in it has a first dimension."""
        path = self._path
        if path is not None:
            try:
                found = batch
                for get, key in path:
                    found = get(found, key)
                return int(found.shape[0])
            except (AttributeError, IndexError, KeyError, TypeError):
                pass  # another kind of batch: look again
        path = _find(batch, 0)
        self._path = path
        if path is not None:
            return self(batch)
        if _zipped(batch):
            return len(batch[0])
        return None


def _find(value: Any, depth: int) -> tuple[_Step, ...] | None:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) > 0 and isinstance(shape[0], int):
        return ()
    if depth == _DEEPEST or (depth == 0 and _zipped(value)):
        return None
    for step in _steps_into(value):
        get, key = step
        deeper = _find(get(value, key), depth + 1)
        if deeper is not None:
            return (step, *deeper)
    return None


def _steps_into(value: Any) -> list[_Step]:
    if isinstance(value, (list, tuple)):
        return [(_item, i) for i in range(min(len(value), 16))]
    if isinstance(value, Mapping):
        return [(_item, key) for key in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(getattr, field.name) for field in dataclasses.fields(value)]
    return []


def _item(value: Any, key: Any) -> Any:
    return value[key]


def _zipped(batch: Any) -> bool:
    return (
        type(batch) is tuple
        and len(batch) > 0
        and all(type(part) is tuple for part in batch)
        and len({len(part) for part in batch}) == 1
    )
