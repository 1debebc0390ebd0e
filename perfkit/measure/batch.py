"""How many samples a batch has: the first dimension of the first tensor or array in it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

# How deep to look into a batch: a mapping of a million entries must cost no more than one of ten.
_DEEPEST = 4
_WIDEST = 16
_MOST_LOOKS = 64

_Step = tuple[Callable[[Any, Any], Any], Any]


class SampleCounter:
    """Counts the samples of successive batches; remembers where the first tensor was found.

    It reads only ``shape``, which is host metadata: no device is touched. It looks into the first
    16 entries of lists, tuples, mappings, dataclasses and other objects. A tuple of equally long
    tuples is the ``tuple(zip(*samples))`` idiom of detection models: their length is the number of
    samples. A batch of graphs (``num_graphs``, PyTorch Geometric) has one sample per graph.

    Batches are user objects, and looking at one may run user code: if that raises anything, the
    size is unknown.
    """

    __slots__ = ("_path",)

    def __init__(self) -> None:
        self._path: tuple[_Step, ...] | None = None

    def __call__(self, batch: Any) -> int | None:
        """Samples in this batch; None if nothing in it has a first dimension. Never raises."""
        path = self._path
        if path is not None:  # asked in every step: without a call of ours
            try:
                found = batch
                for get, key in path:
                    found = get(found, key)
                size = int(found.shape[0])
                if size >= 0:
                    return size
            except Exception:  # another kind of batch: look again
                self._path = None
        try:
            return self._search(batch)
        except Exception:
            self._path = None
            return None

    def _search(self, batch: Any) -> int | None:
        graphs = getattr(batch, "num_graphs", None)
        if type(graphs) is int and graphs > 0:
            return graphs
        path = _find(batch, 0, [_MOST_LOOKS])
        if path is not None:
            self._path = path
            found = batch
            for get, key in path:
                found = get(found, key)
            return _first_dimension(found)
        if _zipped(batch):
            return len(batch[0])
        return None


def parts_of(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, as far into it as :class:`SampleCounter` looks.

    May raise what the batch raises.
    """
    found: list[Any] = []
    _collect(batch, 0, [_MOST_LOOKS], found)
    return found


def _collect(value: Any, depth: int, looks: list[int], into: list[Any]) -> None:
    if looks[0] <= 0:
        return
    looks[0] -= 1
    if getattr(value, "shape", None) is not None:
        into.append(value)
    elif depth < _DEEPEST:
        for get, key in _steps_into(value):
            _collect(get(value, key), depth + 1, looks, into)


def _first_dimension(value: Any) -> int:
    size = int(value.shape[0])
    if size < 0:
        raise ValueError(size)
    return size


def _find(value: Any, depth: int, looks: list[int]) -> tuple[_Step, ...] | None:
    looks[0] -= 1
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) > 0 and isinstance(shape[0], int):
        return ()
    if depth == _DEEPEST or (depth == 0 and _zipped(value)):
        return None
    for step in _steps_into(value):
        if looks[0] <= 0:
            return None
        get, key = step
        deeper = _find(get(value, key), depth + 1, looks)
        if deeper is not None:
            return (step, *deeper)
    return None


def _steps_into(value: Any) -> list[_Step]:
    if isinstance(value, (list, tuple)):
        return [(operator.getitem, i) for i in range(min(len(value), _WIDEST))]
    if isinstance(value, Mapping):
        return [(operator.getitem, key) for key in islice(value, _WIDEST)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(getattr, field.name) for field in dataclasses.fields(value)[:_WIDEST]]
    own = None if isinstance(value, (type, ModuleType)) else getattr(value, "__dict__", None)
    return [(getattr, name) for name in islice(own, _WIDEST)] if isinstance(own, dict) else []


def _zipped(batch: Any) -> bool:
    return (
        type(batch) is tuple
        and 0 < len(batch) <= _WIDEST
        and all(type(part) is tuple for part in batch)
        and len({len(part) for part in batch}) == 1
    )
