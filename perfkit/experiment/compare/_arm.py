"""One arm of a comparison: a run that works for one letter at a time and pauses in between.

Both arms are alive at once and take turns (A B B A), so that slow changes affect both alike, at the
cost of one start each. They pause between two steps
(:meth:`~perfkit.experiment.process.session.Session.park`), with their loader workers and threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.experiment.compare._cancel import raise_if_cancelled
from perfkit.experiment.process.events import FINAL_STATES, Event, Points, StateChanged
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.process.session import HIGHEST_SEED, Session, count, positive
from perfkit.experiment.settings import Setting, Settings

# A letter has at least this many steps, however long they take.
_FEWEST_STEPS = 3
# The first step after a pause finds cold caches: it is left out if other steps remain.
_LEAVES_FIRST_OUT = 5
# How soon to check for the end of the warm-up, which only a pause shows.
_WARM_UP_LOOK_S = 0.05
# The run itself is endless: the arm's owner ends it.
_NO_END_S = 86_400.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Limits:
    """Limits of a run; see :class:`~perfkit.experiment.process.session.Session`.

    Raises:
        UsageError: a number is invalid.
    """

    step_timeout_s: float = 60.0
    start_timeout_s: float = 300.0
    warmup: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse invalid numbers before anything is prepared."""
        positive("step_timeout_s", self.step_timeout_s)
        positive("start_timeout_s", self.start_timeout_s)
        count("warmup", self.warmup)
        count("seed", self.seed, HIGHEST_SEED)


class Arm:
    """One live run: :meth:`begin`, any number of letters, :meth:`end`.

    Raises:
        SettingError, WorkloadNotPortableError: see :class:`Session`.
    """

    def __init__(
        self,
        workload: Callable[[Settings], Any],
        settings: Sequence[str | Setting],
        values: Mapping[str, Any],
        limits: Limits,
    ) -> None:
        self._changed = threading.Condition()
        self._state = "idle"
        self._part: list[NDArray[np.float64]] = []
        self._n_steps = 0
        self._warmup = limits.warmup
        self._session = Session(
            workload,
            settings,
            seconds=_NO_END_S,
            step_timeout_s=limits.step_timeout_s,
            start_timeout_s=limits.start_timeout_s,
            warmup=limits.warmup,
            seed=limits.seed,
            on_event=self._hear,
            draws=False,
        )
        self._values = dict(values)
        self.start_s = self.step_s = 0.0

    @property
    def ended(self) -> bool:
        """Whether the run is over: the workload finished or failed."""
        return self._state in FINAL_STATES

    def begin(self) -> None:
        """Start, warm up and pause. It is not an error here if the run has ended meanwhile."""
        began_s = time.monotonic()
        self._session.start(**self._values)
        self._wait(lambda: self._n_steps > 0)
        while not self.ended:
            self._wait(lambda: False, _WARM_UP_LOOK_S)
            self._park()
            if self._n_steps > self._warmup:
                break
            self._go()
        self.start_s = time.monotonic() - began_s
        # rough step time: the shortest of the warm-up, because the first ones are long
        self.step_s = min((float(part.min()) for part in self._part if len(part)), default=0) / 1e3

    def letter(self, seconds: float) -> NDArray[np.float64]:
        """Run for about ``seconds`` and return the step durations in ms; empty if it has ended."""
        self._part = []
        began = self._n_steps
        while not self.ended:
            self._go()
            self._wait(lambda: False, seconds)
            self._park()
            if self._n_steps - began >= _FEWEST_STEPS:
                break
        steps = np.concatenate([np.empty(0), *self._part])
        return steps[1:] if len(steps) >= _LEAVES_FIRST_OUT else steps

    def end(self) -> RunResult:
        """End the processes and return the run's result."""
        self._session.stop()
        try:
            return self._session.wait()
        finally:
            self._session.close()

    def close(self) -> None:
        """Release everything, whatever the state."""
        self._session.close()

    # --- within -----------------------------------------------------------------------------

    def _go(self) -> None:
        self._session.resume()
        self._wait(lambda: self._state not in ("paused",))

    def _park(self) -> None:
        self._session.park()
        self._wait(lambda: self._state == "paused")

    def _hear(self, event: Event) -> None:
        with self._changed:
            if isinstance(event, Points):
                self._part.append(event.step_ms)
                self._n_steps += len(event.step_ms)
            elif isinstance(event, StateChanged):
                self._state = event.state
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until it is ready, has ended, or time is up; the run's limits end a hang.

        Raises:
            Cancelled: the experiment was cancelled.
        """
        until_s = float("inf") if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not ready() and not self.ended:
                raise_if_cancelled()
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, _LOOK_EVERY_S))
