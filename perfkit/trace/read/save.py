"""Write a trace for other tools: Perfetto, speedscope, spreadsheets, data frames.

=======================  =================================================================
ending                   format
=======================  =================================================================
``.json``, ``.json.gz``  Chrome trace as torch writes it: Perfetto, ``chrome://tracing``,
                         TensorBoard, and :func:`perfkit.trace.load` again
``.speedscope.json``     speedscope: one flame chart per thread and stream
``.csv``, ``.csv.gz``    one line per event (:data:`COLUMNS`), times in µs
``.parquet``             the same columns; needs pyarrow
=======================  =================================================================

Every file appears whole or not at all: it is written beside its place and then moved there.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.base.errors import UsageError
from perfkit.base.extras import needs
from perfkit.base.files import write_atomically
from perfkit.base.scrub import scrub as _scrub
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Category, Collective, Trace

#: Columns of the CSV and Parquet files; ids are empty (null) where a trace has none.
COLUMNS = (
    "name",
    "category",
    "start_us",
    "dur_us",
    "pid",
    "tid",
    "thread",
    "correlation",
    "external_id",
    "stream",
    "device",
    "bytes",
    "stack",
)

_ENDINGS = ".json, .json.gz, .speedscope.json, .csv, .csv.gz or .parquet"
_NAMES = {
    Category.OP: "cpu_op",
    Category.ANNOTATION: "user_annotation",
    Category.PYTHON: "python_function",
    Category.RUNTIME: "cuda_runtime",
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.DEVICE_ANNOTATION: "gpu_user_annotation",
    Category.DEVICE_SYNC: "cuda_sync",
    Category.OVERHEAD: "overhead",
    Category.OTHER: "other",
}
# column of the trace -> key of an event's args, where it is an id with -1 for "absent"
_IDS = (
    ("correlation", "correlation"),
    ("external_id", "External id"),
    ("sequence", "Sequence number"),
    ("stream", "stream"),
    ("device", "device"),
    ("n_bytes", "bytes"),
)
_ROWS_AT_ONCE = 65_536


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text


# column of ids -> its texts -> key of an event's args -> how it is written there
_TEXTS: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("stack_id", "stacks", "Call stack", str),
    ("types_id", "input_types", "Input type", lambda text: text.split(",")),
    ("dims_id", "input_dims", "Input Dims", _json_or_text),
    ("concrete_id", "concrete_inputs", "Concrete Inputs", _json_or_text),
)


def save(trace: Trace, path: str | os.PathLike[str], *, scrub: bool = False) -> Path:
    """Write a trace into a file; its ending says as what.

    Args:
        path: where to; see this module's head for the endings.
        scrub: take out what is private first, as :mod:`perfkit.base.scrub` lists it.

    Raises:
        UsageError: another ending, or a file that cannot be written.
        MissingError: Parquet without pyarrow.
    """
    target = Path(path)
    name = target.name.lower()
    if scrub:
        trace = _scrub(trace)
    if name.endswith(".speedscope.json"):
        write = _speedscope
    elif name.endswith((".json", ".json.gz")):
        write = _chrome
    elif name.endswith((".csv", ".csv.gz")):
        write = _csv
    elif name.endswith(".parquet"):
        write = _parquet
    else:
        raise UsageError(f"cannot tell what to write into {target}: end it in {_ENDINGS}")
    write_atomically(target, lambda part: write(trace, part))
    return target


def _write(part: Path, data: bytes) -> None:
    # no time stamp inside: the same trace gives the same file
    part.write_bytes(gzip.compress(data, 6, mtime=0) if part.suffix == ".gz" else data)


# ---- Chrome trace ------------------------------------------------------------------------


def _chrome(trace: Trace, part: Path) -> None:
    top = {
        "schemaVersion": 1,
        **{k: v for k, v in trace.metadata.items() if v is not None},
        "displayTimeUnit": "ms",
        "traceEvents": [*_thread_names(trace), *_events(trace), *_memory(trace), *_flows(trace)],
    }
    _write(part, msgspec.json.encode(top))


def _thread_names(trace: Trace) -> Iterator[dict[str, Any]]:
    for pid, process in {t.pid: t.process for t in trace.threads if t.process}.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
    for t in trace.threads:
        if t.name:
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": t.pid,
                "tid": t.tid,
                "args": {"name": t.name},
            }


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    numbers = [(key, getattr(trace, column).tolist()) for column, key in _IDS]
    texts = [
        (key, getattr(trace, column).tolist(), [read(x) for x in getattr(trace, values)])
        for column, values, key, read in _TEXTS
    ]
    collectives = [_collective(x) for x in trace.collectives]
    of_collective = trace.collective_id.tolist()
    occupancy, blocks = trace.occupancy.tolist(), trace.blocks_per_sm.tolist()
    starts = (trace.start_us + trace.origin_us).tolist()
    for i, (name, category, thread, start, dur) in enumerate(
        zip(
            trace.name_id.tolist(),
            trace.category.tolist(),
            trace.thread.tolist(),
            starts,
            trace.dur_us.tolist(),
            strict=True,
        )
    ):
        args: dict[str, Any] = {key: values[i] for key, values in numbers if values[i] != -1}
        for key, ids, values in texts:
            if ids[i] >= 0:
                args[key] = values[ids[i]]
        if occupancy[i] == occupancy[i]:  # not NaN: it was recorded
            args["est. achieved occupancy %"] = occupancy[i]
        if blocks[i] == blocks[i]:
            args["blocks per SM"] = blocks[i]
        if of_collective[i] >= 0:
            args |= collectives[of_collective[i]]
        if category == Category.DEVICE_SYNC and (wait := trace.waits.get(int(numbers[0][1][i]))):
            args["wait_on_stream"], args["wait_on_cuda_event_record_corr_id"] = wait
        where = trace.threads[thread]
        yield {
            "ph": "X",
            "cat": _NAMES[Category(category)],
            "name": trace.names[name],
            "pid": where.pid,
            "tid": where.tid,
            "ts": start,
            "dur": dur,
            "args": args,
        }


def _collective(c: Collective) -> dict[str, Any]:
    found = {
        "Collective name": c.name,
        "dtype": c.dtype,
        "In msg nelems": c.n_in,
        "Out msg nelems": c.n_out,
        "Group size": c.group_size,
        "Process Group Ranks": c.ranks,
    }
    return {key: value for key, value in found.items() if value not in ("", -1)}


def _memory(trace: Trace) -> Iterator[dict[str, Any]]:
    m = trace.memory
    for i in range(len(m)):
        where = trace.threads[m.thread[i]]
        found = {
            "Addr": int(m.address[i]),
            "Total Allocated": int(m.allocated[i]),
            "Total Reserved": int(m.reserved[i]),
        }
        yield {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": where.pid,
            "tid": where.tid,
            "ts": float(m.at_ns[i]) / 1e3 + trace.origin_us,
            "args": {
                **{key: value for key, value in found.items() if value != -1},
                "Bytes": int(m.n_bytes[i]),
                "Device Type": int(m.device_type[i]),
                "Device Id": int(m.device[i]),
            },
        }


def _flows(trace: Trace) -> Iterator[dict[str, Any]]:
    """The arrows from a launch to what it launched, as Perfetto reads them."""
    joined = trace.correlation >= 0
    calls = np.flatnonzero(joined & trace.is_a(Category.RUNTIME))
    work = np.flatnonzero(joined & trace.is_a(*DEVICE_CATEGORIES))
    both = np.intersect1d(trace.correlation[calls], trace.correlation[work])
    for rows, phase in ((calls, "s"), (work, "f")):
        for i in rows[np.isin(trace.correlation[rows], both)].tolist():
            where = trace.threads[trace.thread[i]]
            yield {
                "ph": phase,
                "cat": "ac2g",
                "name": "ac2g",
                "id": int(trace.correlation[i]),
                "pid": where.pid,
                "tid": where.tid,
                "ts": float(trace.start_us[i] + trace.origin_us),
                **({"bp": "e"} if phase == "f" else {}),
            }


# ---- speedscope --------------------------------------------------------------------------


def _speedscope(trace: Trace, part: Path) -> None:
    by_thread = np.argsort(trace.thread, kind="stable")
    bounds = np.searchsorted(trace.thread[by_thread], np.arange(len(trace.threads) + 1))
    profiles = []
    for t, where in enumerate(trace.threads):
        rows = by_thread[bounds[t] : bounds[t + 1]]
        if not len(rows):
            continue
        start, end = trace.start_ns[rows], trace.end_ns[rows]
        profiles.append(
            {
                "type": "evented",
                "name": where.name or f"{where.process or where.pid} {where.tid}".strip(),
                "unit": "nanoseconds",
                "startValue": int(start.min()),
                "endValue": int(end.max()),
                "events": _opened_and_closed(
                    start.tolist(), end.tolist(), trace.name_id[rows].tolist()
                ),
            }
        )
    file = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "perfkit",
        "name": Path(trace.source).name or "trace",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in trace.names]},
        "profiles": profiles,
    }
    _write(part, msgspec.json.encode(file))


def _opened_and_closed(
    start: list[int], end: list[int], frame: list[int]
) -> list[dict[str, str | int]]:
    """Strictly nested: an event that outlasts the one around it is cut at that one's end."""
    events: list[dict[str, str | int]] = []
    stack: list[tuple[int, int]] = []
    for begin, stop, name in zip(start, end, frame, strict=True):
        while stack and stack[-1][0] <= begin:
            closing = stack.pop()
            events.append({"type": "C", "at": closing[0], "frame": closing[1]})
        if stack:
            stop = min(stop, stack[-1][0])
        events.append({"type": "O", "at": begin, "frame": name})
        stack.append((stop, name))
    while stack:
        closing = stack.pop()
        events.append({"type": "C", "at": closing[0], "frame": closing[1]})
    return events


# ---- tables ------------------------------------------------------------------------------


def _csv(trace: Trace, part: Path) -> None:
    with part.open("wb") as raw:
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if part.suffix == ".gz" else raw
        with io.TextIOWrapper(packed, encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for first in range(0, len(trace), _ROWS_AT_ONCE):
                table = _table(trace, slice(first, first + _ROWS_AT_ONCE))
                writer.writerows(zip(*(map(_cell, column) for column in table), strict=True))


def _cell(value: Any) -> Any:
    # a spreadsheet would run a name that begins like a formula
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _table(trace: Trace, rows: slice) -> list[list[Any]]:
    threads = [trace.threads[t] for t in trace.thread[rows].tolist()]
    stacks = [trace.stacks[s] if s >= 0 else None for s in trace.stack_id[rows].tolist()]
    ids = [
        [None if x == -1 else x for x in getattr(trace, column)[rows].tolist()]
        for column in ("correlation", "external_id", "stream", "device", "n_bytes")
    ]
    return [
        [trace.names[n] for n in trace.name_id[rows].tolist()],
        [_NAMES[Category(c)] for c in trace.category[rows].tolist()],
        trace.start_us[rows].tolist(),
        trace.dur_us[rows].tolist(),
        [str(t.pid) for t in threads],
        [str(t.tid) for t in threads],
        [t.name for t in threads],
        *ids,
        stacks,
    ]


def _parquet(trace: Trace, part: Path) -> None:
    with needs("writing Parquet"):
        import pyarrow
        import pyarrow.parquet as parquet
    table = dict(zip(COLUMNS, _table(trace, slice(None)), strict=True))
    parquet.write_table(pyarrow.table(table), part)
