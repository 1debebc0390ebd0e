"""Intel's GPUs.

Not run on a device yet: written from torch's public functions (``torch.accelerator``,
``torch.xpu``) and from the names in Level Zero's and Unified Runtime's specifications; only what
needs no such GPU is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfkit.base.device.accelerator import Accelerator
from perfkit.base.device.kind import ProfilerNames


class Xpu(Accelerator):
    """All XPU devices of this process."""

    type = "xpu"
    label = "XPU"
    resolution_ns = 1000  # assumed: it depends on the device's timer
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


DEVICE = Xpu()
