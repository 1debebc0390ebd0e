"""A device that works asynchronously while the host runs on: a GPU, or a simulated one.

The simulated device is a job counter and a thread that sleeps for each job. It computes nothing,
but it behaves like a GPU in the one respect that matters to a stopwatch: ``launch()`` returns at
once, and only ``synchronize()`` shows that the work is done.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from perfkit.base.device import here
from perfkit.base.errors import UsageError
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


class SimulatedDevice:
    """Jobs that take ``work_ms`` each, one after the other, in the background.

    Args:
        work_ms: minimum milliseconds per job.

    Raises:
        UsageError: ``work_ms`` is not positive.
    """

    name = "simulated device"

    def __init__(self, work_ms: float = 10.0) -> None:
        if not work_ms > 0:
            raise UsageError(f"a job must take some time, not {work_ms!r} ms")
        self.work_ms = work_ms
        self._jobs = 0
        self._changed = threading.Condition()

    def launch(self) -> None:
        with self._changed:
            self._jobs += 1
            if self._jobs == 1:  # no thread is running: it ends when no job is left
                threading.Thread(
                    target=self._work, name="perfkit-simulated-device", daemon=True
                ).start()

    def pending(self) -> bool:
        return self._jobs > 0

    def synchronize(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs == 0)

    def _work(self) -> None:
        left = 1
        while left:
            time.sleep(self.work_ms / 1e3)
            with self._changed:
                self._jobs -= 1
                left = self._jobs
                self._changed.notify_all()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.work_ms:g} ms a job>"


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
