"""What DataLoader workers have of memory for themselves."""

from __future__ import annotations

import contextlib
import sys

from perfkit.base import torch_compat

# Each look reads the page table of each worker.
_MOST_WORKERS = 16


def private_bytes_of_workers() -> list[int]:
    """Bytes that each of this process's DataLoader workers shares with nobody.

    Of forked workers these are the pages that they have written to: a copy of each.
    """
    if "multiprocessing" not in sys.modules:
        return []
    import psutil

    found: list[int] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if child.name() == torch_compat.LOADER_WORKER_NAME and len(found) < _MOST_WORKERS:
                found.append(int(child.memory_full_info().uss))
    return found
