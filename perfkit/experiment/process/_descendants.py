"""Which processes stand below one, whatever their group or session."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """Pids of a process's children, including adopted orphans; of this process by default."""
    asked = os.getpid() if pid is None else pid
    try:
        # those that another thread than the first has started stand under that thread
        threads = list(Path(f"/proc/{asked}/task").iterdir())
        return [int(p) for one in threads for p in (one / "children").read_text().split()]
    except OSError:  # it is gone, or a kernel without CONFIG_PROC_CHILDREN
        import psutil

        try:
            return [p.pid for p in psutil.Process(asked).children()]
        except psutil.Error:
            return []


def descendants(pid: int) -> list[int]:
    """Pids of its children, of theirs, and so on; parents before their children."""
    found = [pid]
    for one in found:
        found += children(one)
    return found[1:]
