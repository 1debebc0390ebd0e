"""The most memory that this process has held, and how much there is."""

from __future__ import annotations

from perfkit.base.device import in_use
from perfkit.base.machine._host import memory_bytes
from perfkit.base.process_memory import peak_resident_bytes, resident_bytes


def peak_of_memory() -> tuple[int, int] | None:
    """Bytes, of the device that is fullest where one is in use; None if that does not say."""
    device = in_use()
    at = [] if device.is_cpu else device.devices()
    peaks = [(device.peak_allocated(i), device.total_bytes(i)) for i in at]
    used = [(peak, total) for peak, total in peaks if peak]
    if not used:  # a process may have used the GPU and train on the CPU now
        return peak_resident_bytes() or resident_bytes(), memory_bytes()
    known = [(peak, total) for peak, total in used if total]
    return max(known, key=lambda one: one[0] / one[1], default=None)
