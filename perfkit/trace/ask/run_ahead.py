"""How long the device works on a step where the host runs ahead of it.

Steps end on the host's clock: when the optimizer's ``step`` returns. A loop that never waits hands
out step after step while the device is still at work on the first, as long as the queue has room,
so a recording of a few steps shows steps of the host's length. The device's work on what they
launched says how long they really take.
"""

from __future__ import annotations

from perfkit.trace.read.columns import DEVICE_CATEGORIES, Trace
from perfkit.trace.read.intervals import union
from perfkit.trace.read.lookups import device_rows
from perfkit.trace.read.steps import Steps

# A step's last kernels may always end after it; more than this, and the host did not wait.
_AHEAD = 1.05


def device_step_us(trace: Trace, steps: Steps) -> float | None:
    """Time that the device is busy with one step, in µs; None where the step is not shorter.

    Args:
        trace: the trace.
        steps: its steps.
    """
    if not trace.has_device or not len(steps):
        return None
    rows, _ = device_rows(trace, steps, *DEVICE_CATEGORIES)
    busy = union(trace.start_ns[rows], trace.end_ns[rows])
    working_ns = int((busy.end - busy.start).sum())
    if working_ns <= _AHEAD * int((steps.end_ns - steps.start_ns).sum()):
        return None
    return working_ns / len(steps) / 1e3
