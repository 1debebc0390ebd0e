"""Confirm: an interleaved A/B of two runs of a Lab, in its own thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfkit.base.budget import scaled
from perfkit.base.progress import Progress, left
from perfkit.experiment.compare._cancel import Cancelled, cancellable
from perfkit.show.narrowing import svg

if TYPE_CHECKING:
    from perfkit.experiment.compare.ab import ABResult
    from perfkit.experiment.process.portable import Packed
    from perfkit.experiment.process.result import RunResult
    from perfkit.experiment.settings import Setting

# Time for Confirm: enough for six blocks of a small workload; slow steps get more.
_SHORTEST_S, _LONGEST_S = 30.0, 120.0
_BLOCKS = 6
# A block starts both runs, warms them up, and measures four letters of at least this length.
_WARM_UP_STEPS = 4
_LETTER_S, _LETTER_STEPS = 0.25, 3


def budget_s_of(base: RunResult, other: RunResult) -> float:
    """Estimated seconds that a comparison of these two needs for an interval."""
    steps_s = [(run.mean_ms or 0.0) / 1e3 for run in (base, other)]
    # the comparison's processes come from one that has long been prepared
    starts_s = sum((run.first_point_s or run.prepared_s) - run.prepared_s for run in (base, other))
    letter_s = max(_LETTER_S, _LETTER_STEPS * max(steps_s))
    block_s = starts_s + _WARM_UP_STEPS * sum(steps_s) + 4 * letter_s
    return min(max(_BLOCKS * block_s, _SHORTEST_S), _LONGEST_S)


def has_interval(answer: ABResult) -> bool:
    """Whether there were enough blocks for an interval."""
    return answer.low > 0 and math.isfinite(answer.high)


class Confirmation:
    """One A/B, from start to answer.

    Args:
        packed: the workload that the runs ran.
        base, other: the pinned run and the one to compare with it.
        budget_s: seconds to spend; None for an estimate of what the two need.
        timeouts_s: for a step, and for the start up to the end of the first one.
        say: called from this thread: in words how far it is, the share of the budget that is spent,
            and a picture of how the interval has narrowed, as SVG.
        ended: called at the end, from this thread; see :attr:`answer` and :attr:`error`.
    """

    def __init__(
        self,
        packed: Packed,
        settings: Sequence[Setting],
        base: RunResult,
        other: RunResult,
        *,
        budget_s: float | None,
        timeouts_s: tuple[float, float],
        say: Callable[[str, float, str], None],
        ended: Callable[[Confirmation], None],
    ) -> None:
        self.base, self.other = base.run_id, other.run_id
        self.answer: ABResult | None = None
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self._arms = (dict(base.values), dict(other.values))
        self._packed, self._settings = packed, settings
        self.budget_s = budget_s_of(base, other) if budget_s is None else budget_s
        self._step_timeout_s, self._start_timeout_s = timeouts_s
        self._say, self._ended = say, ended
        self._thread = threading.Thread(target=self._work, name="perfkit-lab-confirm", daemon=True)

    def start(self) -> None:
        """Start; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop it without an answer and wait until it has stopped (about a second)."""
        self.stopped.set()
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended and ``ended`` was called."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        from perfkit.experiment.compare.ab import ab

        try:
            with cancellable(self.stopped):
                self.answer = ab(
                    self._packed,
                    *self._arms,
                    settings=self._settings,
                    budget_s=self.budget_s,
                    names=(f"run {self.base}", f"run {self.other}"),
                    step_timeout_s=self._step_timeout_s,
                    start_timeout_s=self._start_timeout_s,
                    say=_Told(self._say, scaled(self.budget_s)),
                )
        except Cancelled:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._ended(self)


class _Told(Progress):
    """Shown by the Lab."""

    def __init__(self, say: Callable[[str, float, str], None], budget_s: float) -> None:
        super().__init__("", False)
        self._tell, self._budget_s = say, budget_s
        self._told: list[tuple[float, float]] = []

    def line(
        self,
        text: str,
        *,
        share: float | None = None,
        left_s: float | None = None,
        interval: tuple[float, float] | None = None,
    ) -> None:
        """Tell the Lab."""
        rest_s = self._budget_s if left_s is None else left_s
        if interval is not None:
            self._told.append(interval)
        picture = svg(self._told) if len(self._told) > 1 else ""
        said = text.partition(": ")[2]  # the Lab names the runs
        self._tell(f"{said} · {left(rest_s)}", 1 - rest_s / self._budget_s, picture)
