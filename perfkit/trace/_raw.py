"""What torch's profiler has recorded, as the JSON that it writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from perfkit.trace._quiet import quiet_profiler

# A trace of a few steps takes MBs; with this much free, memory-backed storage is safe to use.
_SHM_FREE_BYTES = 2**30


def raw_trace(profile: Any) -> bytes:
    """The trace as JSON. Plain, and through memory where there is room: ten times faster."""
    with tempfile.TemporaryDirectory(prefix="perfkit-", dir=_roomy_folder()) as folder:
        path = Path(folder) / "trace.json"
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
