"""What DataLoader workers have of memory for themselves."""

from __future__ import annotations

import contextlib
import sys

from perfkit.base import torch_compat

# Each look reads the page table of each worker.
_MOST_WORKERS = 16


def private_bytes_of_workers() -> int:
    """Bytes of this process's DataLoader workers that they share with nobody; 0 without any.

    Of forked workers these are the pages that they have written to: a copy of each.
    """
    if "multiprocessing" not in sys.modules:
        return 0
    import psutil

    found: list[int] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if child.name() == torch_compat.LOADER_WORKER_NAME and len(found) < _MOST_WORKERS:
                found.append(int(child.memory_full_info().uss))
    return sum(found)
