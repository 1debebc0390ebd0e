"""Clocks that know their device and synchronise only when they must.

There are two ways to time:

* ``settle()`` then ``now()``: host nanoseconds after the device has finished its work. On CUDA each
  call synchronises every device that this process uses (on the CPU it costs nothing). Use it for
  A/B comparison, where the work of one arm must not run into the other's time.
* ``mark()`` … ``mark()``, then ``elapsed_ms(marks)``: on CUDA each mark records an event on the
  current stream, the host runs on, and one wait for the last event resolves them all. Use it for
  many steps in a row, whose overlap of host and device must not change.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from perfkit.base import torch_compat as _torch_compat
from perfkit.base.errors import MissingError

__all__ = ["Clock", "CudaClock", "HostClock", "clock_in_use"]


class Clock(Protocol):
    """What compare and the meters need from a clock; tests pass a fake one."""

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:0"`` …: whose work this clock times."""

    @property
    def resolution_ns(self) -> int:
        """The smallest difference that the clock can show, in nanoseconds."""

    def now(self) -> int:
        """Host time in nanoseconds; only differences mean anything."""

    def settle(self) -> None:
        """Wait until the device has finished all work queued so far."""

    def mark(self) -> Any:
        """A point in the device's time; does not wait."""

    def elapsed_ms(self, marks: Sequence[Any]) -> list[float]:
        """Milliseconds between successive marks (one fewer than marks), never negative."""


class HostClock:
    """``time.perf_counter_ns``, for work that has finished when the call returns."""

    device = "cpu"

    def __init__(self) -> None:
        self.now = time.perf_counter_ns
        self.resolution_ns = _seen_resolution_ns()

    def settle(self) -> None:
        """Do nothing: the CPU's work is done when the call returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def elapsed_ms(self, marks: Sequence[int]) -> list[float]:
        return [max(b - a, 0) / 1e6 for a, b in itertools.pairwise(marks)]


class CudaClock:
    """CUDA events on the current stream; host time after a synchronisation.

    Events measure the stream that is current at each ``mark()``; work on other streams counts only
    if the current stream waits for it.

    Args:
        index: the device. By default marks go to the current device, and ``settle`` waits for all
            devices that this process uses. Creating this clock initialises CUDA.

    Raises:
        MissingError: torch sees no CUDA device.
    """

    # Event times have a resolution of about 0.5 µs (CUDA runtime API, cudaEventElapsedTime).
    resolution_ns = 500

    def __init__(self, index: int | None = None) -> None:
        import torch

        self._cuda: Any = torch.cuda
        if not torch.cuda.is_available():
            raise MissingError(
                "CudaClock needs a CUDA device and torch sees none: use HostClock, or see "
                "`perfkit doctor`"
            )
        self._index = torch.cuda.current_device() if index is None else index
        self._is_chosen = index is not None
        self.device = f"cuda:{self._index}"
        self.now = time.perf_counter_ns

    def settle(self) -> None:
        others = () if self._is_chosen else _torch_compat.cuda_contexts()
        for index in sorted({self._index, *others}):
            self._cuda.synchronize(index)

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._index))
        return event

    def elapsed_ms(self, marks: Sequence[Any]) -> list[float]:
        if len(marks) < 2:
            return []
        # On one stream all earlier events are complete when the last one is, so waiting for them is
        # free. But the current stream may have changed between two marks.
        for mark in reversed(marks):
            mark.synchronize()
        return [max(float(a.elapsed_time(b)), 0.0) for a, b in itertools.pairwise(marks)]


def cuda_in_use() -> bool:
    """Whether this process has imported torch and initialised CUDA; does neither itself."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def clock_in_use() -> Clock:
    """The clock for this process: CUDA's if CUDA is already initialised, else the host's.

    Never imports torch and never initialises CUDA.
    """
    return CudaClock() if cuda_in_use() else HostClock()


def _seen_resolution_ns() -> int:
    """The smallest step that perf_counter_ns actually shows; measuring it takes about 20 µs."""
    times = [time.perf_counter_ns() for _ in range(200)]
    steps = [b - a for a, b in itertools.pairwise(times) if b > a]
    return max(min(steps, default=1), 1)
