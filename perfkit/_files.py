"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError

__all__ = ["write_atomically"]


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in its place in one go.

    Whoever reads ``path`` sees the old file or the whole new one. The temporary file keeps
    the ending of the name, because writers choose their format by it.

    Raises:
        UsageError: the file cannot be written (disk full, permissions), or ``path`` is there
            and no ordinary file: to replace a device or a folder would destroy it.
    """
    try:
        blocked = path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write {str(path)!r:.120}: {reason}; name another file") from None
    if "\0" in str(path):
        raise UsageError(f"cannot write {str(path)!r:.120}: a null character; name another file")
    if blocked:
        raise UsageError(f"cannot write {path}: it is no ordinary file; name another one")
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
