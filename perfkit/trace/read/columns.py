"""A trace as numpy columns: one row per timed event, sorted by start.

Schema of :class:`Trace` (all columns have the same length, sorted by start, then by
descending duration, so that an enclosing event comes before what it encloses):

================= ======= ========================================================
column            dtype   meaning
================= ======= ========================================================
``start_us``      float64 start in µs after ``origin_us``
``dur_us``        float64 duration in µs, never negative
``name_id``       int32   index into ``names``
``category``      uint8   a :class:`Category`
``thread``        int32   index into ``threads``
``correlation``   int64   joins a runtime call to its device activity; -1 where absent
``external_id``   int64   the op a runtime call or device activity belongs to; -1 absent
``sequence``      int64   joins a forward op to its backward; -1 where absent
``stream``        int32   device stream; -1 where absent
``device``        int32   device index; -1 where absent
``n_bytes``       int64   bytes of a copy; -1 where absent
``stack_id``      int32   index into ``stacks`` (source lines, innermost first); -1 absent
``types_id``      int32   index into ``input_types`` (recorded shapes only); -1 absent
``dims_id``       int32   index into ``input_dims`` (recorded shapes only); -1 absent
``concrete_id``   int32   index into ``concrete_inputs``, of operators whose work needs them
``occupancy``     float32 estimated achieved occupancy of a kernel in %; NaN where absent
``blocks_per_sm`` float32 thread blocks of a kernel over multiprocessors; NaN where absent
``collective_id`` int32   index into ``collectives``; -1 where absent
================= ======= ========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from perfkit.base.words import fmt_ms, plural

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
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


#: The source of a trace that this process recorded.
RECORDED_HERE = "recorded here"


@dataclass(frozen=True, slots=True)
class Thread:
    """One row of the trace: a host thread, or a stream of a device."""

    pid: int | str
    tid: int | str
    name: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class Collective:
    """What a trace says about a collective; empty strings and -1 where it says nothing.

    Attributes:
        name: e.g. ``allreduce``.
        dtype: type of its elements, e.g. ``BFloat16``.
        n_in: elements that this rank puts in.
        n_out: elements that it gets out.
        group_size: ranks that take part.
        ranks: which, as text.
    """

    name: str
    dtype: str = ""
    n_in: int = -1
    n_out: int = -1
    group_size: int = -1
    ranks: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class MemoryEvents:
    """The ``[memory]`` instants of a trace, sorted by time; all columns have one length.

    Attributes:
        at_ns: int64 ns after the trace's origin.
        n_bytes: int64 bytes, negative where memory was given back.
        address: int64; -1 where the trace does not say.
        allocated: int64 bytes allocated on that device afterwards; -1 likewise.
        reserved: int64 bytes reserved there afterwards; -1 likewise.
        device_type: int32 number of the device's type in ``c10::DeviceType``; 0 is the host.
        device: int32 device index; -1 on the host.
        thread: int32 index into the trace's ``threads``.
    """

    at_ns: Int64
    n_bytes: Int64
    address: Int64
    allocated: Int64
    reserved: Int64
    device_type: Int32
    device: Int32
    thread: Int32

    @property
    def on_device(self) -> Bool:
        """Whether it is memory of a device rather than of the host."""
        return self.device_type > 0

    def __len__(self) -> int:
        return len(self.at_ns)


@dataclass(frozen=True, eq=False)
class Trace:
    """A Kineto trace, just recorded or from a file; the module's docstring has the schema."""

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
    dims_id: Int32
    input_dims: tuple[str, ...]
    concrete_id: Int32
    concrete_inputs: tuple[str, ...]
    occupancy: Float32
    blocks_per_sm: Float32
    collective_id: Int32
    collectives: tuple[Collective, ...]
    memory: MemoryEvents
    origin_us: float
    #: correlation of a call that waits for a CUDA event, or has a stream wait for one -> the stream
    #: on which the event was recorded, and the correlation of the call that recorded it (-1 where
    #: unknown); filled where the trace has the category cuda_sync
    waits: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str = field(default="", metadata={"share": "file name"})
    warnings: tuple[str, ...] = ()
    #: category -> number of timed events, of a device's categories that perfkit cannot read
    unread: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_us)

    def __repr__(self) -> str:
        span_ms = float((self.start_us + self.dur_us).max()) / 1e3 if len(self) else 0.0
        return (
            f"<Trace {self.source or 'in memory'}: {plural(len(self), 'event')} over "
            f"{fmt_ms(span_ms)}>"
        )

    @cached_property
    def start_ns(self) -> Int64:
        """Starts in integer ns after the origin: sums over these are exact."""
        return np.rint(self.start_us * 1e3).astype(np.int64)

    @cached_property
    def end_ns(self) -> Int64:
        """Ends in integer ns after the origin."""
        return self.start_ns + np.rint(self.dur_us * 1e3).astype(np.int64)

    def is_a(self, *categories: Category) -> Bool:
        """Which rows are of one of these categories; not to be written to."""
        found: Bool | None = self.answers.get(categories)
        if found is None:
            table = np.zeros(256, dtype=np.bool_)
            table[list(categories)] = True
            found = self.answers[categories] = table[self.category]
            found.flags.writeable = False
        return found

    @cached_property
    def answers(self) -> dict[Any, Any]:
        """What was asked before, by question: several answers ask the same of a trace."""
        return {}

    @cached_property
    def gpu(self) -> Mapping[str, Any]:
        """What its file says about its first device: name, computeMajor …; empty without one."""
        devices = self.metadata.get("deviceProperties")
        first = devices[0] if isinstance(devices, list) and devices else {}
        return first if isinstance(first, dict) else {}

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

    def begins(self, *prefixes: str) -> Bool:
        """Which rows have a name that begins with one of these."""
        return self.named(lambda name: name.startswith(prefixes))

    def holds(self, part: str) -> Bool:
        """Which rows have a name with this part in it."""
        return self.named(lambda name: part in name)

    @property
    def has_device(self) -> bool:
        """Whether any kernel, copy or memset of a device was recorded."""
        return bool(self.is_a(*DEVICE_CATEGORIES).any())


_Rest = ParamSpec("_Rest")
_Answer = TypeVar("_Answer")


def asked_once(
    question: Callable[Concatenate[Trace, _Rest], _Answer],
) -> Callable[Concatenate[Trace, _Rest], _Answer]:
    """Answer a question to a trace and its steps once: several answers ask the same; a decorator.

    What it returns is everybody's: not to be written to.
    """

    @wraps(question)
    def ask(trace: Trace, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Answer:
        asked = question.__qualname__, *args, *kwargs.items()
        if asked not in trace.answers:
            trace.answers[asked] = question(trace, *args, **kwargs)
        found: _Answer = trace.answers[asked]
        return found

    return ask
