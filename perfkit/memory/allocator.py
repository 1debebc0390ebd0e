"""Memory of a GPU, from the caching allocator's own counters.

The allocator knows what tensors hold (*allocated*), what it took from the device for them
(*reserved*: the device has that much less for others), and the peaks of both. Its peaks last
from one reset to the next and there is one of each per device, so a region that wants its own
must reset them: what they stood at is kept here, for :func:`allocator_states` and for regions
around this one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.device import Device, in_use, of
from perfkit.base.plain import fields

# The counters, as torch.cuda.memory_stats documents them (see Device.stats).
_ALLOCATED = "allocated_bytes.all.current"
_ALLOCATED_PEAK = "allocated_bytes.all.peak"
_RESERVED = "reserved_bytes.all.current"
_RESERVED_PEAK = "reserved_bytes.all.peak"
_RETRIES = "num_alloc_retries"
_OOMS = "num_ooms"
_DEVICE_ALLOCS = "num_device_alloc"
_DEVICE_FREES = "num_device_free"


@dataclass(frozen=True)
class AllocatorUse:
    """What the allocator of one device did during a region. All sizes in bytes.

    Attributes:
        allocated_before_bytes, allocated_after_bytes, peak_allocated_bytes: held by tensors.
        reserved_before_bytes, reserved_after_bytes, peak_reserved_bytes: taken from the device.
        n_retries: times that it had to empty its cache to satisfy a request.
        n_ooms: times that it could not satisfy a request at all.
        n_device_allocs, n_device_frees: calls of cudaMalloc and cudaFree, or their likes.
        type: torch's type of the device.
        expandable_segments: its segments could grow (``expandable_segments:True``).
    """

    device: int
    name: str
    allocated_before_bytes: int
    allocated_after_bytes: int
    peak_allocated_bytes: int
    reserved_before_bytes: int
    reserved_after_bytes: int
    peak_reserved_bytes: int
    n_retries: int
    n_ooms: int
    n_device_allocs: int
    n_device_frees: int
    warnings: tuple[str, ...] = ()
    type: str = "cuda"
    expandable_segments: bool = False

    @property
    def was_asked(self) -> bool:
        """Whether it took memory from the device, gave some back, or could not."""
        return bool(self.n_ooms or self.n_device_allocs or self.n_device_frees)

    @property
    def place(self) -> str:
        """As torch writes the device: ``"cuda:0"``."""
        return of(self.type).place(self.device)

    @property
    def left_behind_bytes(self) -> int:
        """Allocated after minus allocated before; negative when the region freed more."""
        return self.allocated_after_bytes - self.allocated_before_bytes

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, "left_behind_bytes")


@dataclass(frozen=True)
class AllocatorState:
    """The allocator of one device now. Peaks are since the process began, in bytes.

    ``expandable_segments``: its segments can grow.
    """

    device: int
    name: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    type: str = "cuda"
    expandable_segments: bool = False

    @property
    def place(self) -> str:
        """As torch writes the device: ``"cuda:0"``."""
        return of(self.type).place(self.device)


class _Peaks:
    """The highest peaks of each device before the last reset, since the process began."""

    def __init__(self) -> None:
        self._highest: dict[str, tuple[int, int]] = {}

    def keep(self, device: str, stats: Mapping[str, int]) -> None:
        self._highest[device] = self.joined(device, stats)

    def joined(self, device: str, stats: Mapping[str, int]) -> tuple[int, int]:
        allocated, reserved = self._highest.get(device, (0, 0))
        return (
            max(allocated, stats.get(_ALLOCATED_PEAK, 0)),
            max(reserved, stats.get(_RESERVED_PEAK, 0)),
        )


_process_peaks = _Peaks()
_running: list[AllocatorMeter] = []
_lock = threading.Lock()


def allocator_states(device: Device | None = None) -> tuple[AllocatorState, ...]:
    """The allocators of all devices in use, without synchronising.

    Args:
        device: the kind of device; the one in use unless a test gives another.
    """
    device = device or in_use()
    states = []
    for index in device.devices():
        stats = device.stats(index)
        if not stats:
            continue
        allocated_peak, reserved_peak = _process_peaks.joined(device.place(index), stats)
        # a context, and no tensor was ever made there; not every allocator keeps peaks
        if not reserved_peak and not stats.get(_RESERVED, 0):
            continue
        states.append(
            AllocatorState(
                device=index,
                name=device.name(index),
                allocated_bytes=stats.get(_ALLOCATED, 0),
                reserved_bytes=stats.get(_RESERVED, 0),
                peak_allocated_bytes=allocated_peak,
                peak_reserved_bytes=reserved_peak,
                type=device.type,
                expandable_segments=torch_compat.has_expandable_segments(),
            )
        )
    return tuple(states)


class AllocatorMeter:
    """Reads the allocators' counters at both ends of a region; synchronises only there."""

    def __init__(self, device: Device | None = None) -> None:
        """``device`` is the kind of device in use unless a test gives another."""
        self._given = device
        self._device = device or in_use()
        self._before: dict[int, Mapping[str, int]] = {}
        # peaks that a nested meter has reset
        self._kept = _Peaks()

    def start(self) -> None:
        """Wait for the devices, keep their peaks and reset them."""
        with _lock:
            self._device = device = self._given or in_use()
            for index in device.devices():
                device.synchronize(index)
                stats = device.stats(index)
                self._before[index] = stats
                if not stats:
                    continue
                for peaks in (_process_peaks, *(meter._kept for meter in _running)):
                    peaks.keep(device.place(index), stats)
                device.reset_peaks(index)
            _running.append(self)

    def stop(self) -> tuple[AllocatorUse, ...]:
        """Wait for the devices again and read what happened; devices left unused are left out."""
        with _lock:
            if self in _running:
                _running.remove(self)
            if self._device.is_cpu:
                self._device = in_use()  # the region may have been the first to use one
            try:
                devices = self._device.devices()
            except RuntimeError:  # of a device that has failed; the user's own call told it
                devices = tuple(self._before)
            uses = [self._use(index) for index in devices]
        return tuple(
            use for use in uses if use.peak_reserved_bytes or use.reserved_after_bytes or use.n_ooms
        )

    def _use(self, index: int) -> AllocatorUse:
        device, place = self._device, self._device.place(index)
        warnings = []
        try:
            device.synchronize(index)
        except RuntimeError as error:
            # the user's own call raises it too, or has: the counters are still worth showing
            first = (str(error).splitlines() or [""])[0]
            warnings.append(f"{place} reported an error at the end: {first}")
        before, after = self._before.get(index, {}), device.stats(index)
        if after and _ALLOCATED_PEAK not in after:
            warnings.append(f"the allocator of {place} keeps no peaks; they read as 0")
        allocated_peak, reserved_peak = self._kept.joined(place, after)

        def of(stats: Mapping[str, int], key: str) -> int:
            return int(stats.get(key, 0))

        def grown(key: str) -> int:
            return of(after, key) - of(before, key)

        return AllocatorUse(
            device=index,
            name=device.name(index),
            allocated_before_bytes=of(before, _ALLOCATED),
            allocated_after_bytes=of(after, _ALLOCATED),
            peak_allocated_bytes=allocated_peak,
            reserved_before_bytes=of(before, _RESERVED),
            reserved_after_bytes=of(after, _RESERVED),
            peak_reserved_bytes=reserved_peak,
            n_retries=grown(_RETRIES),
            n_ooms=grown(_OOMS),
            n_device_allocs=grown(_DEVICE_ALLOCS),
            n_device_frees=grown(_DEVICE_FREES),
            warnings=tuple(warnings),
            type=device.type,
            expandable_segments=torch_compat.has_expandable_segments(),
        )
