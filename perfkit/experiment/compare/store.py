"""A file of runs: one JSON object per line, intact even after ``kill -9``.

Each line names its ``schema``, the workload (name and digest of its code), the machine, the
``part`` of the experiment that the run is, and the run with its curve. A line is written in one
call and synced to disk before the next run begins. An incomplete last line is recognised by its
missing end, reported and removed, and the run is repeated. One process at a time may write (the
lock ends with its holder), and a store only takes runs of one workload on one machine.

A store is not scrubbed, because experiments resume from it: a run's captured output may contain
whatever the run printed. To share results, ``save()`` the sweep.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfkit.base.arguments import brief
from perfkit.base.errors import StoreError
from perfkit.base.files import read_pipe
from perfkit.base.structs import as_struct, misfit
from perfkit.base.words import fmt_bytes
from perfkit.experiment.compare._identity import Identity
from perfkit.experiment.compare._saved import SavedRun, saved
from perfkit.experiment.process.result import RunResult

#: The schema of every line; any other is refused.
SCHEMA = "perfkit.run/1"

# A run with its curve is some 100 kB, so this is thousands of runs: a larger file is no store.
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class Line:
    """One run of a store.

    Attributes:
        part: which run of its experiment it is, in plain values that only the experiment
            interprets.
        run: the run.
        identity: workload and machine, as in the file.
    """

    part: Mapping[str, Any]
    run: RunResult
    identity: Mapping[str, str]


def read(path: str | os.PathLike[str]) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The runs in a store, and notes on an incomplete last line; changes and locks nothing.

    Raises:
        StoreError: it cannot be read, or is not a store.
    """
    place = _place(path)
    try:
        piped = read_pipe(place, at_most=_MOST_BYTES)
        data = _whole(place) if piped is None else piped
    except OSError as error:
        raise StoreError(f"cannot read {place}: {error.strerror or error}") from error
    whole, torn = _split(place, data)
    notes = (_torn_note(place, torn),) if torn else ()
    return tuple(_lines(place, whole)), notes


class Store:
    """A store opened for writing; a context manager.

    Attributes:
        lines: the runs that it held when opened, and those appended since.
        notes: repairs.

    Raises:
        StoreError: another process is writing it (the message has its pid), it holds runs of
            another workload or machine, it is damaged before its last line, or it cannot be
            written.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Identity) -> None:
        self.path = _place(path)
        self.notes: list[str] = []
        self._identity = identity
        # one lock per file, whatever links lead to it
        self._lock = _Lock(Path(os.path.realpath(self.path)))
        try:
            self.lines = list(self._opened())
        except BaseException:
            self._lock.release()
            raise

    def append(self, run: RunResult, part: Mapping[str, Any]) -> None:
        """Append a run; it is on disk when this returns.

        Raises:
            StoreError: it cannot be written (disk full …); the file is unchanged.
        """
        line = {"schema": SCHEMA, **self._identity.to_dict(), "part": dict(part), "run": saved(run)}
        data = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        self._write(data)
        self.lines.append(Line(dict(part), run, self._identity.to_dict()))

    def close(self) -> None:
        """Release the lock. A second call does nothing."""
        self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- within -----------------------------------------------------------------------------

    def _opened(self) -> Iterator[Line]:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise StoreError(f"{self.path} is not a regular file: give another one for the store")
        try:
            data = _whole(self.path)
            whole, torn = _split(self.path, data)
            lines = _lines(self.path, whole)
            for line in lines:
                why = self._identity.difference(line.identity)
                if why:
                    raise StoreError(f"the store {self.path} is refused: {why}; name another file")
            if torn:
                os.truncate(self.path, len(whole))
                self.notes.append(f"{_torn_note(self.path, torn)}: it was removed")
            elif data and not data.endswith(b"\n"):
                self._write(b"\n")
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror or error}") from error
        yield from lines

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing."""
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                before = os.fstat(fd).st_size
                try:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(fd, rest) :]
                    os.fsync(fd)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.ftruncate(fd, before)
                    raise
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"cannot append to the store {self.path}: {error.strerror or error}"
            ) from error


def _place(path: Any) -> Path:
    """The file that the path refers to.

    Raises:
        StoreError: it is not a file name.
    """
    place = Path(path) if isinstance(path, str | os.PathLike) else Path()
    if not place.name or "\0" in place.name:
        raise StoreError(f"{brief(path)} is not a file name: give one for the store")
    return place


def _whole(path: Path) -> bytes:
    """What the file holds.

    Raises:
        OSError: it cannot be read, or is too large for a store.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {fmt_bytes(_MOST_BYTES)}, so no store")
    return path.read_bytes()


def _split(path: Path, data: bytes) -> tuple[bytes, bytes]:
    """Split into whole lines and the rest of an incomplete last line."""
    end = data.rfind(b"\n") + 1
    tail = data[end:]
    if not tail:
        return data, b""
    try:
        json.loads(tail)
    except (ValueError, RecursionError):
        return data[:end], tail
    return data, b""  # only the end of the line is missing


class _SavedLine(Struct):
    """One line; what :class:`perfkit.experiment.compare._identity.Identity` writes comes as it is.

    ``part`` belongs to the experiment: only what it relies on when it resumes is looked at.
    """

    schema: str
    run: SavedRun
    part: dict[str, Any]
    workload: Any = None
    digest: Any = None
    machine: Any = None
    gpu: Any = None
    torch: Any = None

    def __post_init__(self) -> None:
        needed = _PARTS.get(str(self.part.get("kind")))
        if needed is not None:
            as_struct(self.part, needed)


class _PartOfAB(Struct):
    block: float
    which: float
    a_ms: float
    b_ms: float
    took_s: float


class _PartOfSweep(Struct):
    round: float


_PARTS: dict[str, type[Struct]] = {"ab": _PartOfAB, "sweep": _PartOfSweep}
_IDENTITY = ("workload", "digest", "machine", "gpu", "torch")


def _lines(path: Path, data: bytes) -> list[Line]:
    found = []
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_SavedLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{path}, line {number} {_refused(text, error)}") from None
        if line.schema != SCHEMA:
            raise StoreError(f"{path}, line {number} {_other_schema(line.schema)}")
        identity = {name: str(getattr(line, name)) for name in _IDENTITY}
        found.append(Line(line.part, line.run.run(), identity))
    return found


def _refused(text: bytes, error: Exception) -> str:
    """Why a line is not a run, after its place, and what to do."""
    try:
        schema = json.loads(text)["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "is not a run; remove that line, or name another file"
    if schema != SCHEMA:
        return _other_schema(schema)
    why = misfit(error) if isinstance(error, msgspec.DecodeError) else str(error)
    return f"is damaged ({why:.120}); remove that line"


def _other_schema(schema: Any) -> str:
    return f"has the schema {schema!r:.60}, this perfkit reads {SCHEMA!r}; name another file"


def _torn_note(path: Path, torn: bytes) -> str:
    return f"the last line of {path} was cut off while it was written ({len(torn)} bytes)"


class _Lock:
    """A lock file beside the store, which the system releases when its holder dies.

    The lock file says who holds it. The store itself is not locked, so that others can read it on
    every system.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._fd: int | None = None
        if sys.platform == "win32":  # there, two sweeps may write one store
            return
        import fcntl

        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise StoreError(
                    f"cannot write next to the store {path}: {error.strerror or error}"
                ) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(fd, 200).decode(errors="replace").strip()
                os.close(fd)
                raise StoreError(
                    f"the store {path} is in use by {holder or 'another process'}: wait until "
                    "that is done, or name another file"
                ) from None
            # the last holder may have removed the file between open and lock
            try:
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):  # noqa: PTH116
                    break
            except FileNotFoundError:
                pass
            os.close(fd)
        self._fd = fd
        with contextlib.suppress(OSError):  # a full disk: the lock still holds, but names no holder
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let go."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(fd)
