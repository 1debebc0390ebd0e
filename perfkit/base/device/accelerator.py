"""What ``torch.accelerator`` answers for every device that torch has a backend for: MPS and XPU.

Not run on a device yet: written from torch's public functions; only what needs no such GPU is
tested.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.base.device.kind import Device, ProfilerNames


class Accelerator(Device):
    """A device behind ``torch.accelerator``; a subclass says its type and what is its own.

    It must add :meth:`devices`, which ``torch.accelerator`` does not tell without initialising the
    device; and :meth:`is_initialised` where torch's module of this type does not know.
    """

    def is_initialised(self) -> bool:
        module = getattr(sys.modules.get("torch"), self.type, None)
        return module is not None and bool(module.is_initialized())

    def is_available(self) -> bool:
        import torch

        found = torch.accelerator.current_accelerator(check_available=True)
        return found is not None and found.type == self.type

    def count(self) -> int:
        import torch

        return torch.accelerator.device_count()

    def current(self) -> int:
        import torch

        return torch.accelerator.current_device_index()

    def synchronize(self, index: int) -> None:
        import torch

        torch.accelerator.synchronize(index)

    def event(self) -> Any:
        import torch

        return torch.Event(self.type, enable_timing=True)

    def stream(self, index: int) -> Any:
        import torch

        return torch.accelerator.current_stream(index)

    def allocated(self, index: int) -> int:
        import torch

        return int(torch.accelerator.memory_allocated(index))

    def peak_allocated(self, index: int) -> int:
        import torch

        return int(torch.accelerator.max_memory_allocated(index))

    def stats(self, index: int) -> Mapping[str, int]:
        import torch

        return dict(torch.accelerator.memory_stats(index))

    def reset_peaks(self, index: int) -> None:
        import torch

        torch.accelerator.reset_peak_memory_stats(index)

    def total_bytes(self, index: int) -> int | None:
        import torch

        return int(torch.accelerator.get_memory_info(index)[1])


class Mps(Accelerator):
    """The GPU of an Apple computer, through Metal; its index is always 0.

    Its allocator keeps no peaks, and the profiler does not record its kernels.
    """

    type = "mps"
    label = "MPS"
    has_float64 = False
    out_of_memory = r"\bMPS\b"

    def __init__(self) -> None:
        self._is_here: bool | None = None

    def is_initialised(self) -> bool:
        """Whether tensors are there: torch does not say whether it has begun to use it."""
        mps = getattr(sys.modules.get("torch"), "mps", None)
        if mps is None:
            return False
        if self._is_here is None:  # asking costs 10 µs, and the answer stays the same
            self._is_here = bool(mps.is_available())
        return self._is_here and mps.current_allocated_memory() > 0

    def devices(self) -> Sequence[int]:
        return (0,) if self.is_initialised() else ()

    def current(self) -> int:
        return 0

    def name(self, index: int) -> str:
        return "Apple GPU"

    def event(self) -> Any:
        return _Event()

    def stream(self, index: int) -> Any:
        return None  # there is one, and it has no name

    def allocated(self, index: int) -> int:
        import torch

        return int(torch.mps.current_allocated_memory())

    def peak_allocated(self, index: int) -> int:
        """What is allocated now: the allocator keeps no peak."""
        return self.allocated(index)

    def stats(self, index: int) -> Mapping[str, int]:
        import torch

        return {
            "allocated_bytes.all.current": int(torch.mps.current_allocated_memory()),
            "reserved_bytes.all.current": int(torch.mps.driver_allocated_memory()),
        }

    def reset_peaks(self, index: int) -> None:
        """Nothing: there are none."""

    def total_bytes(self, index: int) -> int | None:
        """What Metal recommends to stay below; the memory is the computer's."""
        import torch

        return int(torch.mps.recommended_max_memory())

    def waiting_functions(self) -> tuple[Any, tuple[str, ...]] | None:
        import torch

        return torch.mps, ("synchronize", "empty_cache")

    def waitable_types(self) -> tuple[Any, ...]:
        import torch

        return (torch.mps.Event,)


class _Event:
    """torch's event, whose ``record`` takes no stream."""

    def __init__(self) -> None:
        import torch

        self._event = torch.mps.Event(enable_timing=True)

    def record(self, stream: None = None) -> None:
        self._event.record()

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_time(self, later: _Event) -> float:
        return float(self._event.elapsed_time(later._event))


class Xpu(Accelerator):
    """All of Intel's GPUs of this process.

    The profiler's names are those of Level Zero's and Unified Runtime's specifications.
    """

    type = "xpu"
    label = "XPU"
    profiler = ProfilerNames(
        activity="XPU",
        type_numbers=(12,),
        runtime_categories=("xpu_runtime", "xpu_driver"),
        # zeEventHostSynchronize, zeCommandQueueSynchronize; urQueueFinish, urEventWait
        waits=r"^xpu.*[Ww]ait|^ze\w+Synchronize$|^ur(QueueFinish|EventWait)$",
        copies=r"^urEnqueue(USM|MemBuffer)\w*(Memcpy|Copy|Read|Write)"
        r"|^zeCommandListAppendMemoryCopy",
        allocations=("zeMemAllocDevice", "zeMemFree", "urUSMDeviceAlloc", "urUSMFree"),
        needed_by=r"^xccl:",
    )
    alloc_call = "zeMemAllocDevice"
    free_call = "zeMemFree"
    out_of_memory = r"\bXPU\b"
    out_of_memory_index = r"\bGPU (\d+) has\b"

    def devices(self) -> Sequence[int]:
        """All that torch sees, once it has begun to use them."""
        return range(self.count()) if self.is_initialised() else ()

    def name(self, index: int) -> str:
        import torch

        try:
            return str(torch.xpu.get_device_name(index))
        except RuntimeError:  # a device that has failed
            return self.place(index)

    def utilisation(self, index: int) -> float | None:
        """From Level Zero's management library; None where torch cannot ask it."""
        import torch

        try:
            return float(torch.xpu.utilization(index))
        except (ImportError, RuntimeError):
            return None

    def waiting_functions(self) -> tuple[Any, tuple[str, ...]] | None:
        import torch

        return torch.xpu, ("synchronize", "empty_cache")

    def waitable_types(self) -> tuple[Any, ...]:
        import torch

        return torch.xpu.Event, torch.xpu.Stream
