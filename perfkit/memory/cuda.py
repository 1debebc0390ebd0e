"""CUDA memory, from the caching allocator's own counters.

The allocator knows what tensors hold (*allocated*), what it took from the device for them
(*reserved*: the device has that much less for others), and the peaks of both. Its peaks last
from one reset to the next and there is one of each per device, so a region that wants its own
must reset them: what they stood at is kept here, for :func:`allocator_states` and for regions
around this one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from perfkit.base import torch_compat as _torch_compat

__all__ = [
    "AllocatorState",
    "AllocatorUse",
    "CudaMeter",
    "CudaRuntime",
    "TorchCuda",
    "allocator_states",
]


class CudaRuntime(Protocol):
    """What is asked of CUDA; tests give a fake."""

    def devices(self) -> Sequence[int]:
        """The devices that this process has a context on."""

    def name(self, device: int) -> str:
        """What the device is called, e.g. ``"NVIDIA H200"``."""

    def synchronize(self, device: int) -> None:
        """Wait until the device has done all that was launched."""

    def stats(self, device: int) -> Mapping[str, int]:
        """``torch.cuda.memory_stats``."""

    def reset_peaks(self, device: int) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""


class TorchCuda:
    """The CUDA of this process. It never creates a context: without one there is no device."""

    def devices(self) -> Sequence[int]:
        """Those that this process has a context on: to wait for another would make one there."""
        import torch

        begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return _torch_compat.cuda_contexts() if begun else ()

    def name(self, device: int) -> str:
        """The device's name; ``"cuda:0"`` where a device that has failed no longer tells it."""
        import torch

        try:
            return str(torch.cuda.get_device_name(device))
        except RuntimeError:
            return f"cuda:{device}"

    def synchronize(self, device: int) -> None:
        """Wait for the device; a kernel's failure is raised here as ``RuntimeError``."""
        import torch

        torch.cuda.synchronize(device)

    def stats(self, device: int) -> Mapping[str, int]:
        """The allocator's counters; empty where it has none (an allocator of somebody else's)."""
        import torch

        try:
            return dict(torch.cuda.memory_stats(device))
        except RuntimeError:  # torch.cuda.memory.CUDAPluggableAllocator counts nothing
            return {}

    def reset_peaks(self, device: int) -> None:
        """Set the peaks back to what is allocated and reserved now."""
        import torch

        torch.cuda.reset_peak_memory_stats(device)


# The counters, as torch.cuda.memory_stats documents them.
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
        device: index of the device.
        name: the device's name.
        allocated_before_bytes, allocated_after_bytes, peak_allocated_bytes: held by tensors.
        reserved_before_bytes, reserved_after_bytes, peak_reserved_bytes: taken from the device.
        n_retries: times that it had to empty its cache to satisfy a request.
        n_ooms: times that it could not satisfy a request at all.
        n_device_allocs, n_device_frees: calls of cudaMalloc and cudaFree.
        warnings: what makes these figures doubtful.
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

    @property
    def left_behind_bytes(self) -> int:
        """Allocated after minus allocated before; negative when the region freed more."""
        return self.allocated_after_bytes - self.allocated_before_bytes

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return asdict(self) | {
            "left_behind_bytes": self.left_behind_bytes,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class AllocatorState:
    """The allocator of one device now. Peaks are since the process began, in bytes."""

    device: int
    name: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return asdict(self)


class _Peaks:
    """The highest peaks of each device before the last reset, since the process began."""

    def __init__(self) -> None:
        self._highest: dict[int, tuple[int, int]] = {}

    def keep(self, device: int, stats: Mapping[str, int]) -> None:
        self._highest[device] = self.joined(device, stats)

    def joined(self, device: int, stats: Mapping[str, int]) -> tuple[int, int]:
        allocated, reserved = self._highest.get(device, (0, 0))
        return (
            max(allocated, stats.get(_ALLOCATED_PEAK, 0)),
            max(reserved, stats.get(_RESERVED_PEAK, 0)),
        )


_process_peaks = _Peaks()
_running: list[CudaMeter] = []
_lock = threading.Lock()


def allocator_states(cuda: CudaRuntime | None = None) -> tuple[AllocatorState, ...]:
    """The allocators of all devices in use, without synchronising."""
    cuda = cuda or TorchCuda()
    states = []
    for device in cuda.devices():
        stats = cuda.stats(device)
        if not stats:
            continue
        allocated_peak, reserved_peak = _process_peaks.joined(device, stats)
        if not reserved_peak:  # a context, and no tensor was ever made there
            continue
        states.append(
            AllocatorState(
                device=device,
                name=cuda.name(device),
                allocated_bytes=stats.get(_ALLOCATED, 0),
                reserved_bytes=stats.get(_RESERVED, 0),
                peak_allocated_bytes=allocated_peak,
                peak_reserved_bytes=reserved_peak,
            )
        )
    return tuple(states)


class CudaMeter:
    """Reads the allocators' counters at both ends of a region; synchronises only there."""

    def __init__(self, cuda: CudaRuntime | None = None) -> None:
        """``cuda`` is the CUDA of this process unless a test gives another."""
        self._cuda: CudaRuntime = cuda or TorchCuda()
        self._before: dict[int, Mapping[str, int]] = {}
        # peaks that a nested meter has reset
        self._kept = _Peaks()

    def start(self) -> None:
        """Wait for the devices, keep their peaks and reset them."""
        with _lock:
            for device in self._cuda.devices():
                self._cuda.synchronize(device)
                stats = self._cuda.stats(device)
                self._before[device] = stats
                if not stats:
                    continue
                for peaks in (_process_peaks, *(meter._kept for meter in _running)):
                    peaks.keep(device, stats)
                self._cuda.reset_peaks(device)
            _running.append(self)

    def stop(self) -> tuple[AllocatorUse, ...]:
        """Wait for the devices again and read what happened; devices left unused are left out."""
        with _lock:
            if self in _running:
                _running.remove(self)
            try:
                devices = self._cuda.devices()
            except RuntimeError:  # of a device that has failed; the user's own call told it
                devices = tuple(self._before)
            uses = [self._use(device) for device in devices]
        return tuple(use for use in uses if use.peak_reserved_bytes or use.n_ooms)

    def _use(self, device: int) -> AllocatorUse:
        warnings = []
        try:
            self._cuda.synchronize(device)
        except RuntimeError as error:
            # the user's own call raises it too, or has: the counters are still worth showing
            first = (str(error).splitlines() or [""])[0]
            warnings.append(f"cuda:{device} reported an error at the end: {first}")
        before, after = self._before.get(device, {}), self._cuda.stats(device)
        if after and _ALLOCATED_PEAK not in after:
            warnings.append(f"the allocator of cuda:{device} keeps no peaks; they read as 0")
        allocated_peak, reserved_peak = self._kept.joined(device, after)

        def of(stats: Mapping[str, int], key: str) -> int:
            return int(stats.get(key, 0))

        def grown(key: str) -> int:
            return of(after, key) - of(before, key)

        return AllocatorUse(
            device=device,
            name=self._cuda.name(device),
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
        )
