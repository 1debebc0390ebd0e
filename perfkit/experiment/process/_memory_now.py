"""The memory of a run, read cheaply and labelled with what it is."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Protocol

import psutil

from perfkit.base.device import Device
from perfkit.base.process_memory import peak_resident_bytes, resident_bytes

if sys.platform != "win32":
    import resource


# Between two readings the last one is repeated: a reading costs some 10 µs, a step may be shorter.
_READ_EVERY_S = 0.05
# Reading a worker's own pages takes 1 to 5 ms; for more workers than this the sum is extrapolated.
_MOST_WORKERS_READ = 8


class Memory(Protocol):
    """The memory that the training process holds."""

    now_kind: str
    peak_kind: str

    def now(self) -> int:
        """Bytes now."""

    def peak(self) -> int:
        """The most so far."""


class ResidentMemory:
    """For a process without a GPU: its resident set, including torch itself and shared pages."""

    now_kind = "resident set of the training process"
    peak_kind = "peak resident set of the training process"

    def __init__(self) -> None:
        self._highest = 0

    def now(self) -> int:
        size = resident_bytes()
        self._highest = max(self._highest, size)
        return size

    def peak(self) -> int:
        self.now()
        return peak_resident_bytes() or self._highest


class AllocatorMemory:
    """For a process that uses a GPU: memory allocated by the caching allocator on one device."""

    def __init__(self, device: Device, index: int) -> None:
        self._device = device
        self._index = index
        self.now_kind = f"{device.label} memory allocated"
        self.peak_kind = f"peak {device.label} memory allocated"

    def now(self) -> int:
        return self._device.allocated(self._index)

    def peak(self) -> int:
        return self._device.peak_allocated(self._index)


def busiest_gpu(device: Device) -> int:
    """The index with the highest peak: a workload need not use torch's current device."""
    current = device.current()
    others = [index for index in device.devices() if index != current]
    return max((current, *others), key=device.peak_allocated)


class SampledMemory:
    """Reads memory at most every 50 ms and repeats the last figure in between."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._next_s = 0.0
        self._last = 0

    def at(self, now_s: float) -> int:
        """Bytes at about this time."""
        if now_s >= self._next_s:
            self._last = self.memory.now()
            self._next_s = now_s + _READ_EVERY_S
        return self._last


def page_faults() -> int | None:
    """How many pages this process has been given so far; None on a system that does not count.

    Minor faults of all its threads: a page was first touched and came from free memory, not from a
    disk. A call costs less than a microsecond.
    """
    if sys.platform == "win32":
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def workers_bytes() -> int | None:
    """Unique set size of all DataLoader workers in bytes; None without workers.

    It leaves out pages shared with the training process or each other: adding up resident sets
    would count torch once per worker.
    """
    workers = multiprocessing.active_children()
    if not workers:
        return None
    sizes = []
    for worker in workers[:_MOST_WORKERS_READ]:
        try:
            sizes.append(psutil.Process(worker.pid).memory_full_info().uss)
        except psutil.Error:  # ended meanwhile, or not readable
            continue
    return round(sum(sizes) / len(sizes) * len(workers)) if sizes else None
