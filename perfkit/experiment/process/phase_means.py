"""Where the time of a run's steps goes: what its process saw, summed up by the kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.base.words import plural
from perfkit.measure.phases import PHASES

# Means of fewer steps may look like no other step of the run.
_FEWEST_STEPS = 3


@dataclass(frozen=True)
class PhaseMeans:
    """Means over the steps of a run that were watched.

    Attributes:
        ms: mean milliseconds a step of each of :data:`~perfkit.measure.phases.PHASES` that took
            time, by the host's clock; empty where nothing was recorded.
        n_steps: how many steps that is of, all in live windows after the warm-up.
        why_not: why nothing was recorded; empty, too, where nothing was to be, or no step ended.
    """

    ms: dict[str, float] = field(default_factory=dict)
    n_steps: int = 0
    why_not: str = ""


class PhaseRows:
    """Collects what the process of a run sends."""

    def __init__(self) -> None:
        self._ns: list[NDArray[np.int64]] = []
        self._why_not = ""
        self._was_watched = False

    def take(self, message: dict[str, Any], kept: NDArray[np.int64], warmup: int) -> None:
        """The phases in a message, of steps after the warm-up.

        Args:
            message: from the process.
            kept: numbers of the steps in it that no pause touched.
            warmup: number of first steps that do not count.
        """
        self._why_not = message.get("phases_why_not", self._why_not)
        self._was_watched |= "phase_steps" in message
        steps = np.frombuffer(message.get("phase_steps", b""), np.int64)
        if len(steps):
            rows = np.frombuffer(message["phase_ns"], np.int64).reshape(len(steps), len(PHASES))
            self._ns.append(rows[np.isin(steps, kept) & (steps >= warmup)])

    def means(self) -> PhaseMeans:
        """The means; nothing where part of the run could not be recorded."""
        rows = np.concatenate([np.empty((0, len(PHASES)), np.int64), *self._ns])
        if self._why_not or not self._was_watched:
            return PhaseMeans(why_not=self._why_not)
        if len(rows) < _FEWEST_STEPS:
            few = f"only {plural(len(rows), 'step')}" if len(rows) else "no step"
            after = f"{few} after the warm-up could be watched"
            return PhaseMeans(why_not=f"{after}; a longer run (seconds=…) has more")
        means_ms = rows.mean(axis=0) / 1e6
        ms = {name: float(x) for name, x in zip(PHASES, means_ms, strict=True) if x > 0}
        return PhaseMeans(ms, len(rows))
