"""Read a Kineto trace of any year into columns.

The file is decoded by msgspec into typed structs that name only what is needed, so a
million events (369 MB) take about a second. What real files need beside that:

* ``.json``, ``.json.gz`` and ``.zst`` are recognised by their first bytes, not by name;
* object form (``{"traceEvents": [...]}``) and the bare list of older traces;
* categories of 2021 (``Operator``, ``Runtime``, ``Kernel``, ``Memcpy``), string pids and
  tids, lower-case ``external id``, ROCm's string arguments;
* names with raw control characters or invalid UTF-8 (both are replaced);
* files that were cut off in the middle: read as far as they go, with a warning.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, overload

import msgspec

from perfkit.base import collector
from perfkit.base.errors import MissingError, TraceError
from perfkit.base.words import fmt_bytes, plural
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.gather import Event, Gathered


class _File(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815  # the format's name
    schemaVersion: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    displayTimeUnit: Any = None  # noqa: N815
    record_shapes: Any = None
    profile_memory: Any = None
    with_stack: Any = None
    baseTimeNanoseconds: Any = None  # noqa: N815


_METADATA = _File.__struct_fields__[1:]
_LIST = msgspec.json.Decoder(list[Event], strict=False)
_OBJECT = msgspec.json.Decoder(_File, strict=False)
_EVENT = msgspec.json.Decoder(Event, strict=False)

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

# A large file is decoded in pieces of this size, so that the events of a piece are still in the
# processor's cache when their columns are read off: twice as fast as decoding it whole (0.45 s
# instead of 0.94 for 250,000 events), and the memory for the decoded events does not grow.
_PIECE_BYTES = 1 << 18
# The list of events begins within so many bytes, or the file is read whole.
_HEAD_BYTES = 1 << 24
# What is packed is unpacked in such pieces, and each gives at most so many bytes at once.
_PACKED_BYTES, _UNPACKED_BYTES = 1 << 16, 1 << 24
# Where one event ends and the next begins. In valid JSON this is never inside a string, as
# the quote would end one; inside a nested list the pieces do not decode, and we read it whole.
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts)"\s*:)')
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_One = str | os.PathLike[str] | bytes | bytearray | memoryview


#: A packed trace that expands to more bytes than this is refused, unless told otherwise: a few MB
#: can expand to more than the machine has. The traces of real runs have some hundred MB.
UNPACK_AT_MOST = 2 * 2**30

# How much of the trace has been read, 0 … 1.
Progress = Callable[[float], object]
# A file that is read before this needs no progress.
_SILENT_S = 2.0
# What a message shows of a path; the system's own limit of a name is 255.
_LONGEST_NAME = 300


@overload
def load(
    source: _One, *, progress: Progress | None = None, unpack_at_most: int | None = UNPACK_AT_MOST
) -> Trace: ...


@overload
def load(
    source: list[_One] | tuple[_One, ...],
    *,
    progress: Progress | None = None,
    unpack_at_most: int | None = UNPACK_AT_MOST,
) -> list[Trace]: ...


def load(
    source: _One | list[_One] | tuple[_One, ...],
    *,
    progress: Progress | None = None,
    unpack_at_most: int | None = UNPACK_AT_MOST,
) -> Trace | list[Trace]:
    """Read a trace from a path or from the bytes of one.

    Args:
        source: path of a ``.json``, ``.json.gz`` or ``.zst`` trace (a pipe will do), or its
            content; or a list of these, such as the ranks of a job. (Many large ranks are better
            compared by :func:`perfkit.trace.ask.ranks.ranks`, which keeps only a few in memory.)
        progress: called with the share of the trace read so far, 0 … 1, now and then once a
            trace takes over 2 s; nothing before that. (``perfkit trace`` says on stderr what
            it is reading, likewise after 2 s.)
        unpack_at_most: bytes that a packed trace may expand to, and that a pipe may bring; None
            for no limit.

    Returns:
        The trace, or a list of traces; ``trace.warnings`` says what could not be read of it.

    Raises:
        TraceError: the file cannot be opened, expands to too much, or is no trace; says what it
            looks like.
        MissingError: it is zstd-compressed and no zstd package is installed.
    """
    if isinstance(source, list | tuple):
        return [load(one, progress=progress, unpack_at_most=unpack_at_most) for one in source]
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return _parse(io.BytesIO(data), lambda: data, "bytes", progress, unpack_at_most)
    from perfkit.base.files import read_pipe

    path = Path(source)
    if "\0" in str(path):
        raise _unreadable(source, "its name has a null character")
    try:
        piped = read_pipe(path, at_most=unpack_at_most)
        if piped is not None:
            return _parse(io.BytesIO(piped), lambda: piped, str(path), progress, unpack_at_most)
        with path.open("rb") as file:
            return _parse(file, path.read_bytes, str(path), progress, unpack_at_most)
    except OSError as error:
        raise _unreadable(source, error.strerror or str(error)) from error


def _unreadable(source: _One, reason: str) -> TraceError:
    named = str(source) or "''"
    named = named if len(named) <= _LONGEST_NAME else f"{named[:_LONGEST_NAME]}…"
    return TraceError(
        f"cannot read the trace {named}: {reason}; give the path of a .json[.gz] trace"
    )


def _parse(
    file: BinaryIO,
    whole: Callable[[], bytes],
    source: str,
    progress: Progress | None,
    unpack_at_most: int | None,
) -> Trace:
    """Read a trace from an open file; ``whole`` gives all of its bytes."""
    warnings: list[str] = []
    begin_s = time.monotonic()
    packed = file.read(4)
    file.seek(0)
    if packed.startswith((_GZIP, _ZSTD)):
        data = _unpack(whole(), source, warnings, unpack_at_most)
        file, whole = io.BytesIO(data), lambda: data
    with collector.at_rest():
        gathered = Gathered()
        read = file.read if progress is None else _telling(file, progress, begin_s)
        metadata = _decode_in_pieces(read, gathered, warnings)
        if metadata is None:
            gathered = Gathered()
            events, metadata = _decode(whole(), source, warnings)
            gathered.add(events)
            del events
        return gathered.trace(metadata, source, warnings)


def _telling(file: BinaryIO, progress: Progress, begin_s: float) -> Callable[[int], bytes]:
    """``file.read`` that reports progress a few times a second, once it has taken 2 s."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    told_s = begin_s + _SILENT_S

    def read(n: int) -> bytes:
        nonlocal told_s
        data = file.read(n)
        now_s = time.monotonic()
        if now_s >= told_s and size:
            told_s = now_s + 0.2
            progress(file.tell() / size)
        return data

    return read


def _unpack(data: bytes, source: str, warnings: list[str], at_most: int | None) -> bytes:
    if data.startswith(_GZIP):
        whole = _gunzip(data, source, warnings, at_most)
    elif data.startswith(_ZSTD):
        whole = _unzstd(data, source, at_most)
    else:
        return data
    if at_most is not None and len(whole) > at_most:
        raise TraceError(
            f"{source} ({fmt_bytes(len(data))}) expands to more than {fmt_bytes(at_most)}: raise "
            "the limit with load(…, unpack_at_most=…) or perfkit trace --unpack-at-most"
        )
    return whole


def _gunzip(data: bytes, source: str, warnings: list[str], at_most: int | None) -> bytes:
    """As ``gzip.decompress``, but a file that ends early gives what it holds, and a file that
    expands to more than ``at_most`` a little more than that.
    """
    whole = bytearray()
    rest = data
    while rest.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        pending = memoryview(rest)
        at = 0
        try:
            # in small pieces: what precedes damage is kept, and nothing expands beyond the limit
            while not member.eof and (at < len(pending) or member.unconsumed_tail):
                piece = member.unconsumed_tail or pending[at : at + _PACKED_BYTES]
                at += 0 if member.unconsumed_tail else len(piece)
                whole += member.decompress(piece, _UNPACKED_BYTES)
                if at_most is not None and len(whole) > at_most:
                    return bytes(whole)
            whole += member.flush() if not member.eof else b""
        except zlib.error:
            warnings.append("the gzip data is damaged: only what precedes the damage was read")
            break
        if not member.eof:
            warnings.append("the gzip data ends early: only what is there was read")
            break
        rest = member.unused_data + bytes(pending[at:])
    if not whole:
        raise TraceError(f"{source} is not a trace: gzip data from which nothing can be unpacked")
    return bytes(whole)


def _unzstd(data: bytes, source: str, at_most: int | None) -> bytes:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # 3.14+

        errors: Any = (zstd.ZstdError, EOFError)
        opened: Any = zstd.ZstdFile(io.BytesIO(data))
    except ImportError:
        try:
            import zstandard  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise MissingError(
                f"{source} is compressed with zstd, for which no package is installed: "
                "`pip install zstandard`, or unpack it with `zstd -d`"
            ) from None
        errors = zstandard.ZstdError
        opened = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    try:
        whole = bytes(opened.read(-1 if at_most is None else at_most + 1))
    except errors as error:
        raise TraceError(f"{source} is not a readable zstd file: {error}") from error
    if not whole:
        raise TraceError(f"{source} is not a readable zstd file: nothing can be unpacked")
    return whole


def _decode_in_pieces(
    read: Callable[[int], bytes], gathered: Gathered, warnings: list[str]
) -> dict[str, Any] | None:
    """Decode a large file piece by piece as it is read; None where it must be read whole.

    Args:
        read: gives the next n bytes, fewer only at the end.
        gathered: takes the events.
        warnings: what could not be read is added here.

    Returns:
        The metadata beside the list of events.
    """
    buffer = read(2 * _PIECE_BYTES)
    if len(buffer) < 2 * _PIECE_BYTES:
        return None
    head: dict[str, Any] = {}
    at = len(buffer) - len(buffer.lstrip()) + 1
    is_list = buffer[at - 1 : at] == b"["
    if not is_list:
        found = _START.search(buffer)
        if not found:
            buffer += read(_HEAD_BYTES)
            found = _START.search(buffer)
        if not found:
            return None
        at = found.end()
        try:
            head = _decode_strict(buffer[:at] + b"]}")[1]
        except _BROKEN:
            return None
    dropped, replaced, n_read, ended = 0, False, 0, False
    while True:
        cut = _BETWEEN.search(buffer, at + _PIECE_BYTES)
        if cut is None:
            if ended:
                break
            # Doubling, in case that there is no place to cut: the copies stay linear.
            wanted = max(2 * _PIECE_BYTES, len(buffer) - at)
            more = read(wanted)
            ended = len(more) < wanted
            buffer, at = buffer[at:] + more, 0
            continue
        piece = b"".join((b"[", memoryview(buffer)[at : cut.start() + 1], b"]"))
        at = cut.end()
        try:
            events = _LIST.decode(piece)
        except _BROKEN:
            events, lost, complete = _salvage(_cleaned(piece))
            if not complete:
                return None
            dropped, replaced = dropped + lost, True
        gathered.add(events)
        n_read += len(events)
    last = (b"[" if is_list else b'{"traceEvents":[') + buffer[at:]
    complete = True
    try:
        events, tail = _decode_strict(last)
    except _BROKEN:
        last = _cleaned(last)
        try:
            events, tail = _decode_strict(last)
            replaced = True
        except _BROKEN:
            (events, lost, complete), tail = _salvage(last), {}
            dropped += lost
    gathered.add(events)
    n_read += len(events)
    if replaced and not dropped:
        warnings.append(_REPLACED)
    if dropped:
        warnings.append(f"left out: {plural(dropped, 'event')} that could not be read")
    if not complete:
        warnings.append(
            f"the trace ends early: only what is there was read ({plural(n_read, 'event')})"
        )
    return {**head, **tail}


def _decode(data: bytes, source: str, warnings: list[str]) -> tuple[list[Event], dict[str, Any]]:
    try:
        return _decode_strict(data)
    except _BROKEN:
        pass
    clean = _cleaned(data)
    try:
        events, metadata = _decode_strict(clean)
    except _BROKEN:
        pass
    else:
        warnings.append(_REPLACED)
        return events, metadata
    events, dropped, complete = _salvage(clean)
    if not events:
        raise TraceError(f"{source} is not a trace: it looks like {_what_it_looks_like(data)}")
    if dropped:
        warnings.append(f"left out: {plural(dropped, 'event')} that could not be read")
    if not complete:
        warnings.append(
            f"the trace ends early: only what is there was read ({plural(len(events), 'event')})"
        )
    return events, {}


def _decode_strict(data: bytes) -> tuple[list[Event], dict[str, Any]]:
    if data[:64].lstrip()[:1] == b"[":
        return _LIST.decode(data), {}
    file = _OBJECT.decode(data)
    found = {k: getattr(file, k) for k in _METADATA}
    return file.traceEvents, {k: v for k, v in found.items() if v is not None}


_REPLACED = (
    "what JSON does not allow was replaced: unprintable characters, single backslashes, or numbers "
    "such as inf"
)
# Kineto writes inf as the rate of a copy that took no time; Python's json reads and writes NaN.
_NO_NUMBER = re.compile(rb"(?<=[:,\[])(\s*)-?(?:inf|nan)(?:inity)?(?=\s*[,}\]])", re.IGNORECASE)
# Until 2023 Kineto wrote a path of Windows as it is: torch\nn\modules\module.py(1194).
_NO_ESCAPE = re.compile(rb'[^\\]\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SEPARATES = re.compile(rb"\\(?=\w)")


def _cleaned(data: bytes) -> bytes:
    """Control characters become spaces (outside strings that is the same), bad UTF-8 "�"; inf and
    NaN, which JSON does not know, become null, and backslashes that escape nothing slashes.
    """
    table = bytes(32 if i < 32 else i for i in range(256))
    data = _NO_NUMBER.sub(rb"\1null", data)
    if _NO_ESCAPE.search(data):
        data = _SEPARATES.sub(b"/", data)
    return data.translate(table).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").encode()


_START = re.compile(rb'"traceEvents"\s*:\s*\[')
# A string, a bracket, or a quote that no other quote closes (the file was cut inside a string).
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]|"', re.DOTALL)


def _salvage(data: bytes) -> tuple[list[Event], int, bool]:
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
    events: list[Event] = []
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
                except _BROKEN:
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
    except _BROKEN:
        sample = text[:4096]
        if text[:1] in b"{[":
            return "broken JSON without a single readable event"
        printable = sum(32 <= c < 127 for c in sample)
        return "plain text" if printable > 0.9 * len(sample) else "binary data"
    if isinstance(value, dict):
        keys = ", ".join(repr(str(k)[:40]) for k in itertools.islice(value, 5))
        return f"a JSON object with the keys {keys or '(none)'} and no 'traceEvents'"
    if isinstance(value, list):
        return f"a JSON list of {plural(len(value), 'item')}, not of trace events"
    return f"a JSON {type(value).__name__}"
