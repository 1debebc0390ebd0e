"""A device that works asynchronously while the host runs on: a GPU, or a simulated one."""

from __future__ import annotations

from typing import Any, Protocol

from perfkit.base.device import here
from perfkit.course.kit.simulated_device import SimulatedDevice
from perfkit.course.kit.sizes import has_gpu_speed

__all__ = ["AsyncDevice", "GpuDevice", "SimulatedDevice", "async_device"]

# float32, 2048 x 2048: 17 GFLOP each, together milliseconds even on a large GPU
_MATRIX_SIDE = 2048
_SMALL_SIDE = 512  # for a GPU that is played on the CPU
_PRODUCTS = 20


class AsyncDevice(Protocol):
    """What the lesson needs from a device."""

    name: str

    def launch(self) -> None:
        """Launch one piece of work; returns before it is done."""

    def pending(self) -> bool:
        """Whether launched work is still unfinished."""

    def synchronize(self) -> None:
        """Wait until all launched work is done."""


class GpuDevice:
    """The current GPU; a piece of work is 20 products of 2048 × 2048 float32 matrices.

    On a played GPU they are 512 × 512.
    """

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._gpu = here()
        self._index = self._gpu.current()
        self.name = self._gpu.name(self._index)
        place = self._gpu.place(self._index)
        side = _MATRIX_SIDE if has_gpu_speed(place) else _SMALL_SIDE
        self._a = torch.rand(side, side, device=place)
        self._out = torch.empty_like(self._a)

    def launch(self) -> None:
        for _ in range(_PRODUCTS):
            self._torch.mm(self._a, self._a, out=self._out)

    def pending(self) -> bool:
        return not self._gpu.stream(self._index).query()

    def synchronize(self) -> None:
        self._gpu.synchronize(self._index)

    def __repr__(self) -> str:
        return f"<{self.name}>"


def async_device(work_ms: float = 10.0) -> AsyncDevice:
    """The GPU if there is one, else a simulated device whose jobs take ``work_ms``."""
    return SimulatedDevice(work_ms) if here().is_cpu else GpuDevice()
