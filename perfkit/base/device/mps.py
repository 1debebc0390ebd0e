"""The GPU of an Apple computer, as torch reaches it through Metal.

Not run on a device yet: written from torch's public functions (``torch.accelerator``,
``torch.mps``); only what needs no such GPU is tested. Its allocator keeps no peaks, and the
profiler does not record its kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.base.device.accelerator import Accelerator


class Mps(Accelerator):
    """The one GPU; its index is always 0."""

    type = "mps"
    label = "MPS"
    has_float64 = False
    resolution_ns = 1000  # assumed: no document states it
    out_of_memory = r"\bMPS\b"

    def __init__(self) -> None:
        self._is_here: bool | None = None

    def is_initialised(self) -> bool:
        """Whether tensors are there: torch does not say whether it has begun to use it."""
        mps = getattr(sys.modules.get("torch"), "mps", None)
        if mps is None:
            return False
        if self._is_here is None:  # asking costs 10 µs, and the answer stays the same
            self._is_here = bool(mps.is_available())
        return self._is_here and mps.current_allocated_memory() > 0

    def devices(self) -> Sequence[int]:
        return (0,) if self.is_initialised() else ()

    def current(self) -> int:
        return 0

    def name(self, index: int) -> str:
        return "Apple GPU"

    def event(self) -> Any:
        return _Event()

    def stream(self, index: int) -> Any:
        return None  # there is one, and it has no name

    def allocated(self, index: int) -> int:
        import torch

        return int(torch.mps.current_allocated_memory())

    def peak_allocated(self, index: int) -> int:
        """What is allocated now: the allocator keeps no peak."""
        return self.allocated(index)

    def stats(self, index: int) -> Mapping[str, int]:
        import torch

        return {
            "allocated_bytes.all.current": int(torch.mps.current_allocated_memory()),
            "reserved_bytes.all.current": int(torch.mps.driver_allocated_memory()),
        }

    def reset_peaks(self, index: int) -> None:
        """Nothing: there are none."""

    def total_bytes(self, index: int) -> int | None:
        """What Metal recommends to stay below; the memory is the computer's."""
        import torch

        return int(torch.mps.recommended_max_memory())

    def waiting_functions(self) -> tuple[Any, tuple[str, ...]] | None:
        import torch

        return torch.mps, ("synchronize", "empty_cache")

    def waitable_types(self) -> tuple[Any, ...]:
        import torch

        return (torch.mps.Event,)


class _Event:
    """torch's event, whose ``record`` takes no stream."""

    def __init__(self) -> None:
        import torch

        self._event = torch.mps.Event(enable_timing=True)

    def record(self, stream: None = None) -> None:
        self._event.record()

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_time(self, later: _Event) -> float:
        return float(self._event.elapsed_time(later._event))


DEVICE = Mps()
