"""The CPU: its work is done when a call returns, so there is nothing to ask."""

from __future__ import annotations

from typing import Any

from perfkit.base.device.kind import Device


class Cpu(Device):
    """The null device."""

    def holds(self, tensor: Any) -> bool:
        return False


DEVICE = Cpu()
