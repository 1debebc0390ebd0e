"""Scratch folders that do not outlive their process, even after ``kill -9``.

A folder's name says which process owns it. Creating the next one in the same place removes those
whose process has ended, and that no other one holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder_of", "hold", "new_folder", "scratch_folder", "sweep"]

_STEM = "perfkit"
_HELD = "held-"


@contextlib.contextmanager
def scratch_folder(where: str | None = None) -> Iterator[Path]:
    """A new folder in ``where`` (default: the system's temporary folder), removed at the end."""
    folder = new_folder(where)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder(where: str | None = None) -> Path:
    """A new folder, which the caller removes; folders of ended processes are removed first."""
    parent = where or tempfile.gettempdir()
    sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{_STEM}-{_namespace()}-{os.getpid()}-", dir=parent))


def folder_of(pid: int, name: str, where: str | None = None) -> Path:
    """The path of the folder that processes started by ``pid`` share; it is not made.

    :func:`sweep` removes it when that process has ended.
    """
    return Path(where or tempfile.gettempdir()) / f"{_STEM}-{_namespace()}-{pid}-{name}"


def hold(folder: Path) -> None:
    """:func:`sweep` leaves the folder while this process lives, too."""
    (folder / f"{_HELD}{os.getpid()}").touch()


def sweep(where: str | None = None) -> None:
    """Remove the folders in ``where`` whose process has ended; skip what cannot be removed."""
    ours = f"{_STEM}-{_namespace()}-"
    with contextlib.suppress(OSError):
        for folder in Path(where or tempfile.gettempdir()).glob(f"{ours}*"):
            pid = folder.name.removeprefix(ours).partition("-")[0]
            if pid.isdigit() and not _lives(int(pid)) and not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    pids = (path.name.removeprefix(_HELD) for path in folder.glob(f"{_HELD}*"))
    return any(pid.isdigit() and _lives(int(pid)) for pid in pids)


def _namespace() -> str:
    """The PID namespace: process ids are unique only within it, and containers share /dev/shm."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _lives(pid: int) -> bool:
    if os.name == "nt":
        import psutil

        return bool(psutil.pid_exists(pid))  # there os.kill would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
