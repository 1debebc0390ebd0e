"""A workload, its settings and its runs, one run at a time.

::

    session = Session(workload, ["num_workers", "batch_size"], seconds=12)
    slow = session.run(num_workers=0)
    fast = session.run(num_workers=2)
    print(ratio(slow, fast))

``workload(settings)`` is a generator function: it builds model, loader and optimizer, and each
``yield`` ends a training step. It runs in its own process, so a run that runs out of memory,
crashes or hangs affects nothing else.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from perfkit.base.arguments import brief
from perfkit.base.budget import scaled
from perfkit.base.errors import UsageError
from perfkit.base.machine import facts
from perfkit.experiment.process import _process, portable
from perfkit.experiment.process._run import Plan, Run
from perfkit.experiment.process.events import Event
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.settings import Setting, Settings, check_values, conflicts, resolve

# More than a day is a slip, or a number of milliseconds.
_LONGEST_S = 86_400.0
#: numpy takes 32-bit seeds.
HIGHEST_SEED = 2**32 - 1


class Session:
    """Runs a workload in child processes, one run at a time.

    The session takes the workload as it is now: every run runs the same code. After redefining the
    workload, create a new session. All methods may be called from any thread. A session is a
    context manager; otherwise :meth:`close` it when done.

    Args:
        workload: generator function of one argument, the
            :class:`~perfkit.experiment.settings.Settings`. Each ``yield`` ends a step; it may yield
            the number of samples (an int), the loss (a float or a scalar tensor), or a mapping with
            ``samples`` and ``loss``. By default the number of samples is the length of the loader's
            first tensor.
        settings: names from the catalogue, and settings of your own.
        seconds: length of a run from the end of its first step, without pauses.
        step_timeout_s: a step that takes longer counts as hung.
        start_timeout_s: the same for everything up to the end of the first step, which builds
            and may compile.
        warmup: number of steps at the beginning that do not count.
        seed: seed of torch's, numpy's and Python's random numbers in each run.
        on_event: called with each :class:`~perfkit.experiment.process.events.Event`, in order,
            from the
            run's thread. An exception in it is printed, and raised by the next :meth:`wait`.
        draws: whether ``on_event`` may draw; if so, only quiet steps count.

    Raises:
        UsageError: the workload is not callable with one argument, or a number is invalid.
        SettingError: a setting is unknown.
        WorkloadNotPortableError: the workload cannot be sent to another process; names the culprit.
    """

    def __init__(
        self,
        workload: Callable[[Settings], Any],
        settings: Sequence[str | Setting] = (),
        *,
        seconds: float = 12.0,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 300.0,
        warmup: int = 3,
        seed: int = 0,
        on_event: Callable[[Event], None] | None = None,
        draws: bool = True,
    ) -> None:
        self.settings: tuple[Setting, ...] = resolve(settings)
        self._seconds = scaled(positive("seconds", seconds))
        self._step_timeout_s = positive("step_timeout_s", step_timeout_s)
        self._start_timeout_s = positive("start_timeout_s", start_timeout_s)
        self._warmup = count("warmup", warmup)
        self._seed = count("seed", seed, HIGHEST_SEED)
        if on_event is not None and not callable(on_event):
            raise UsageError(f"on_event={brief(on_event)} cannot be called: give a function")
        portable.check_workload(workload)
        self._workload = portable.pack(workload)
        self._sources = portable.sources(workload)
        self._on_event = on_event
        self._watched = on_event is not None and draws
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._runs: list[RunResult] = []
        self._n_started = 0
        self._closed = False
        self._owner_pid = os.getpid()
        self._callback_error: BaseException | None = None
        self._release: Callable[[], object] = lambda: None
        if _process.can_prepare():
            _process.shared.acquire()
            self._release = weakref.finalize(self, _process.shared.release)

    # --- state ------------------------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """The runs that have ended, oldest first."""
        with self._lock:
            return tuple(self._runs)

    @property
    def packed(self) -> portable.Packed:
        """The workload as the session took it, for experiments on exactly the code of the runs."""
        return portable.Packed(self._workload, self._sources)

    @property
    def state(self) -> str:
        """The current or last run's state; ``"idle"`` before the first, ``"closed"`` at the end."""
        run = self._run
        if self._closed:
            return "closed"
        return "idle" if run is None else run.state

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the prepared process is ready, so that a run would begin at once."""
        return _process.await_ready(timeout_s)

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in self.settings)
        return f"<Session settings=[{names}] runs={len(self._runs)} state={self.state!r}>"

    # --- actions ----------------------------------------------------------------------------

    def start(self, **values: Any) -> int:
        """Start a run with these values, and defaults for the rest; return its number at once.

        A run in progress is stopped first.

        Raises:
            SettingError: a name is unknown, or a value is invalid or not available here. No
                process is started.
            UsageError: the session is closed, or an event callback starts a run before the
                ``RunFinished`` of its own.
        """
        machine = facts()
        chosen = check_values(self.settings, values, machine)
        environment: dict[str, str] = {}
        for one in self.settings:
            if one.environment is not None:
                environment |= one.environment(chosen[one.name])
        while True:
            self._stop_current()
            with self._lock:
                self._must_be_open()
                if self._run is not None and self._goes_on(self._run):
                    continue  # another thread was quicker
                self._n_started += 1
                plan = Plan(
                    run_id=self._n_started,
                    workload=self._workload,
                    sources=self._sources,
                    values=chosen,
                    notes=conflicts(self.settings, chosen, machine),
                    environment=environment,
                    seconds=self._seconds,
                    step_timeout_s=self._step_timeout_s,
                    start_timeout_s=self._start_timeout_s,
                    warmup=self._warmup,
                    seed=self._seed,
                    watched=self._watched,
                )
                self._run = Run(plan, self._emit, self._keep)
                self._run.start()
                return plan.run_id

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the run that was started last and return its result.

        Raises:
            UsageError: no run was started.
            TimeoutError: it has not ended within ``timeout_s``.
            Exception: whatever the event callback raised meanwhile.
        """
        run = self._run
        if run is None:
            raise UsageError("no run was started: call start() or run()")
        if not run.in_own_thread() and not run.finished.wait(timeout_s):
            raise TimeoutError(f"run {run.plan.run_id} has not ended within {timeout_s:g} s")
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error
        if run.result is None:
            raise UsageError(f"run {run.plan.run_id} still goes on: wait for its RunFinished")
        return run.result

    def run(self, **values: Any) -> RunResult:
        """Run once and return the result. A failed run is a result too: see its ``state``.

        Ctrl-C stops the run and propagates.

        Raises:
            SettingError: see :meth:`start`.
        """
        self.start(**values)
        try:
            return self.wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the current run within a second; what it measured is kept."""
        run = self._run
        if run is not None and self._goes_on(run):
            run.stop()

    def pause(self) -> None:
        """Pause the current run, if any, at once; paused time does not count."""
        run = self._run
        if run is not None:
            run.ask("pause")

    def park(self) -> None:
        """Pause the current run at the end of its step, so that no step contains a pause.

        The state becomes ``"paused"`` once it has stopped there. Does nothing to a paused run.
        """
        run = self._run
        if run is not None:
            run.ask("park")

    def resume(self) -> None:
        """Resume a paused run."""
        run = self._run
        if run is not None:
            run.ask("resume")

    def close(self) -> None:
        """Stop the current run and release the prepared process. A second call does nothing."""
        if os.getpid() != self._owner_pid:
            return  # in a fork of the session's process
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.stop()
        self._release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- within -----------------------------------------------------------------------------

    def _must_be_open(self) -> None:
        if self._closed:
            raise UsageError("this session is closed: make a new one")

    @staticmethod
    def _goes_on(run: Run) -> bool:
        return run.result is None if run.in_own_thread() else not run.finished.is_set()

    def _stop_current(self) -> None:
        self._must_be_open()
        run = self._run
        if run is None or not self._goes_on(run):
            return
        if run.in_own_thread():
            raise UsageError("a callback can start the next run only at RunFinished")
        run.stop()
        run.finished.wait()

    def _keep(self, result: RunResult) -> None:
        with self._lock:
            self._runs.append(result)

    def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            if self._callback_error is None:
                self._callback_error = error
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )


def positive(name: str, value: Any) -> float:
    """Check a number of seconds and return it.

    Raises:
        UsageError: it is not a positive number of seconds.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's
        number = math.nan
    if isinstance(value, bool | str | bytes) or not 0 < number <= _LONGEST_S:
        raise UsageError(
            f"{name}={brief(value)} is not valid: it takes seconds, from above 0 to a day"
        )
    return number


def count(name: str, value: Any, most: int = sys.maxsize, *, least: int = 0) -> int:
    """Check a whole number from ``least`` to ``most`` and return it.

    Raises:
        UsageError: it is not one.
    """
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # the second is torch's, of a tensor without a value
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        upto = "or more" if most == sys.maxsize else f"to {most:,}"
        raise UsageError(
            f"{name}={brief(value)} is not valid: it takes a whole number, {least} {upto}"
        )
    return number
