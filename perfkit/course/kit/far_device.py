"""The other end of a copy: a GPU, or what stands in for one where only sizes are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.base.device import here

if TYPE_CHECKING:
    import torch


def far_device() -> torch.device:
    """The GPU if there is one, else torch's ``meta`` device: shapes and sizes, no data."""
    import torch

    gpu = here()
    return torch.device("meta" if gpu.is_cpu else gpu.type)
