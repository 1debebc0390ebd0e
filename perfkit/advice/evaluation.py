"""Evaluation inside recorded steps: torch's hooks tell it from forward, a trace cannot.

A model in evaluation mode runs the same operators as in training, so a trace counts them as
forward. :class:`EvaluationWatch` listens to the hooks of :mod:`perfkit.measure.phases` while steps
are recorded, and says how much of them was evaluation where these are sure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from perfkit.advice.typical import typical
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.words import fmt_share
from perfkit.measure.live import Live
from perfkit.measure.phases import PHASES, Phases
from perfkit.trace.ask.breakdown import Breakdown
from perfkit.trace.record.step_log import Coverage

# From this share of the recorded steps on, evaluation within them is told.
_LEAST_SHARE = 0.05
_EVALUATION = PHASES.index("evaluation")


def evaluation_note(
    evaluated: Sequence[float],
    whole: Sequence[float],
    shown: Breakdown,
) -> str:
    """That so much of the recorded steps' time is evaluation; empty where it is little.

    Args:
        evaluated, whole: the time of each recorded step that was evaluation, and all of it.
        shown: the recorded steps. Those of another kind are told on their own, and not here.
    """
    chosen: Sequence[int] = range(len(whole))
    of = "the recorded steps"
    if len(shown.steps) == len(whole) and len(at := typical(shown).indices) < len(whole):
        chosen, of = at, "the steps in these shares"
    some, all_of_it = (sum(times[i] for i in chosen) for times in (evaluated, whole))
    if some < _LEAST_SHARE * all_of_it or not some:
        return ""
    share = fmt_share(some / all_of_it)
    return (
        f"evaluation (or a policy that plays) is {share} of {of}; their picture counts it as "
        "forward, data wait or other, because a trace cannot tell it apart"
    )


class EvaluationWatch:
    """Times the evaluation in each step of a region; cannot raise into it."""

    def __init__(self) -> None:
        self._phases = Phases()
        self._instrument = Instrument("the look-out for evaluation", switch_off=self.rest)
        self._steps_ns: list[tuple[int, ...]] = []
        self._rests = False
        self._live: Live | None = None

    @property
    def failure(self) -> Failure | None:
        """What of it failed and was switched off; None where all went well."""
        return self._instrument.failure or self._phases.failure

    def meets(self, live: Live) -> None:
        """Tell these objects of forward passes and of steps, too."""
        self._live = live
        self._phases.on_forward = live.forward_begins

    def start(self) -> None:
        """Begin, in this thread."""
        self._phases.start()

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        self._phases.stop()

    def rest(self) -> None:
        """Nothing more is recorded: cost nothing from now on; called between two steps."""
        self._rests = True
        with self._instrument.guard("ending"):
            self._phases.rest()

    def step_ended(self, began_s: float, ended_s: float) -> None:
        """A step ended then; what this takes belongs to no step."""
        if self._live is not None:
            self._live.step_ended()
        if self._rests or self.failure is not None:
            return
        with self._instrument.guard("the end of a step"):
            self._steps_ns.append(self._phases.take(round(ended_s * 1e9)))
            self._phases.skip(time.perf_counter_ns())

    def note(self, coverage: Coverage | None, shown: Breakdown) -> str:
        """How much of the recorded steps was evaluation, in words; empty where it is not sure."""
        if coverage is None or not coverage.first_step or self.failure is not None:
            return ""
        if self._phases.doubt or len(self._steps_ns) < coverage.last_step:
            return ""
        steps = self._steps_ns[coverage.first_step - 1 : coverage.last_step]
        return evaluation_note(
            [ns[_EVALUATION] for ns in steps],
            [sum(ns) for ns in steps],
            shown,
        )
