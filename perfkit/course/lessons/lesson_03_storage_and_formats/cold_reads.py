"""Read files that are not in the page cache, as the first epoch does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def cold_reads_ms(files: Iterable[Path]) -> list[float] | None:
    """Milliseconds to read each file after dropping it from the page cache.

    ``None`` if that is not possible: not Linux, a file system in memory, or a cache that kept the
    files, as the bytes read from disk show. On a rented machine the disk may have its own cache.
    """
    paths = list(files)
    if not paths or not hasattr(os, "posix_fadvise"):
        return None
    try:
        before = psutil.Process().io_counters().read_bytes
    except (AttributeError, psutil.Error):
        return None
    times, total = [], 0
    for path in paths:
        _forget(path)
        start = time.perf_counter()
        total += len(path.read_bytes())
        times.append(1e3 * (time.perf_counter() - start))
    from_disk = psutil.Process().io_counters().read_bytes - before
    return times if total and from_disk >= 0.9 * total else None


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # unwritten pages cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
