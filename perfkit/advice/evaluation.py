"""Evaluation inside recorded steps: torch's hooks tell it from forward, a trace cannot.

A model in evaluation mode runs the same operators as in training, so a trace counts them as
forward. :class:`EvaluationWatch` listens to the hooks of :mod:`perfkit.measure.phases` while steps
are recorded, and says how much of them was evaluation where these are sure.
"""

from __future__ import annotations

import time

from perfkit.base.instrument import Failure, Instrument
from perfkit.base.words import fmt_share
from perfkit.measure.phases import PHASES, Phases
from perfkit.trace.record.coverage import Coverage

__all__ = ["EvaluationWatch", "evaluation_note"]

# From this share of the recorded steps on, evaluation within them is told.
_LEAST_SHARE = 0.05
_EVALUATION = PHASES.index("evaluation")


def evaluation_note(evaluated: float, whole: float) -> str:
    """That so much of the recorded steps' time is evaluation; empty where it is little."""
    if evaluated < _LEAST_SHARE * whole or not evaluated:
        return ""
    return (
        f"evaluation is {fmt_share(evaluated / whole)} of the recorded steps; their picture "
        "counts it as forward, data wait or other, because a trace cannot tell it apart"
    )


class EvaluationWatch:
    """Times the evaluation in each step of a region; cannot raise into it."""

    def __init__(self) -> None:
        self._phases = Phases()
        self._instrument = Instrument("the look-out for evaluation", switch_off=self.rest)
        self._steps_ns: list[tuple[int, ...]] = []
        self._rests = False

    @property
    def failure(self) -> Failure | None:
        """What of it failed and was switched off; None where all went well."""
        return self._instrument.failure or self._phases.failure

    def start(self) -> None:
        """Begin, in this thread."""
        self._phases.start()

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        self._phases.stop()

    def rest(self) -> None:
        """Nothing more is recorded: cost nothing from now on. May be called at any time."""
        self._rests = True
        with self._instrument.guard("ending"):
            self._phases.rest()

    def step_ended(self, began_s: float, ended_s: float) -> None:
        """A step ended then; what this takes belongs to no step."""
        if self._rests or self.failure is not None:
            return
        with self._instrument.guard("the end of a step"):
            self._steps_ns.append(self._phases.take(round(ended_s * 1e9)))
            self._phases.skip(time.perf_counter_ns())

    def note(self, coverage: Coverage | None) -> str:
        """How much of the recorded steps was evaluation, in words; empty where it is not sure."""
        if coverage is None or not coverage.first_step or self.failure is not None:
            return ""
        if self._phases.doubt or len(self._steps_ns) < coverage.last_step:
            return ""
        steps = self._steps_ns[coverage.first_step - 1 : coverage.last_step]
        return evaluation_note(sum(ns[_EVALUATION] for ns in steps), sum(map(sum, steps)))
