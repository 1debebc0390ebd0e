"""Scratch folders that do not outlive their process, even after ``kill -9``.

A folder's name says which process of which host owns it. Creating the next one removes those whose
process has ended, and that no other one holds: in the same place, and where temporary ones are.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

_STEM = "perfkit"
_HELD = "held-"
_IN_MEMORY = "/dev/shm"


@contextlib.contextmanager
def scratch_folder(where: str | Path | None = None, *, hidden: bool = False) -> Iterator[Path]:
    """A new folder in ``where`` (default: the system's temporary folder), removed at the end.

    With ``hidden`` its name begins with a dot: for a folder that people look into.
    """
    folder = new_folder(where, hidden=hidden)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder(where: str | Path | None = None, *, hidden: bool = False) -> Path:
    """A new folder, which the caller removes; folders of ended processes are removed first."""
    temporary = tempfile.gettempdir()
    parent = str(where or temporary)
    for place in {parent, temporary, _IN_MEMORY}:
        sweep(place)
    stem = f"{'.' * hidden}{_STEM}-{_origin()}-{os.getpid()}-"
    return Path(tempfile.mkdtemp(prefix=stem, dir=parent))


def folder_of(pid: int, name: str, where: str | None = None) -> Path:
    """The path of the folder that processes started by ``pid`` share; it is not made.

    :func:`sweep` removes it when that process has ended.
    """
    return Path(where or tempfile.gettempdir()) / f"{_STEM}-{_origin()}-{pid}-{name}"


def hold(folder: Path) -> None:
    """:func:`sweep` leaves the folder while this process lives, too."""
    (folder / f"{_HELD}{os.getpid()}").touch()


def sweep(where: str | None = None) -> None:
    """Remove the folders in ``where`` whose process has ended; skip what cannot be removed."""
    ours = f"{_STEM}-{_origin()}-"
    with contextlib.suppress(OSError):
        for folder in Path(where or tempfile.gettempdir()).iterdir():
            name = folder.name.removeprefix(".")
            pid = name.removeprefix(ours).partition("-")[0] if name.startswith(ours) else ""
            if pid.isdigit() and not _lives(int(pid)) and not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    pids = (path.name.removeprefix(_HELD) for path in folder.glob(f"{_HELD}*"))
    return any(pid.isdigit() and _lives(int(pid)) for pid in pids)


def _origin() -> str:
    """Host and PID namespace: only within both is a process id unique.

    Containers share /dev/shm, and hosts a home folder.
    """
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    told = f"{platform.node()} {namespace}"
    return f"{zlib.crc32(told.encode(errors='surrogateescape')):08x}"  # paths of sockets are short


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
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """It has ended, and nobody has asked how: in many containers nobody ever does."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return told.rpartition(")")[2].split()[:1] == ["Z"]
