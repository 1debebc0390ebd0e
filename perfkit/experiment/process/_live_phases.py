"""Where the time of a run's steps goes, seen in steps of which no figure is.

The hooks are there only in live windows, whose steps do not count. They are left out where the
workload has compiled code, which would be compiled again for them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from perfkit.base.torch_compat import compile_has_patched_torch
from perfkit.measure.phases import Phases

_COMPILED = "the workload has compiled code, which would be compiled again for the hooks"


def _why_not(phases: Phases) -> str:
    """Why no step of this run has phases: what was recorded until then is not shown."""
    failed = phases.failure
    if failed is not None:
        return (
            f"watching them failed ({failed.error}, in {failed.during} at {failed.where}); your "
            "code ran on without it; please report this as a bug in perfkit"
        )
    if not phases.sees_modules:
        return "a step calls many modules by themselves, and timing each would slow it down"
    return ""


class LivePhases:
    """The child's side: records the phases of the steps between :meth:`begin` and :meth:`end`.

    Attributes:
        why_not: why it records nothing; empty where it does.
    """

    def __init__(self) -> None:
        self.why_not = ""
        self._phases: Phases | None = None
        self._steps: list[int] = []
        self._rows: list[tuple[int, ...]] = []

    @property
    def is_on(self) -> bool:
        """Whether it records."""
        return self._phases is not None

    def begin(self) -> None:
        """A live window begins."""
        if self._phases is not None or self.why_not:
            return
        if compile_has_patched_torch():
            self.why_not = _COMPILED
            return
        phases = Phases()
        phases.start()
        self._phases = phases

    def end(self) -> None:
        """A quiet window begins, or the run is over: leave no hook."""
        phases, self._phases = self._phases, None
        if phases is None:
            return
        phases.stop()
        self.why_not = _why_not(phases)

    def step_begins(self) -> None:
        """What came since the last step belongs to none."""
        if self._phases is not None:
            self._phases.skip(time.perf_counter_ns())

    def step_ended(self, number: int) -> None:
        """Step ``number``, from 0, is over."""
        phases = self._phases
        if phases is None:
            return
        row = phases.take()
        if phases.are_sure:
            self._steps.append(number)
            self._rows.append(row)

    def take(self) -> dict[str, Any]:
        """What was recorded since the last call, for a message."""
        if self.why_not:
            self._steps.clear()
            self._rows.clear()
            return {"phases_why_not": self.why_not}
        found = {
            "phase_steps": np.asarray(self._steps, np.int64).tobytes(),
            "phase_ns": np.asarray(self._rows, np.int64).tobytes(),
        }
        self._steps.clear()
        self._rows.clear()
        return found
