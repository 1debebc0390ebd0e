"""Blocks of a comparison, with a fresh process for each arm: ``ab.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfkit.base.errors import MeasurementError, WorkloadError
from perfkit.base.words import fmt_s
from perfkit.experiment.compare._arm import Arm, Limits
from perfkit.experiment.process import portable
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.settings import Setting, Settings

# A letter is long compared with interruptions, and contains a few steps of the slower arm.
_LETTER_S = 0.25
_LETTER_STEPS = 6
# If the processes start slowly, the four letters together get at least half the starting time.
_LETTER_OF_START = 1 / 8
# If the fewest fresh blocks would need more than this multiple of the budget, processes are kept.
_OVER_BUDGET = 1.5
# How often to repeat a block whose run was cut off from outside.
_MORE_TRIES = 2


@dataclass(frozen=True)
class Block:
    """The result of one block.

    Attributes:
        a_ms, b_ms: time per step of each arm, in ms.
        order: ``"ABBA"`` or ``"BAAB"``; ``"AB"`` or ``"BA"`` if one ran after the other.
        fresh: whether its processes were started for this block.
    """

    a_ms: float
    b_ms: float
    order: str
    fresh: bool = True


class Blocks:
    """Measures block after block; call :meth:`close` when done.

    Args:
        values: the value of every setting, for each arm.
        limits: limits of each run.
        budget_s: seconds available for ``min_blocks``.
        names: the arms' names, for messages.

    Raises:
        UsageError: the workload does not take settings as its argument.
        WorkloadNotPortableError: it cannot be sent to another process.
    """

    def __init__(
        self,
        workload: Callable[[Settings], Any],
        settings: Sequence[Setting],
        values: tuple[Mapping[str, Any], Mapping[str, Any]],
        limits: Limits,
        *,
        budget_s: float,
        min_blocks: int,
        names: tuple[str, str],
    ) -> None:
        portable.check_workload(workload)
        portable.pack(workload)  # fail before anything is prepared if it cannot be sent
        self._workload, self._settings, self._values = workload, settings, values
        self._limits, self._names = limits, names
        self._block_budget_s = budget_s / min_blocks
        self._rng = np.random.default_rng(limits.seed)
        self._arms: dict[int, Arm] = {}
        self._stays = False
        self._apart = False
        self._tries_left = _MORE_TRIES
        self._n_runs = 0
        self.warnings: list[str] = []

    def skip(self) -> None:
        """Skip a block that was measured before, with the random draws that it made."""
        self._rng.integers(2)

    def next(self) -> tuple[Block, tuple[RunResult, ...]]:
        """Measure one more block; return it and the runs that ended (none if processes are kept).

        Raises:
            WorkloadError: an arm failed, or was repeatedly cut off from outside.
            MeasurementError: an arm has no step after its warm-up.
        """
        while True:
            outer = int(self._rng.integers(2))
            try:
                return self._one_after_the_other(outer) if self._apart else self._in_turn(outer)
            except _Cut as cut:
                self.close()
                self._bear(cut)

    def end(self) -> tuple[RunResult, ...]:
        """End the runs that are still alive and return them; none if each block ended its own."""
        return self._ended() if self._arms else ()

    def close(self) -> None:
        """End everything that is still running."""
        arms, self._arms = self._arms, {}
        for arm in arms.values():
            arm.close()

    # --- within -----------------------------------------------------------------------------

    def _bear(self, cut: _Cut) -> None:
        """Continue after a run that was cut off, or raise its failure."""
        run, name = cut.run, self._names[cut.which]
        if run.state == "out of memory" and cut.together and not self._apart:
            self._apart = True
            self.warnings.append(
                "there was no memory for both arms at once, so they ran one after the other: "
                "drift cancels over the blocks, but not within one"
            )
            return
        self._tries_left -= 1
        if run.state != "killed" or self._tries_left < 0:
            try:
                run.raise_if_failed()
            except WorkloadError as error:  # say whose run it was
                raise type(error)(f"{name}: {error}", error.traceback_text) from None
            raise MeasurementError(f"{name}: its run was {run.state}")
        self.warnings.append(
            f"a run of {name!r} was cut off ({run.message}): its block was measured again"
        )

    def _begun(self, which: int) -> Arm:
        arm = Arm(self._workload, self._settings, self._values[which], self._limits)
        together = bool(self._arms)
        self._arms[which] = arm
        arm.begin()
        if arm.ended:
            self._check(which, arm.end(), together=together)
        return arm

    def _in_turn(self, outer: int) -> tuple[Block, tuple[RunResult, ...]]:
        fresh = not self._arms
        if fresh:
            for which in (outer, 1 - outer):
                self._begun(which)
            self._stays = self._must_stay()
        seconds = self._letter_s()
        times: dict[int, list[float]] = {0: [], 1: []}
        for which in (outer, 1 - outer, 1 - outer, outer):
            times[which].extend(self._arms[which].letter(seconds))
        if self._stays and not self._any_ended():
            return self._block(times, "BAAB" if outer else "ABBA", fresh), ()
        by_itself = [which for which in (0, 1) if self._arms[which].ended]
        runs = self._ended()
        for which in by_itself:
            # few steps: use all after the warm-up, also those outside letters
            times[which] = runs[which].counted_ms().tolist()
        return self._block(times, "BAAB" if outer else "ABBA", fresh), runs

    def _one_after_the_other(self, outer: int) -> tuple[Block, tuple[RunResult, ...]]:
        times: dict[int, list[float]] = {0: [], 1: []}
        runs: dict[int, RunResult] = {}
        for which in (outer, 1 - outer):
            self._begun(which)
            times[which].extend(self._arms[which].letter(2 * self._letter_s()))
            (runs[which],) = self._ended()
        return self._block(times, "BA" if outer else "AB", True), (runs[0], runs[1])

    def _letter_s(self) -> float:
        arms = self._arms.values()
        step_s = max(arm.step_s for arm in arms)
        wanted_s = max(
            _LETTER_S, _LETTER_STEPS * step_s, _LETTER_OF_START * sum(arm.start_s for arm in arms)
        )
        return min(wanted_s, max(_LETTER_S, self._block_budget_s / 4))

    def _must_stay(self) -> bool:
        """Whether starts are so slow that the fewest fresh blocks would break the budget."""
        start_s = sum(arm.start_s for arm in self._arms.values())
        if start_s <= _OVER_BUDGET * self._block_budget_s:
            return False
        self.warnings.append(
            f"starting both takes {fmt_s(start_s)}, so one process of each served all blocks: "
            "the interval leaves out differences between processes; raise budget_s to start "
            "fresh ones for each block"
        )
        return True

    def _any_ended(self) -> bool:
        return any(arm.ended for arm in self._arms.values())

    def _ended(self) -> tuple[RunResult, ...]:
        together = len(self._arms) == 2
        runs = []
        for which in sorted(self._arms):
            runs.append(self._check(which, self._arms[which].end(), together=together))
        self._arms = {}
        return tuple(runs)

    def _check(self, which: int, run: RunResult, *, together: bool) -> RunResult:
        if run.state not in ("done", "stopped"):
            raise _Cut(which, run, together)
        self._n_runs += 1
        return replace(run, run_id=self._n_runs)

    def _block(self, times: Mapping[int, Sequence[float]], order: str, fresh: bool) -> Block:
        means = []
        for which in (0, 1):
            if not times[which]:
                raise MeasurementError(f"{self._names[which]}: no step was measured in a block")
            means.append(float(np.mean(times[which])))
        return Block(means[0], means[1], order, fresh)


class _Cut(Exception):  # noqa: N818 - raised as the matching error, or tolerated
    """A run of this block failed."""

    def __init__(self, which: int, run: RunResult, together: bool) -> None:
        super().__init__(run.message)
        self.which, self.run, self.together = which, run, together
