"""Clocks that know their device and synchronise only when they must.

``settle()`` then ``now()``: host nanoseconds after the device has finished its work. On an
accelerator each ``settle()`` synchronises every device that this process uses (on the CPU it costs
nothing). So the work of one arm of an A/B comparison does not run into the other's time.
"""

from __future__ import annotations

import itertools
import time
from typing import Protocol

from perfkit.base.device import Device, here, in_use
from perfkit.base.errors import MissingError


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


class HostClock:
    """``time.perf_counter_ns``, for work that has finished when the call returns."""

    device = "cpu"

    def __init__(self) -> None:
        self.now = time.perf_counter_ns
        self.resolution_ns = _seen_resolution_ns()

    def settle(self) -> None:
        """Do nothing: the CPU's work is done when the call returns."""


class DeviceClock:
    """Host time after a synchronisation of an accelerator.

    Args:
        device: the kind of device; by default the accelerator of this machine.
        index: which one. By default ``settle`` waits for all that this process uses. Creating this
            clock initialises torch's current one.

    Raises:
        MissingError: torch sees no such device.
    """

    def __init__(self, device: Device | None = None, index: int | None = None) -> None:
        device = here() if device is None else device
        if device.is_cpu or not device.is_available():
            raise MissingError(
                "DeviceClock needs a GPU and torch sees none of that kind: use HostClock, or see "
                "`perfkit doctor`"
            )
        self._device = device
        self._index = device.current() if index is None else index
        self._is_chosen = index is not None
        self.device = device.place(self._index)
        self.resolution_ns = device.resolution_ns
        self.now = time.perf_counter_ns

    def settle(self) -> None:
        others = () if self._is_chosen else self._device.devices()
        for index in sorted({self._index, *others}):
            self._device.synchronize(index)


def clock_in_use() -> Clock:
    """The clock for this process: that of the accelerator it uses already, else the host's.

    Never imports torch and never initialises a device.
    """
    device = in_use()
    return HostClock() if device.is_cpu else DeviceClock(device)


def _seen_resolution_ns() -> int:
    """The smallest step that perf_counter_ns actually shows; measuring it takes about 20 µs."""
    times = [time.perf_counter_ns() for _ in range(200)]
    steps = [b - a for a, b in itertools.pairwise(times) if b > a]
    return max(min(steps, default=1), 1)
