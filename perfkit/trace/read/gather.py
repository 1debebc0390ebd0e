"""From decoded events to columns, piece by piece.

The structs name only what is needed of an event; their fields are in the order in which
Kineto writes them, in which msgspec finds them fastest. Text that repeats itself (shapes,
stacks) stays raw JSON until its distinct values are known.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from perfkit.base.device import profiler_names
from perfkit.base.errors import TraceError
from perfkit.base.printable import printable
from perfkit.base.words import fmt_count, plural
from perfkit.trace.read.columns import Category, Collective, MemoryEvents, Thread, Trace

_Loose = int | float | str | None
_RAW = msgspec.Raw()


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "external_old": "external id",
        "concrete": "Concrete Inputs",
        "types": "Input type",
        "dims": "Input Dims",
        "sequence": "Sequence number",
        "stack": "Call stack",
        "n_bytes": "bytes",
        "blocks_per_sm": "blocks per SM",
        "occupancy": "est. achieved occupancy %",
        "collective": "Collective name",
        "n_in": "In msg nelems",
        "n_out": "Out msg nelems",
        "group_size": "Group size",
        "ranks": "Process Group Ranks",
        "memory_bytes": "Bytes",
        "address": "Addr",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "device_id": "Device Id",
        "waits_for_record": "wait_on_cuda_event_record_corr_id",
        "waits_for_stream": "wait_on_stream",
    },
):
    """What is read of an event's ``args``."""

    external: _Loose = -1
    concrete: msgspec.Raw = _RAW
    types: msgspec.Raw = _RAW
    dims: msgspec.Raw = _RAW
    device: _Loose = -1
    stream: _Loose = -1
    correlation: _Loose = -1
    blocks_per_sm: _Loose = math.nan
    occupancy: _Loose = math.nan
    n_bytes: _Loose = -1
    sequence: _Loose = -1
    stack: msgspec.Raw = _RAW
    external_old: _Loose = -1
    collective: _Loose = None
    dtype: _Loose = None
    n_in: _Loose = -1
    n_out: _Loose = -1
    group_size: _Loose = -1
    ranks: Any = None
    memory_bytes: _Loose = 0
    address: _Loose = -1
    allocated: _Loose = -1
    reserved: _Loose = -1
    device_type: _Loose = 0
    device_id: _Loose = -1
    name: _Loose = None  # of metadata events: what the process or thread is called
    labels: _Loose = None
    waits_for_record: _Loose = -1  # of cuda_sync events
    waits_for_stream: _Loose = -1


class Event(msgspec.Struct, gc=False):
    """What is read of an event."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = math.nan
    dur: float = 0.0
    args: Args | None = None


_CATEGORIES = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "overhead": Category.OVERHEAD,
}
# Work of devices whose traces are of another kind: Meta's MTIA, Intel's Gaudi, Glow.
_OF_OTHER_DEVICES = re.compile(r"^(mtia|hpu|glow)_", re.IGNORECASE)
# The process in exports of torch.autograd.profiler before Kineto, whose events have no category.
_OF_THE_OLD_PROFILER = "CPU functions"
_KERNEL_CATEGORIES = [name for name, kind in _CATEGORIES.items() if kind == Category.KERNEL]


def _categories() -> dict[str, Category]:
    """Those of every trace, and what the devices that perfkit knows add."""
    found = dict(_CATEGORIES)
    for names in profiler_names():
        found |= dict.fromkeys(names.runtime_categories, Category.RUNTIME)
        found |= dict.fromkeys(names.sync_categories, Category.DEVICE_SYNC)
    return found


# Traces before 2022 call labels "Operator" too; these names are labels in every year.
_LABELS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")

# ns kept exactly in int64 and in float64: a day each side of the first event, 100 days at most.
_LONGEST_US = 100 * 86_400 * 1e6

# Concrete inputs differ from call to call (scalars); they are kept where FLOPs or bytes need them.
_NEEDS_CONCRETE = re.compile(
    r"conv|attention|pool|embedding|index_select|norm_backward|aten::batch_norm|upsample|"
    r"_pad[123]d",
    re.IGNORECASE,
)

_NOTHING = Args()
# Columns of the allocator's events, after the time.
_OF_MEMORY: dict[str, Any] = {
    **dict.fromkeys(("n_bytes", "address", "allocated", "reserved"), np.int64),
    **dict.fromkeys(("device_type", "device", "pid", "tid"), np.int32),
}
# Columns that are as the events have them.
_INTEGERS: dict[str, Any] = {
    "correlation": np.int64,
    "sequence": np.int64,
    "stream": np.int32,
    "device": np.int32,
    "n_bytes": np.int64,
}


def _numbered() -> defaultdict[Any, int]:
    """A dictionary that numbers what it is asked for, in order of appearance."""
    return defaultdict(itertools.count().__next__)


class Gathered:
    """Columns under construction."""

    def __init__(self) -> None:
        self._names, self._cats = _numbered(), _numbered()
        self._pids, self._tids = _numbered(), _numbered()
        self._texts = {field: _numbered() for field in (*_TEXTS, "collective")}
        for text in self._texts.values():
            text[b""] = -1
        self._pieces: dict[str, list[Any]] = defaultdict(list)
        self._memory: list[tuple[Any, ...]] = []
        self._waits: dict[int, tuple[int, int]] = {}
        self._processes: dict[int | str, str] = {}
        self._thread_names: dict[tuple[int | str, int | str], str] = {}
        self._needs_concrete: list[bool] = []
        self._n_read = 0

    def add(self, events: list[Event]) -> None:
        """Take over what is needed of a piece's events."""
        self._n_read += len(events)
        rest = [e for e in events if e.ph != "X"]
        if rest:
            events = [e for e in events if e.ph == "X"]
            self._add_untimed(rest)
        n = len(events)
        if not n:
            return
        names, cats, pids, tids = self._names, self._cats, self._pids, self._tids
        args = [e.args or _NOTHING for e in events]
        take = self._take
        take("start_us", np.fromiter([e.ts for e in events], np.float64, n))
        take("dur_us", np.fromiter([e.dur for e in events], np.float64, n))
        name_id = take("name_id", np.fromiter([names[e.name] for e in events], np.int32, n))
        cat = take("cat", np.fromiter([cats[e.cat] for e in events], np.int32, n))
        take("pid", np.fromiter([pids[e.pid] for e in events], np.int32, n))
        take("tid", np.fromiter([tids[e.tid] for e in events], np.int32, n))
        external = [a.external for a in args]
        if [a.external_old for a in args].count(-1) != n:
            external = [a.external if a.external != -1 else a.external_old for a in args]
        take("external_id", _integers(external, np.int64))
        for name, dtype in _INTEGERS.items():
            take(name, _integers(list(map(attrgetter(name), args)), dtype))
        for name in ("types", "dims", "stack"):
            take(f"{name}_id", _raws(list(map(attrgetter(name), args)), self._texts[name]))
        self._add_kernels(args, cat)
        self._add_waits(args, cat)
        self._add_rare(args, name_id)

    def _take(self, name: str, column: Any) -> Any:
        self._pieces[name].append(column)
        return column

    def _add_kernels(self, args: list[Args], cat: Any) -> None:
        """Columns that only kernels have."""
        n = len(args)
        occupancy = self._take("occupancy", np.full(n, np.nan, np.float32))
        blocks = self._take("blocks_per_sm", np.full(n, np.nan, np.float32))
        kernel = [c.lower() in _KERNEL_CATEGORIES for c in self._cats]
        rows = np.flatnonzero(np.array(kernel)[cat])
        if len(rows):
            mine = [args[i] for i in rows.tolist()]
            occupancy[rows] = _floats([a.occupancy for a in mine])
            blocks[rows] = _floats([a.blocks_per_sm for a in mine])
            # with a block for each multiprocessor it is above 0: the profiler could not tell it
            occupancy[(occupancy == 0) & (blocks >= 1)] = np.nan

    def _add_waits(self, args: list[Args], cat: Any) -> None:
        """What an event wait waits for; recorded where the profiler was asked to record syncs."""
        known = _categories()
        is_sync = [known.get(c.lower()) == Category.DEVICE_SYNC for c in self._cats]
        if True not in is_sync:
            return
        for at in np.flatnonzero(np.array(is_sync)[cat]).tolist():
            a = args[at]
            waiting, stream = (
                _as_int(a.correlation, np.int64),
                _as_int(a.waits_for_stream, np.int32),
            )
            if waiting >= 0 and stream >= 0:
                self._waits[waiting] = (stream, _as_int(a.waits_for_record, np.int64))

    def _add_rare(self, args: list[Args], name_id: Any) -> None:
        """Columns of which nearly every row is empty."""
        n_new = len(self._names) - len(self._needs_concrete)
        new = list(itertools.islice(reversed(self._names), n_new))[::-1]
        self._needs_concrete += [_NEEDS_CONCRETE.search(name) is not None for name in new]
        concrete = self._take("concrete_id", np.full(len(args), -1, np.int32))
        for at in np.flatnonzero(np.array(self._needs_concrete)[name_id]):
            concrete[at] = self._texts["concrete"][bytes(args[at].concrete)]
        collective = self._take("collective_id", np.full(len(args), -1, np.int32))
        if [a.collective for a in args].count(None) != len(args):
            for row, a in enumerate(args):
                if a.collective is not None:
                    ranks = "" if a.ranks is None else str(a.ranks)
                    key = (a.collective, a.dtype, a.n_in, a.n_out, a.group_size, ranks)
                    collective[row] = self._texts["collective"][key]

    def _add_untimed(self, events: list[Event]) -> None:
        """Names of threads, and the allocator's events."""
        for e in events:
            if e.args is None:
                continue
            if e.ph == "i" and e.name == "[memory]":
                a = e.args
                self._memory.append(
                    (e.ts, a.memory_bytes, a.address, a.allocated, a.reserved, a.device_type,
                     a.device_id, self._pids[e.pid], self._tids[e.tid])
                )  # fmt: skip
            elif e.ph == "M":
                pid = _as_id(e.pid)
                if e.name == "process_name" and e.args.name is not None:
                    self._processes[pid] = str(e.args.name)
                elif e.name == "process_labels" and e.args.labels:
                    before = self._processes.get(pid, "")
                    self._processes[pid] = f"{before} ({e.args.labels})".strip()
                elif e.name == "thread_name" and e.args.name is not None:
                    self._thread_names[(pid, _as_id(e.tid))] = str(e.args.name)

    def trace(self, metadata: dict[str, Any], source: str, warnings: list[str]) -> Trace:
        """The finished trace.

        Raises:
            TraceError: there is no event with a usable time.
        """
        if not self._pieces:
            raise TraceError(
                f"{source} is not a trace: its {fmt_count(self._n_read)} items hold no timed event "
                "(ph 'X')"
                if self._n_read
                else f"{source} is an empty trace: it holds no event"
            )
        columns: dict[str, Any] = {}
        for name in tuple(self._pieces):
            columns[name] = np.concatenate(self._pieces.pop(name))
        columns, origin = _usable(columns, source, warnings)
        order = _by_start(columns["start_us"], columns["dur_us"])
        for name in tuple(columns):
            columns[name] = columns[name][order]
        names = tuple(self._names)
        known = _categories()
        by_cat = [known.get(c.lower(), Category.OTHER) for c in self._cats]
        of_cat = np.bincount(columns["cat"], minlength=len(by_cat)).tolist()
        unread = {
            printable(cat, 40): count
            for cat, kind, count in zip(self._cats, by_cat, of_cat, strict=True)
            if count and kind == Category.OTHER and _OF_OTHER_DEVICES.match(cat)
        }
        if _OF_THE_OLD_PROFILER in self._pids:
            unread["the old torch.autograd.profiler"] = len(columns["cat"])
        columns["category"] = np.array(by_cat, np.uint8)[columns.pop("cat")]
        label = np.array([n.startswith(_LABELS) for n in names], np.bool_)[columns["name_id"]]
        columns["category"][label & (columns["category"] == Category.OP)] = Category.ANNOTATION
        memory = self._memory_columns(origin)
        pid, tid = columns.pop("pid"), columns.pop("tid")
        threads, thread = self._threads(
            np.r_[pid, memory.pop("pid")], np.r_[tid, memory.pop("tid")]
        )
        columns["thread"], memory["thread"] = thread[: len(pid)], thread[len(pid) :]
        texts: dict[str, Any] = {}
        for field, (name, read) in _TEXTS.items():
            ids = f"{field}_id"
            texts[name], columns[ids] = _texts(self._texts[field], columns[ids], read)
        return Trace(
            **columns,
            **texts,
            names=names,
            threads=threads,
            collectives=tuple(
                Collective(
                    str(name), "" if dtype is None else str(dtype), _as_int(n_in, np.int64),
                    _as_int(n_out, np.int64), _as_int(size, np.int64), ranks,
                )
                for name, dtype, n_in, n_out, size, ranks in itertools.islice(
                    self._texts["collective"], 1, None
                )
            ),
            memory=MemoryEvents(**memory),
            waits=self._waits,
            origin_us=origin,
            metadata=metadata,
            source=source,
            warnings=tuple(warnings),
            unread=unread,
        )  # fmt: skip

    def _memory_columns(self, origin: float) -> dict[str, Any]:
        fields = list(zip(*self._memory, strict=True)) if self._memory else [()] * 9
        self._memory = []
        at_us = np.array(fields[0], np.float64) - origin
        usable = np.flatnonzero(np.abs(at_us) < _LONGEST_US)
        order = usable[np.argsort(at_us[usable], kind="stable")]
        found = {"at_ns": np.rint(at_us[order] * 1e3).astype(np.int64)}
        for values, (name, dtype) in zip(fields[1:], _OF_MEMORY.items(), strict=True):
            found[name] = _integers(list(values), dtype)[order]
        return found

    def _threads(self, pid: Any, tid: Any) -> tuple[tuple[Thread, ...], Any]:
        """The distinct threads in order of appearance, and each row's."""
        pids, tids = [_as_id(p) for p in self._pids], [_as_id(t) for t in self._tids]
        place, first, row = np.unique(
            pid.astype(np.int64) * len(tids) + tid, return_index=True, return_inverse=True
        )
        ids = _numbered()
        number = np.zeros(len(place), np.int32)
        for at in np.argsort(first, kind="stable"):
            p, t = divmod(int(place[at]), len(tids))
            number[at] = ids[pids[p], tids[t]]
        threads = tuple(
            Thread(p, t, self._thread_names.get((p, t), ""), self._processes.get(p, ""))
            for p, t in ids
        )
        return threads, number[row]


def _usable(
    columns: dict[str, Any], source: str, warnings: list[str]
) -> tuple[dict[str, Any], float]:
    """Leave out events without a usable time; starts are counted from the first one's."""
    start, dur = columns["start_us"], columns["dur_us"]
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(start)
        middle = float(np.median(start[finite])) if finite.any() else 0.0
        usable = (np.abs(start - middle) < _LONGEST_US) & (np.abs(dur) < _LONGEST_US)
    if not usable.all():
        warnings.append(f"left out: {plural(int((~usable).sum()), 'event')} without a usable time")
        if not usable.any():
            raise TraceError(
                f"{source} is not a usable trace: none of its events has a usable time"
            )
        columns = {name: column[usable] for name, column in columns.items()}
        start, dur = columns["start_us"], columns["dur_us"]
    negative = dur < 0
    if negative.any():
        warnings.append(f"{fmt_count(negative.sum())} negative durations were read as 0")
        columns["dur_us"] = np.maximum(dur, 0.0)
    origin = float(start.min())
    columns["start_us"] = start - origin
    return columns, origin


def _by_start(start: Any, dur: Any) -> Any:
    """The order by start, among equal starts by falling duration (then as in the file).

    Files are made of long sorted runs, on which one stable sort is several times as fast as a
    sort by two keys; equal starts are few.
    """
    order = np.argsort(start, kind="stable")
    same = start[order[1:]] == start[order[:-1]]
    if same.any():
        tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
        rows = order[tied]
        order[tied] = rows[np.lexsort((-dur[rows], start[rows]))]
    return order


def _raws(raws: list[msgspec.Raw], seen: dict[bytes, int]) -> Any:
    """Numbers of pieces of raw JSON, -1 where absent."""
    if raws.count(_RAW) == len(raws):
        return np.full(len(raws), -1, np.int32)
    # The struct's default is one object, and comparing objects is cheaper than hashing them.
    return np.fromiter([-1 if r is _RAW else seen[bytes(r)] for r in raws], np.int32, len(raws))


def _integers(values: list[Any], dtype: Any) -> Any:
    """Integers from what the trace holds: None, "" and other oddities become -1."""
    try:
        return np.fromiter(values, dtype, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_int(v, dtype) for v in values], dtype=dtype)


def _as_int(value: Any, dtype: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    limits = np.iinfo(dtype)
    return number if limits.min <= number <= limits.max else -1


def _floats(values: list[Any]) -> Any:
    """Numbers from what the trace holds: oddities, and what float32 cannot hold, become NaN."""
    try:
        wide = np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        wide = np.array([_as_float(v) for v in values], dtype=np.float64)
    wide[np.abs(wide) > np.finfo(np.float32).max] = np.nan
    return wide.astype(np.float32)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _as_id(value: int | str) -> int | str:
    """Older traces write thread ids as strings; the same thread must be one thread."""
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 19:
        return int(value)
    return value


def _texts(
    seen: dict[bytes, int], ids: Any, read: Callable[[bytes], str]
) -> tuple[tuple[str, ...], Any]:
    """The distinct values as text, and the column of their indices, -1 where empty."""
    numbered = _numbered()
    number = np.full(len(seen), -1, np.int32)  # the last entry is that of id -1
    for raw, index in seen.items():
        text = read(raw) if raw else ""
        if text:
            number[index] = numbered[text]
    return tuple(numbered), number[ids]


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _as_text(raw: bytes) -> str:
    value = _decoded(raw)
    return value if isinstance(value, str) else ""


def _as_json(raw: bytes) -> str:
    value = _decoded(raw)
    return msgspec.json.encode(value).decode() if isinstance(value, list) else ""


def _types_text(raw: bytes) -> str:
    value = _decoded(raw)
    return ",".join(map(str, value)) if isinstance(value, list) else ""


# Text of an event that repeats itself → what it is called in a trace, and how it is read.
_TEXTS: dict[str, tuple[str, Callable[[bytes], str]]] = {
    "stack": ("stacks", _as_text),
    "types": ("input_types", _types_text),
    "dims": ("input_dims", _as_json),
    "concrete": ("concrete_inputs", _as_json),
}
