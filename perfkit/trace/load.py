"""Read a Kineto trace of any year into columns.

The file is decoded by msgspec into typed structs that name only what is needed, so a
million events (369 MB) take about a second. What real files need beside that:

* ``.json``, ``.json.gz`` and ``.zst`` are told by their first bytes, not their name;
* object form (``{"traceEvents": [...]}``) and the bare list of older traces;
* categories of 2021 (``Operator``, ``Runtime``, ``Kernel``, ``Memcpy``), string pids and
  tids, lower-case ``external id``, ROCm's string arguments;
* names with raw control characters or invalid UTF-8 (both are replaced);
* files that were cut off in the middle: read as far as they go, with a warning.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.errors import MissingError, TraceError
from perfkit.trace.columns import Category, Thread, Trace

_Loose = int | float | str | None


class _Args(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "external_old": "external id",
        "sequence": "Sequence number",
        "stack": "Call stack",
        "types": "Input type",
        "n_bytes": "bytes",
    },
):
    external: _Loose = None
    external_old: _Loose = None
    correlation: _Loose = None
    sequence: _Loose = None
    stream: _Loose = None
    device: _Loose = None
    n_bytes: _Loose = None
    stack: _Loose = None
    types: Any = None
    name: _Loose = None  # of metadata events: what the process or thread is called
    labels: _Loose = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = 0.0
    pid: int | str = -1
    tid: int | str = -1
    args: _Args | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815  # the format's name
    schemaVersion: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    displayTimeUnit: Any = None  # noqa: N815
    record_shapes: Any = None
    profile_memory: Any = None
    with_stack: Any = None


_METADATA = _File.__struct_fields__[1:]
_LIST = msgspec.json.Decoder(list[_Event], strict=False)
_OBJECT = msgspec.json.Decoder(_File, strict=False)
_EVENT = msgspec.json.Decoder(_Event, strict=False)

_CATEGORIES = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
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
    "cuda_sync": Category.DEVICE_SYNC,
    "overhead": Category.OVERHEAD,
}
# Traces before 2022 call labels "Operator" too; these names are labels in every year.
_LABELS = ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.")

# What a file that is no trace may be instead: its first bytes, and what to call it.
_LOOKS = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"PK\x03\x04", "a zip archive (a saved torch model, perhaps)"),
    (b"SQLite format 3", "an SQLite database (an Nsight Systems export, perhaps)"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle (a CUDA memory snapshot, perhaps)"),
    (b"\x80\x05", "a pickle (a CUDA memory snapshot, perhaps)"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

# ns kept exactly in int64 and in float64: a day each side of the first event, 100 days at most.
_LONGEST_US = 100 * 86_400 * 1e6


def load(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Trace:
    """Read a trace from a path or from the bytes of one.

    Args:
        source: path of a ``.json``, ``.json.gz`` or ``.zst`` trace, or its content.

    Returns:
        The trace; ``trace.warnings`` says what could not be read of it.

    Raises:
        TraceError: the file cannot be opened, or is no trace; says what it looks like.
        MissingError: it is zstd-compressed and no zstd package is installed.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "bytes")
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(
            f"cannot read the trace {path}: {reason}; give the path of a .json[.gz] trace"
        ) from error
    return _parse(data, str(path))


def _parse(data: bytes, source: str) -> Trace:
    warnings: list[str] = []
    data = _unpack(data, source, warnings)
    with _gc_paused():
        events, metadata = _decode(data, source, warnings)
        del data
        return _to_columns(events, metadata, source, warnings)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No cyclic collection meanwhile: it would walk the growing list of events again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _unpack(data: bytes, source: str, warnings: list[str]) -> bytes:
    if data.startswith(_GZIP):
        return _gunzip(data, source, warnings)
    if data.startswith(_ZSTD):
        return _unzstd(data, source)
    return data


def _gunzip(data: bytes, source: str, warnings: list[str]) -> bytes:
    """As ``gzip.decompress``, but a file that ends early gives what it holds."""
    parts: list[bytes] = []
    rest = data
    while rest.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(rest))
        except zlib.error:
            # Feed it in small pieces, so that what precedes the damage is kept.
            member = zlib.decompressobj(wbits=31)
            try:
                for at in range(0, len(rest), 4096):
                    parts.append(member.decompress(rest[at : at + 4096]))
            except zlib.error:
                pass
            warnings.append("the gzip data is damaged: read up to the damage")
            break
        if not member.eof:
            warnings.append("the gzip data ends early: read as far as it goes")
            break
        rest = member.unused_data
    whole = b"".join(parts)
    if not whole:
        raise TraceError(f"{source} is no trace: gzip data from which nothing can be unpacked")
    return whole


def _unzstd(data: bytes, source: str) -> bytes:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # 3.14+

        errors: Any = zstd.ZstdError
        decompress: Callable[[bytes], bytes] = zstd.decompress
    except ImportError:
        try:
            import zstandard  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise MissingError(
                f"{source} is compressed with zstd, for which no package is installed: "
                "`pip install zstandard`, or unpack it with `zstd -d`"
            ) from None
        errors = zstandard.ZstdError

        def decompress(packed: bytes) -> bytes:
            return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(packed))

    try:
        return decompress(data)
    except errors as error:
        raise TraceError(f"{source} is no readable zstd file: {error}") from error


def _decode(data: bytes, source: str, warnings: list[str]) -> tuple[list[_Event], dict[str, Any]]:
    try:
        return _decode_strict(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    clean = _cleaned(data)
    try:
        events, metadata = _decode_strict(clean)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    else:
        warnings.append("unprintable characters in names were replaced")
        return events, metadata
    events, dropped, complete = _salvage(clean)
    if not events:
        raise TraceError(f"{source} is no trace: it looks like {_what_it_looks_like(data)}")
    if dropped:
        warnings.append(f"{dropped:,} events could not be read and were left out")
    if not complete:
        warnings.append(f"the trace ends early: read as far as it goes ({len(events):,} events)")
    return events, {}


def _decode_strict(data: bytes) -> tuple[list[_Event], dict[str, Any]]:
    if data[:64].lstrip()[:1] == b"[":
        return _LIST.decode(data), {}
    file = _OBJECT.decode(data)
    found = {k: getattr(file, k) for k in _METADATA}
    return file.traceEvents, {k: v for k, v in found.items() if v is not None}


def _cleaned(data: bytes) -> bytes:
    """Control characters become spaces (outside strings that is the same), bad UTF-8 "�"."""
    table = bytes(32 if i < 32 else i for i in range(256))
    return data.translate(table).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").encode()


_START = re.compile(rb'"traceEvents"\s*:\s*\[')
# A string, a bracket, or a quote that no other quote closes (the file was cut inside a string).
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]|"', re.DOTALL)


def _salvage(data: bytes) -> tuple[list[_Event], int, bool]:
    """Event by event, for what the fast road refused: torn files, events with odd types.

    Returns:
        The events that can be read, how many cannot, and whether the list was closed.
    """
    found = _START.search(data)
    if found:
        begin = found.end()
    else:
        begin = len(data) - len(data.lstrip())
        if data[begin : begin + 1] != b"[":
            return [], 0, False
        begin += 1
    events: list[_Event] = []
    dropped, depth, opened = 0, 0, begin
    for token in _TOKEN.finditer(data, begin):
        char = data[token.start()]
        if char in b"{[":
            if depth == 0:
                opened = token.start()
            depth += 1
        elif char in b"}]":
            depth -= 1
            if depth < 0:
                return events, dropped, True
            if depth == 0:
                try:
                    events.append(_EVENT.decode(data[opened : token.end()]))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    dropped += 1
        elif token.end() - token.start() == 1:
            break
    return events, dropped, False


def _what_it_looks_like(data: bytes) -> str:
    for magic, what in _LOOKS:
        if data.lstrip()[: len(magic)].lower() == magic.lower():
            return what
    text = data.strip()
    if not text:
        return "an empty file"
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        sample = text[:4096]
        if text[:1] in b"{[":
            return "broken JSON without a single readable event"
        printable = sum(32 <= c < 127 for c in sample)
        return "plain text" if printable > 0.9 * len(sample) else "binary data"
    if isinstance(value, dict):
        keys = ", ".join(repr(str(k)[:40]) for k in itertools.islice(value, 5))
        return f"a JSON object with the keys {keys or '(none)'} and no 'traceEvents'"
    if isinstance(value, list):
        return f"a JSON list of {len(value):,} items that are no trace events"
    return f"a JSON {type(value).__name__}"


def _int_column(values: list[Any], dtype: Any) -> Any:
    """Integers from what the trace holds: None, "0x0" and other oddities become -1."""
    try:
        return np.array([-1 if v is None else v for v in values], dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_int(v, dtype) for v in values], dtype=dtype)


def _as_int(value: Any, dtype: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    limits = np.iinfo(dtype)
    return number if limits.min <= number <= limits.max else -1


def _interned(values: Iterable[Any]) -> tuple[Any, list[int]]:
    """Distinct values in order of appearance, and for each item the index of its value."""
    ids: dict[Any, int] = {}
    column = [ids.setdefault(v, len(ids)) for v in values]
    return tuple(ids), column


def _as_id(value: int | str) -> int | str:
    """Older traces write thread ids as strings; the same thread must be one thread."""
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 19:
        return int(value)
    return value


def _to_columns(
    events: list[_Event], metadata: dict[str, Any], source: str, warnings: list[str]
) -> Trace:
    named = _thread_names(events)
    n_read = len(events)
    events = [e for e in events if e.ph == "X"]
    if not events:
        raise TraceError(
            f"{source} is no trace: its {n_read:,} items hold no timed event (ph 'X')"
            if n_read
            else f"{source} is an empty trace: it holds no event"
        )
    start = np.array([e.ts for e in events], dtype=np.float64)
    dur = np.array([e.dur for e in events], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        middle = float(np.median(start[np.isfinite(start)])) if np.isfinite(start).any() else 0.0
        usable = (np.abs(start - middle) < _LONGEST_US) & (np.abs(dur) < _LONGEST_US)
    if not usable.all():
        warnings.append(f"{int((~usable).sum()):,} events without a usable time were left out")
        if not usable.any():
            raise TraceError(f"{source} is no usable trace: none of its events has a usable time")
        events = list(itertools.compress(events, usable))
        start, dur = start[usable], dur[usable]
    negative = dur < 0
    if negative.any():
        warnings.append(f"{int(negative.sum()):,} negative durations were read as 0")
        dur = np.maximum(dur, 0.0)
    origin = float(start.min())
    start -= origin

    names, name_id = _interned([e.name for e in events])
    cats, cat_id = _interned([e.cat for e in events])
    places, place_id = _interned([(e.pid, e.tid) for e in events])
    category = np.array([_CATEGORIES.get(c.lower(), Category.OTHER) for c in cats], np.uint8)[
        np.array(cat_id, dtype=np.int64)
    ]
    label = np.array([n.startswith(_LABELS) for n in names], np.bool_)[
        np.array(name_id, dtype=np.int64)
    ]
    category[label & (category == Category.OP)] = Category.ANNOTATION
    thread_keys, thread_of_place = _interned([(_as_id(p), _as_id(t)) for p, t in places])
    processes, thread_labels = named
    threads = tuple(
        Thread(p, t, thread_labels.get((p, t), ""), processes.get(p, "")) for p, t in thread_keys
    )

    nothing = _Args()
    args = [e.args or nothing for e in events]
    external = [a.external if a.external is not None else a.external_old for a in args]
    stacks, stack_id = _interned([a.stack if isinstance(a.stack, str) else "" for a in args])
    types, types_id = _interned([_types_text(a.types) for a in args])
    columns = {
        "start_us": start,
        "dur_us": dur,
        "name_id": np.array(name_id, dtype=np.int32),
        "category": category,
        "thread": np.array(thread_of_place, dtype=np.int32)[np.array(place_id, dtype=np.int64)],
        "correlation": _int_column([a.correlation for a in args], np.int64),
        "external_id": _int_column(external, np.int64),
        "sequence": _int_column([a.sequence for a in args], np.int64),
        "stream": _int_column([a.stream for a in args], np.int32),
        "device": _int_column([a.device for a in args], np.int32),
        "n_bytes": _int_column([a.n_bytes for a in args], np.int64),
        "stack_id": _blank_is_absent(stacks, stack_id),
        "types_id": _blank_is_absent(types, types_id),
    }
    order = np.lexsort((-dur, start))
    return Trace(
        **{name: column[order] for name, column in columns.items()},
        names=names,
        threads=threads,
        stacks=stacks,
        input_types=types,
        origin_us=origin,
        metadata=metadata,
        source=source,
        warnings=tuple(warnings),
    )


def _types_text(types: Any) -> str:
    return "" if types is None else ",".join(map(str, types)) if isinstance(types, list) else ""


def _blank_is_absent(values: tuple[str, ...], ids: list[int]) -> Any:
    column = np.array(ids, dtype=np.int32)
    if "" in values:
        column[column == values.index("")] = -1
    return column


def _thread_names(
    events: list[_Event],
) -> tuple[dict[int | str, str], dict[tuple[int | str, int | str], str]]:
    processes: dict[int | str, str] = {}
    threads: dict[tuple[int | str, int | str], str] = {}
    for e in events:
        if e.ph != "M" or e.args is None:
            continue
        pid = _as_id(e.pid)
        if e.name == "process_name" and e.args.name is not None:
            processes[pid] = str(e.args.name)
        elif e.name == "process_labels" and e.args.labels:
            processes[pid] = f"{processes.get(pid, '')} ({e.args.labels})".strip()
        elif e.name == "thread_name" and e.args.name is not None:
            threads[(pid, _as_id(e.tid))] = str(e.args.name)
    return processes, threads
