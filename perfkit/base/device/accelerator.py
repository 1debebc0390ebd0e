"""What ``torch.accelerator`` answers for every device that torch has a backend for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from perfkit.base.device.kind import Device


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
