"""How much memory a run holds right now, from counters that do not disturb it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfkit.base.device import in_use
from perfkit.base.process_memory import heap_bytes, resident_bytes

Kind = Literal["allocated", "resident"]

_LABELS: dict[Kind, str] = {
    "allocated": "allocated on the GPU (torch's caching allocator, all devices of this process)",
    "resident": "resident size of this process (without loader workers)",
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """One reading.

    Attributes:
        n_bytes: bytes held.
        kind: ``"allocated"``: tensors on all GPUs that this process uses;
            ``"resident"``: RAM pages of this process, which shrink late or never when memory is
            freed.
        in_use_bytes: beside a resident size, what malloc has handed out and not got back: exact
            where the resident size is not. None where nobody counted it.
    """

    n_bytes: int
    kind: Kind
    in_use_bytes: int | None = None

    @property
    def label(self) -> str:
        """The kind in words."""
        return _LABELS[self.kind]


def footprint() -> Footprint:
    """Read it now: the GPU's allocator where one is in use (0.1 ms a device), else 0.1 ms.

    Never imports torch, never initialises a device, never synchronises.
    """
    device = in_use()
    # a process may have used the GPU and train on the CPU now: then 0 B there say nothing
    if not device.is_cpu and (held := sum(map(device.allocated, device.devices()))):
        return Footprint(held, "allocated")
    return Footprint(resident_bytes(), "resident", heap_bytes())
