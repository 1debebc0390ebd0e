"""How large a measured cell makes its tensors: to keep a GPU busy, or for a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.base.machine.played import is_played

if TYPE_CHECKING:
    import torch


def has_gpu_speed(device: torch.device | str) -> bool:
    """Whether work of a GPU's size takes milliseconds on this device.

    Args:
        device: ``"cpu"``, ``"cuda"`` … or a ``torch.device``.

    Returns:
        False for the CPU, and for a GPU that is played: perfkit's own tests run the lessons on one,
        and it computes on the CPU.
    """
    return str(device).partition(":")[0] != "cpu" and not is_played()
