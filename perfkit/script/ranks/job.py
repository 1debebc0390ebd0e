"""Which job this process is a rank of, and the folder in which the job's ranks meet.

All processes of a job on one machine are started by one launcher (torchrun, mpirun), whose process
names the folder. Nothing but the standard library is imported: the program has not begun.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfkit.base.errors import UsageError
from perfkit.base.scratch import folder_of, sweep

#: Names the folder where the launcher was started by perfkit, which removes it.
FOLDER_VARIABLE = "PERFKIT_RANKS_FOLDER"


@dataclass(frozen=True)
class Job:
    """A job of several processes, and this one's place in it.

    Attributes:
        here: the ranks on this machine.
        is_kept: whether somebody wants what the folder holds.
        is_lent: whether the folder is that of the process that launched the job, which removes it.
    """

    rank: int
    world_size: int
    here: tuple[int, ...]
    folder: Path
    is_kept: bool
    is_lent: bool = False


def job_of(environment: Mapping[str, str], keep: Path | None = None) -> Job | None:
    """The job that a launcher says this process belongs to; None for one, or without a folder.

    Args:
        keep: the folder, where somebody wants what it holds; it is made.
    """
    rank, size = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
    if rank is None or size is None or size < 2 or rank >= size:
        return None
    local = _number(environment, "LOCAL_RANK")
    n_here = _number(environment, "LOCAL_WORLD_SIZE")
    if local is None or n_here is None or local >= n_here or local > rank:
        local, n_here = rank, size
    here = tuple(range(rank - local, min(rank - local + n_here, size)))
    given = environment.get(FOLDER_VARIABLE)
    try:
        folder = keep or (Path(given) if given else _meeting_place(environment))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to somebody else")
        attempt = folder / f"attempt{_number(environment, 'TORCHELASTIC_RESTART_COUNT') or 0}"
        attempt.mkdir(exist_ok=True)
    except OSError as error:
        if keep is None:
            return None  # each rank for itself
        raise UsageError(f"{keep}: {error.strerror or error}; name another folder") from None
    return Job(rank, size, here, attempt.absolute(), keep is not None, given is not None)


def _meeting_place(environment: Mapping[str, str]) -> Path:
    sweep()
    port = _number(environment, "MASTER_PORT") or 0
    return folder_of(os.getppid(), f"job{port}")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
