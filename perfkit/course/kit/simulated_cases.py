"""Simulated steps that lessons show: one network, and what each loop around it is bound by."""

from __future__ import annotations

from collections.abc import Mapping

from perfkit.course.kit.simulated_gpu import SimulatedTraining

#: Four steps: one network, four loops around it.
CASES: Mapping[str, SimulatedTraining] = {
    "data": SimulatedTraining(batch=1024, loader_us=8_000),
    "launch": SimulatedTraining(batch=16),
    "sync": SimulatedTraining(batch=4096, items=10, python_us=700),
    "compute": SimulatedTraining(batch=4096),
}

#: Always busy but rarely multiplying: eight elementwise kernels after each narrow layer.
BUSY = SimulatedTraining(batch=65_536, width=32, elementwise=8, item_at_end=True)
