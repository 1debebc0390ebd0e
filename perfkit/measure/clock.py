"""Clocks that know their device and synchronise only when they must.

``settle()`` then ``now()``: host nanoseconds after the device has finished its work. On an
accelerator each ``settle()`` synchronises every device that this process uses (on the CPU it costs
nothing). So the work of one arm of an A/B comparison does not run into the other's time.
"""

from __future__ import annotations

import itertools
import time
from typing import Protocol

from perfkit.base.device import Device, in_use


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
    """Host time after a synchronisation of an accelerator that is there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._index = device.current()
        self.device = device.place(self._index)
        self.resolution_ns = device.resolution_ns
        self.now = time.perf_counter_ns

    def settle(self) -> None:
        """Wait for all devices that this process uses."""
        for index in sorted({self._index, *self._device.devices()}):
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
