"""The most memory that this process has held, and how much there is."""

from __future__ import annotations

from perfkit.base.device import in_use
from perfkit.base.machine._host import memory_bytes
from perfkit.base.process_memory import peak_resident_bytes, resident_bytes


def peak_of_memory() -> tuple[int, int] | None:
    """Bytes, of the device that is fullest where one is in use; None if that does not say."""
    device = in_use()
    if device.is_cpu:
        return peak_resident_bytes() or resident_bytes(), memory_bytes()
    peaks = [(device.peak_allocated(i), device.total_bytes(i)) for i in device.devices()]
    known = [(peak, total) for peak, total in peaks if total]
    return max(known, key=lambda one: one[0] / one[1], default=None)
