"""A clock that knows its device and synchronises only when it must.

``settle()`` then ``now()``: host nanoseconds after the device has finished its work. So the work of
one arm of an A/B comparison does not run into the other's time.
"""

from __future__ import annotations

import time

from perfkit.base.device import Device, in_use


class Clock:
    """Host time, after the work of a device; a test gives ``compare`` something like it.

    Attributes:
        device: ``"cpu"`` or ``"cuda:0"`` …: whose work this clock times.
        now: host time in nanoseconds; only differences mean anything.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._index = device.current()
        self.device = device.place(self._index)
        self.now = time.perf_counter_ns

    def settle(self) -> None:
        """Wait until all devices that this process uses have done what was queued so far."""
        if self.device != "cpu":  # its work is done when a call returns
            for index in sorted({self._index, *self._device.devices()}):
                self._device.synchronize(index)


def clock_in_use() -> Clock:
    """That of the accelerator that this process uses already, else the host's; it starts none."""
    return Clock(in_use())
