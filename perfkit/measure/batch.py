"""How many samples a batch has: the first dimension of the first tensor or array in it."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from perfkit.base.instrument import Instrument
from perfkit.base.padding import Padding

# How deep to look into a batch: a mapping of a million entries must cost no more than one of ten.
_DEEPEST = 4
_WIDEST = 16
_MOST_LOOKS = 64
# Smaller batches and shorter rows are no padded sequences.
_LEAST_ROWS, _LEAST_LENGTH = 4, 16
# This many rows end in the same value: it is what they are padded with.
_ENDS_ALIKE = 0.5
# A larger batch is looked at in part.
_MOST_ELEMENTS = 4_000_000

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
                return int(found.shape[0])
            except Exception:  # another kind of batch: look again
                self._path = None
        try:
            graphs = getattr(batch, "num_graphs", None)
            if type(graphs) is int and graphs > 0:
                return graphs
            if _zipped(batch):
                return len(batch[0])
            for path, part in _parts(batch):
                shape = part.shape
                if isinstance(shape, tuple) and shape and isinstance(shape[0], int):
                    self._path = path
                    return shape[0]
        except Exception:
            self._path = None
        return None


class Batches:
    """What the batches of DataLoaders hold, and where the last one is from."""

    def __init__(self) -> None:
        self.instrument = Instrument("the look at batches")
        self.came = self.instrument.hook(self._came)
        self.source: weakref.ref[Any] | None = None
        self._count = SampleCounter()
        self._samples: int | None = None

    def _came(self, batch: Any, source: Any) -> None:
        if self.source is None or self.source() is not source:
            self.source = weakref.ref(source)
        n = self._count(batch)
        if n is not None:
            self._samples = (self._samples or 0) + n

    def take(self) -> int | None:
        """Samples since the last call; None where no batch had a size."""
        taken, self._samples = self._samples, None
        return taken


def parts_of(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, as far into it as :class:`SampleCounter` looks."""
    return [part for _, part in _parts(batch)]


def n_tensors(batch: Any, *, at_most: int = 2000) -> int:
    """How many tensors there are in lists, tuples and mappings, however many of these."""
    found, left = 0, [batch]
    while left and found < at_most:
        value = left.pop()
        if hasattr(value, "untyped_storage"):
            found += 1
        elif isinstance(value, (list, tuple)):
            left += value[:at_most]
        elif isinstance(value, Mapping):
            left += islice(value.values(), at_most)
    return found


def _parts(
    value: Any, path: tuple[_Step, ...] = (), left: list[int] | None = None
) -> Iterator[tuple[tuple[_Step, ...], Any]]:
    left = [_MOST_LOOKS] if left is None else left
    left[0] -= 1
    if getattr(value, "shape", None) is not None:
        yield path, value
    elif len(path) < _DEEPEST:
        for get, key in _steps_into(value):
            if left[0] <= 0:
                return
            yield from _parts(get(value, key), (*path, (get, key)), left)


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


def most_padded(batch: Any) -> Padding | None:
    """Of the most padded part, or of one of its length that has a longer row; None without one."""
    found = []
    for path, part in _parts(batch):
        if (one := padding(part)) is not None:
            code = (f"[{key!r}]" if get is operator.getitem else f".{key}" for get, key in path)
            found.append(dataclasses.replace(one, path="".join(code)))
    most = max(found, key=lambda one: one.share, default=None)
    return most and max((x for x in found if x.length == most.length), key=lambda x: x.longest)


def padding(batch: Any) -> Padding | None:
    """The padding of one part of a batch on the host; None where its rows do not end alike.

    Rows are the first dimension and positions the second, at whose end (or begin) whole stretches
    hold one value. Reads the memory without an operator of torch's.
    """
    if getattr(getattr(batch, "device", None), "type", "cpu") != "cpu":
        return None
    if hasattr(batch, "detach"):
        if batch.layout.__str__() != "torch.strided" or str(batch.dtype) == "torch.bfloat16":
            return None
        batch = batch.detach().numpy()
    if not isinstance(batch, np.ndarray) or batch.ndim not in (2, 3):
        return None
    n, length = batch.shape[:2]
    if batch.dtype.kind not in "iuf" or n < _LEAST_ROWS or length < _LEAST_LENGTH:
        return None
    if batch.size > _MOST_ELEMENTS:
        batch = batch[: max(_MOST_ELEMENTS * batch.shape[0] // batch.size, _LEAST_ROWS)]
    found = [_at_the_end(batch), _at_the_end(batch[:, ::-1], at_end=False)]
    return max((f for f in found if f is not None), key=lambda f: f.share, default=None)


def _at_the_end(rows: np.ndarray[Any, Any], *, at_end: bool = True) -> Padding | None:
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
    share = float(1 - used.sum() / (n * length))
    return Padding(n, length, share, int(used.max()), float(value), at_end)
