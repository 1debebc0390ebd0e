"""torch's profiler: begun where none runs, quietly, and read back as the JSON that it writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.errors import ProfilerBusyError
from perfkit.base.scratch import scratch_folder
from perfkit.trace.record.quiet import quiet_profiler

# A trace of a few steps takes MBs; with this much free, memory-backed storage is safe to use.
_SHM_FREE_BYTES = 2**30


def refuse_beside_another() -> None:
    """Raise ProfilerBusyError if a profiler runs in this process, or is about to."""
    if torch_compat.profiler_is_on():
        raise ProfilerBusyError(
            "a torch profiler is already active in this process: end it first (leave its "
            "`with` block, or call its `stop()`), then profile again"
        )
    if torch_compat.profiler_is_prepared():
        raise ProfilerBusyError(
            "a torch profiler with a schedule is in its warm-up in this process: end it first "
            "(leave its `with` block, or call its `stop()`), then profile again"
        )


def start_quietly(profile: Any) -> None:
    """Start a ``torch.profiler.profile``.

    Raises:
        ProfilerBusyError: torch refuses; nothing has begun.
    """
    try:
        with quiet_profiler():
            profile.start()
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise ProfilerBusyError(
            f"torch's profiler cannot start ({first}): end every other profiler of this process, "
            "then profile again"
        ) from error


def raw_trace(profile: Any) -> bytes:
    """The trace as JSON. Plain, and through memory where there is room: ten times faster."""
    with scratch_folder(_roomy_folder()) as folder:
        path = folder / "trace.json"
        with quiet_profiler():
            profile.export_chrome_trace(str(path))
        return path.read_bytes()


def _roomy_folder() -> str | None:
    shm = Path("/dev/shm")
    try:
        roomy = shutil.disk_usage(shm).free >= _SHM_FREE_BYTES and os.access(shm, os.W_OK)
    except OSError:
        return None
    return str(shm) if roomy else None
