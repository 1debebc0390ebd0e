"""One training run of somebody else's trainer: told of its steps, shown, logged, and summed up."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit.base.errors import MeasurementError, UsageError
from perfkit.base.instrument import Instrument
from perfkit.base.machine.cpu_contention import ContentionMark, this_thread
from perfkit.base.progress import write
from perfkit.measure.phases import PHASES
from perfkit.measure.tracker import Observer, StepTracker, Update
from perfkit.measure.verdict import RunSummary
from perfkit.widgets.watch import verdict_observer

if TYPE_CHECKING:
    from perfkit.advice.profile import Profile
    from perfkit.trace.record.record import Recorder

Log = Callable[[dict[str, float]], object]


class TrainerRun:
    """What all callbacks share. They call :meth:`begin`, :meth:`step` … :meth:`end`.

    Steps are optimizer steps. Evaluation and checkpoints are told apart and are no part of a step.
    Nothing here raises into the trainer: what fails is switched off, and the summary says so.

    Args:
        log: called at most twice a second, between two steps, and at the end with what is left,
            with one dict: ``step`` and ``epoch``; means since the last call of ``step_ms``,
            ``data_wait_ms``, ``forward_ms``, ``backward_ms``, ``optimizer_ms``, ``other_ms`` (on a
            GPU the host's times); ``steps_per_s``, ``samples_per_s``, ``data_wait_share`` (0 to 1)
            and ``memory_bytes``. What is not known is left out.
        live: False shows nothing; None draws the plot in a notebook, and elsewhere prints the
            verdict at the end; True requires the plot.
        profile: also record a few steps with torch's profiler, and explain them at the end.
        now: the clock, in nanoseconds.
        mark: begins to look at what else the machine does.

    Raises:
        UsageError: ``log`` cannot be called, or ``live=True`` outside a Jupyter kernel.
    """

    def __init__(
        self,
        *,
        log: Log | None = None,
        live: bool | None = None,
        profile: bool = False,
        now: Callable[[], int] = time.perf_counter_ns,
        mark: Callable[[], ContentionMark] = this_thread,
    ) -> None:
        self._now, self._make_mark = now, mark
        if log is not None and not callable(log):
            raise UsageError(f"log= takes a function of one dict, got {type(log).__name__}")
        verdict_observer(live)  # says now what is wrong with it
        self._log_to, self._live, self._profiles = log, live, profile
        self.name = "training"
        self.total: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._instrument = Instrument("perfkit's callback")
        self._display = Instrument("the live display")
        self._log = Instrument("log=")
        # wrapped once: to wrap takes longer than what is wrapped
        self._guarded_step = self._instrument.hook(self._step)
        self._guarded_log = None if self._log_to is None else self._log.hook(self._log_to)
        self.epochs = 1
        self._run: StepTracker | None = None
        self._recorder: Recorder | None = None
        self._observer: Observer | None = None
        self._summary: RunSummary | None = None
        self._profile: Profile | None = None
        self._problems: list[str] = []
        self._since_ns = self._began_ns = 0
        self._logged = 0, [0] * len(PHASES)

    def __getstate__(self) -> dict[str, Any]:
        """A trainer that starts processes sends its callbacks there; a run stays where it is."""
        return {"log": self._log_to, "live": self._live, "profile": self._profiles}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def is_running(self) -> bool:
        """Whether :meth:`begin` was called and :meth:`end` was not."""
        return self._run is not None and self._summary is None

    @property
    def n_steps(self) -> int:
        """Steps so far, as the summary counts them: a trainer may count those of before, too."""
        return 0 if self._run is None else self._run.meter.n

    @property
    def summary(self) -> RunSummary:
        """The verdict with its figures (times in ms, memory in bytes).

        Raises:
            MeasurementError: no run has ended.
        """
        if self._summary is None:
            raise MeasurementError("no training run has ended: call it after the trainer's fit")
        return self._summary

    @property
    def profile(self) -> Profile:
        """The recorded steps, explained.

        Raises:
            MeasurementError: none was recorded.
        """
        if self._profile is None:
            raise MeasurementError(
                "no step was recorded: pass profile=True, and train for 12 steps or more"
            )
        return self._profile

    # --- what a callback calls ------------------------------------------------------------------

    def begin(self, name: str, *, shown: bool = True) -> None:
        """Training begins, in this thread.

        Args:
            name: what to call it.
            shown: False in all processes of a job but the first.
        """
        self.end("ended early")  # one before, of which nobody said that it ended
        self._forget()
        with self._instrument.guard("beginning"):
            self.name = name
            self._run = StepTracker(
                self._update, steps_only=True, now=self._now, mark=self._make_mark
            )
            self._observer = verdict_observer(self._live if shown else False)
            self._tell(lambda observer: observer.begin(self))
            if self._profiles:
                from perfkit.script.options import WARMUP
                from perfkit.trace.record.record import Recorder

                self._recorder = Recorder(warmup=WARMUP, late=True)
                self._recorder.start()
            self._run.start()
            _when_left(self)
            self._began_ns = self._since_ns = self._run.now()

    def step(self) -> None:
        """An optimizer step is over, with all its batches."""
        run = self._run
        if run is not None and self._summary is None:
            self._guarded_step(run)

    def _step(self, run: StepTracker) -> None:
        self._since_ns = run.step_ended(self._since_ns, run.now())

    def evaluation_begins(self) -> None:
        """The trainer evaluates from here on."""
        if self._run is not None and self.is_running:
            self._instrument.hook(self._run.phases.begin)("evaluation")

    def evaluation_ends(self) -> None:
        """The trainer trains again."""
        if self._run is not None and self.is_running:
            self._instrument.hook(self._run.phases.end)()

    def was_evaluation(self) -> None:
        """Since the last step the trainer has evaluated."""
        if self._run is not None and self.is_running:
            self._instrument.hook(self._run.phases.was_evaluation)()

    def end(self, ended: str) -> None:
        """Training is over; does nothing where it is so already.

        Args:
            ended: how, in words: ``"finished"``, ``"raised ValueError"``.
        """
        run = self._run
        if run is None or not self.is_running:
            return
        now_ns = run.now()
        with self._instrument.guard("ending"):
            run.stop()
        if self._recorder is not None:
            self._recorder.stop()
            with self._instrument.guard("explaining the recorded steps"):
                self._explain(self._recorder)
        _when_left_no_more(self)
        run.forget()
        instruments = (self._instrument, self._display, self._log)
        failed = tuple(i.failure.sentence() for i in instruments if i.failure is not None)
        with self._instrument.guard("summing up"):
            wall_s = max(now_ns - self._began_ns, 0) / 1e9
            problems = (*self._problems, *failed)
            summary = run.summary(self.name, ended, wall_s, problems=problems)
            self._summary = summary
            self._tell(lambda observer: observer.end(summary))

    def _explain(self, recorder: Recorder) -> None:
        from perfkit.advice.profile import explain

        try:
            self._profile = explain(recorder.recording)
        except MeasurementError as error:
            self._problems.append(f"no step was recorded: {error}")
            return
        if self._observer is not None:
            _show(self._profile)

    # --- telling about it -----------------------------------------------------------------------

    def _tell(self, say: Callable[[Any], None]) -> None:
        observer = self._observer
        if observer is not None:
            self._display.hook(say)(observer)

    def _update(self, update: Update) -> None:
        self.epochs = update.epoch
        self._tell(lambda observer: observer.update(update))
        if self._guarded_log is not None and self._run is not None:
            self._guarded_log(self._metrics(self._run, update))

    def _metrics(self, run: StepTracker, update: Update) -> dict[str, float]:
        before, phases_before = self._logged
        n = run.meter.n - before
        self._logged = run.meter.n, list(run.phase_ns)
        found: dict[str, float | None] = {"step": run.meter.n, "epoch": update.epoch}
        if update.steps_per_s:
            found["step_ms"] = 1e3 / update.steps_per_s
        for phase, ns, ns_before in zip(PHASES, run.phase_ns, phases_before, strict=True):
            if phase not in ("evaluation", "checkpoint") and run.phases.is_on:
                found[f"{phase}_ms"] = (ns - ns_before) / n / 1e6
        if not run.uses_loader:
            found.pop("data_wait_ms", None)
        found |= {
            "steps_per_s": update.steps_per_s,
            "samples_per_s": update.samples_per_s,
            "data_wait_share": update.wait_share,
            "memory_bytes": update.memory.n_bytes,
        }
        return {name: value for name, value in found.items() if value is not None}


def _show(profile: Profile) -> None:
    from perfkit.widgets._frontend import has_front_end

    if has_front_end():
        from IPython.display import display

        display(profile)
        return
    from perfkit import show

    write(f"{show.brief(profile)}\n")


# Runs of which nobody said that they ended: a trainer that raises does not always tell its
# callbacks. A notebook's cell ends them, or the interpreter's exit.
_open: list[TrainerRun] = []


def _when_left(run: TrainerRun) -> None:
    _open.append(run)
    shell = _shell()
    if shell is not None and len(_open) == 1:
        shell.events.register("post_run_cell", _left)


def _when_left_no_more(run: TrainerRun) -> None:
    if run in _open:
        _open.remove(run)
        shell = _shell()
        if shell is not None and not _open:
            try:
                shell.events.unregister("post_run_cell", _left)
            except ValueError:  # somebody has removed it already
                return


@atexit.register
def _left(*_: object) -> None:
    for run in tuple(_open):
        run.end("ended early")


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
