"""The simulated traces of the lessons, under the name by which the tests know them."""

from __future__ import annotations

from perfkit.course.kit.simulated_traces import (
    ENGINE,
    HOST,
    SINGLE,
    STREAM,
    WORKERS,
    Simulated,
    cpu_training,
    gpu_training,
)

__all__ = [
    "ENGINE",
    "HOST",
    "SINGLE",
    "STREAM",
    "WORKERS",
    "Simulated",
    "cpu_training",
    "gpu_training",
]
