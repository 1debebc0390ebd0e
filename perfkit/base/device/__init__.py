"""The one place that knows devices: CUDA and ROCm, MPS, XPU, and the CPU as the null device.

Everything else asks what :func:`here` or :func:`in_use` returns, once, and then that
:class:`Device`. Importing this imports no torch.
"""

from __future__ import annotations

from perfkit.base.device.kind import Device, GraphedStep, ProfilerNames
from perfkit.base.device.registry import (
    accelerators,
    here,
    in_use,
    is_capturing,
    known,
    of,
    pattern,
    place_of,
    profiler_names,
    register,
)

__all__ = [
    "Device",
    "GraphedStep",
    "ProfilerNames",
    "accelerators",
    "here",
    "in_use",
    "is_capturing",
    "known",
    "of",
    "pattern",
    "place_of",
    "profiler_names",
    "register",
]
