"""Atomic file writes, and pipe reads that cannot hang."""

from __future__ import annotations

import errno
import os
import select
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.base.errors import UsageError

# A pipe that is silent this long has no writer.
SILENT_PIPE_S = 10.0
_PIECE_BYTES = 1 << 20
# More than a page of a report takes. On a full disk an empty file can still be made.
_TRIED_BYTES = 1 << 20


def read_pipe(path: Path, *, at_most: int | None = None) -> bytes | None:
    """Read a pipe until it is closed; None if ``path`` is not a pipe.

    Args:
        path: a named pipe, ``/dev/stdin``, or what a shell makes from ``<(…)``.
        at_most: refuse more bytes than this.

    Raises:
        OSError: it does not exist, is a device or a socket, holds more than ``at_most`` bytes, or
            was silent for 10 s.
    """
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    if not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a device or a socket, not a file")
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise it waits for a writer
    try:
        data = bytearray()
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        while waiting.poll(SILENT_PIPE_S * 1e3):
            piece = os.read(pipe, _PIECE_BYTES)
            if not piece:
                return bytes(data)
            data += piece
            if at_most is not None and len(data) > at_most:
                raise OSError(errno.EFBIG, f"the pipe holds more than {at_most:,} bytes")
    finally:
        os.close(pipe)
    raise OSError(errno.ETIMEDOUT, f"nothing came through this pipe for {SILENT_PIPE_S:g} s")


def why_not_writable(path: Path) -> str:
    """Why a file at ``path`` could not be written later, and what to do; empty if it could."""
    folder = path.parent
    try:
        if path.is_dir():
            return "is a directory; name a file in it"
        if path.exists() and not path.is_file():
            return "is a device or a pipe; name a file"
        if not folder.is_dir():
            return f"there is no directory {str(folder)!r}; make it first"
    except (OSError, ValueError) as error:  # a name that is too long, or with a null character
        return f"{getattr(error, 'strerror', None) or error}; name another file"
    if not os.access(folder, os.W_OK):
        return f"the directory {str(folder)!r} cannot be written to; name another one"
    return ""


def try_writing(folder: Path) -> None:
    """Make a folder and write 1 MiB into it, which is removed: before minutes of work for it.

    Raises:
        OSError: that is not possible.
        ValueError: a null character in the name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as tried:
        tried.write(bytes(_TRIED_BYTES))
        tried.flush()


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a file beside ``path``, then move it into place in one operation.

    Readers of ``path`` see either the old file or the whole new one. The temporary file keeps the
    file name's ending, because writers choose their format by it.

    Raises:
        UsageError: the file cannot be written (disk full, permissions), or ``path`` exists and is
            not a regular file: replacing a device or a folder would destroy it.
    """
    try:
        blocked = path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write {str(path)!r:.120}: {reason}; name another file") from None
    if "\0" in str(path):
        raise UsageError(f"cannot write {str(path)!r:.120}: a null character; name another file")
    if blocked:
        raise UsageError(f"cannot write {path}: it is not a regular file; give another one")
    ending = "".join(path.suffixes[-2:])
    try:
        handle, name = tempfile.mkstemp(prefix=".perfkit-", suffix=ending, dir=path.parent)
        os.close(handle)
        part = Path(name)
        try:
            write(part)
            # mkstemp makes files private to the user; give the mode any new file would get
            mask = os.umask(0)
            os.umask(mask)
            part.chmod(0o666 & ~mask)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
