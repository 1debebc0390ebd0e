"""How much memory a run holds right now, from counters that do not disturb it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfkit.base import torch_compat as _torch_compat
from perfkit.base.heap import heap_bytes
from perfkit.measure.clock import cuda_in_use

__all__ = ["Footprint", "footprint"]

Kind = Literal["allocated", "resident"]

_LABELS: dict[Kind, str] = {
    "allocated": "allocated on the GPU (torch's caching allocator, all devices of this process)",
    "resident": "resident size of this process (without loader workers)",
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """One reading.

    Attributes:
        n_bytes: bytes held.
        kind: ``"allocated"``: tensors on all CUDA devices that this process uses;
            ``"resident"``: RAM pages of this process, which shrink late or never when memory is
            freed.
        in_use_bytes: beside a resident size, what malloc has handed out and not got back: exact
            where the resident size is not. None where nobody counts it.
    """

    n_bytes: int
    kind: Kind
    in_use_bytes: int | None = None

    @property
    def label(self) -> str:
        """The kind in words."""
        return _LABELS[self.kind]


def footprint() -> Footprint:
    """Read it now: CUDA's allocator where CUDA is initialised (0.1 ms a device), else 0.1 ms.

    Never imports torch, never initialises CUDA, never synchronises.
    """
    if cuda_in_use():
        cuda = sys.modules["torch"].cuda
        held = sum(map(cuda.memory_allocated, _torch_compat.cuda_contexts()))
        return Footprint(int(held), "allocated")
    return Footprint(_resident_bytes(), "resident", heap_bytes())


def _resident_bytes() -> int:
    try:
        # second field: resident pages (proc(5), /proc/pid/statm)
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        import psutil

        return int(psutil.Process().memory_info().rss)
    return pages * os.sysconf("SC_PAGESIZE")
