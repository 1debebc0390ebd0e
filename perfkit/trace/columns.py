"""A trace as numpy columns: one row per timed event, sorted by start.

Schema of :class:`Trace` (all columns have the same length, sorted by start, then by
descending duration, so that an enclosing event stands before what it encloses):

=============== ======= ==========================================================
column          dtype   meaning
=============== ======= ==========================================================
``start_us``    float64 start in µs after ``origin_us``
``dur_us``      float64 duration in µs, never negative
``name_id``     int32   index into ``names``
``category``    uint8   a :class:`Category`
``thread``      int32   index into ``threads``
``correlation`` int64   joins a runtime call to its device activity; -1 where absent
``external_id`` int64   the op a runtime call or device activity belongs to; -1 absent
``sequence``    int64   joins a forward op to its backward; -1 where absent
``stream``      int32   device stream; -1 where absent
``device``      int32   device index; -1 where absent
``n_bytes``     int64   bytes of a copy; -1 where absent
``stack_id``    int32   index into ``stacks`` (source lines, innermost last); -1 absent
``types_id``    int32   index into ``input_types`` (recorded shapes only); -1 absent
=============== ======= ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class Category(IntEnum):
    """What kind of event a row is, whatever the trace's year called it."""

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    DEVICE_ANNOTATION = 8
    DEVICE_SYNC = 9
    OVERHEAD = 10


HOST_CATEGORIES = (Category.OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)
DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


@dataclass(frozen=True, slots=True)
class Thread:
    """One row of the trace: a host thread, or a stream of a device."""

    pid: int | str
    tid: int | str
    name: str = ""
    process: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """A Kineto trace, just recorded or from a file; the schema stands in this module's head."""

    start_us: Float64
    dur_us: Float64
    name_id: Int32
    names: tuple[str, ...]
    category: UInt8
    thread: Int32
    threads: tuple[Thread, ...]
    correlation: Int64
    external_id: Int64
    sequence: Int64
    stream: Int32
    device: Int32
    n_bytes: Int64
    stack_id: Int32
    stacks: tuple[str, ...]
    types_id: Int32
    input_types: tuple[str, ...]
    origin_us: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_us)

    def __repr__(self) -> str:
        span_ms = float((self.start_us + self.dur_us).max()) / 1e3 if len(self) else 0.0
        return f"<Trace {self.source or 'in memory'}: {len(self):,} events over {span_ms:,.1f} ms>"

    @cached_property
    def start_ns(self) -> Int64:
        """Starts in integer ns after the origin: sums over these are exact."""
        return np.rint(self.start_us * 1e3).astype(np.int64)

    @cached_property
    def end_ns(self) -> Int64:
        """Ends in integer ns after the origin."""
        return self.start_ns + np.rint(self.dur_us * 1e3).astype(np.int64)

    def is_a(self, *categories: Category) -> Bool:
        """Which rows are of one of these categories."""
        table = np.zeros(256, dtype=np.bool_)
        table[list(categories)] = True
        return table[self.category]

    def name_table(self, predicate: Any) -> Bool:
        """For every entry of ``names``: does ``predicate(name)`` hold?

        Names are few (thousands) where events are many (millions), so questions about
        names are asked once per name and then looked up per event.
        """
        return np.fromiter((bool(predicate(n)) for n in self.names), np.bool_, len(self.names))

    def named(self, predicate: Any) -> Bool:
        """Which rows have a name for which ``predicate(name)`` holds."""
        if not len(self):
            return np.zeros(0, dtype=np.bool_)
        return self.name_table(predicate)[self.name_id]

    @property
    def has_device(self) -> bool:
        """Whether any kernel, copy or memset of a device was recorded."""
        return bool(self.is_a(*DEVICE_CATEGORIES).any())
