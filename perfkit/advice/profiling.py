"""``perfkit.profile``: record a few steps of a function or region, and explain them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

from perfkit.advice.profile import Profile, explain
from perfkit.advice.state import StateWatch
from perfkit.base.arguments import check_flag, check_function, check_whole
from perfkit.base.display import Shown
from perfkit.base.errors import MeasurementError, UsageError
from perfkit.base.home import folder
from perfkit.base.instrument import Instrument
from perfkit.base.uninterrupted import surely
from perfkit.measure.phases import PHASES, Phases
from perfkit.trace.record.record import MAX_SECONDS, STEPS, WARMUP, Recorder
from perfkit.trace.record.recording import Recording

#: A trace of more steps shows nothing new and takes minutes to read.
MOST_STEPS = 1000
MOST_WARMUP = 1000
MOST_REPEATS = 10_000
# So many calls of a step follow unprofiled: the difference is the cost of profiling.
_UNPROFILED_CALLS = 3
# What was recorded is told early where the region then goes on for at least so long.
_GOES_ON_S = 2.0
_RUNS_ON = "Your code runs on: this report is completed at its end."
# A slow step is not repeated for longer than this.
_REPEAT_FOR_S = 20.0
_HOW_CALLED = ": warm-up, profiled, then unprofiled; `-r 1` (in Python: `repeat=1`) runs it once"
_EVALUATION = PHASES.index("evaluation")


class Profiling(Shown):
    """A region of code being profiled: what ``with perfkit.profile() as prof:`` gives.

    After the block it shows itself as its :attr:`result` does: print it, display it, ``save`` it.

    Attributes:
        on_recorded: set before it starts, it is called with a :class:`Profile` once the steps are
            recorded, where the region goes on for seconds after that.
    """

    def __init__(self, make: Callable[..., Recorder]) -> None:
        self._state = StateWatch(lambda: recorder.runs_profiler)  # its stop drops this
        self._phases = phases = Phases()
        phases.live = live = self._state.live
        self._evaluated_ms = evaluated_ms = list[float]()
        self._instrument = Instrument("the watch of this region's steps")

        def ended(_: float, ended_s: float) -> None:
            if phases.is_on:
                taken = phases.take(round(ended_s * 1e9))
                if len(evaluated_ms) < recorder.log.n_recorded:  # this one was
                    evaluated_ms.append(taken[_EVALUATION] / 1e6)
            live.step_ended()
            if self._rests_since_s is not None:
                self._tell_early()
            if phases.is_on:
                phases.skip(time.perf_counter_ns())

        on_step = self._instrument.hook(ended)
        self._recorder = recorder = make(on_step=on_step, on_rest=self._rests)
        self._rests_since_s: float | None = None
        self.on_recorded: Callable[[Profile], None] | None = None
        self._enough_calls = recorder.warmup + recorder.steps + _UNPROFILED_CALLS
        self._stage = "new"
        self._error = ""
        self._how_called = ""
        self.n_calls = 0

    def start(self) -> None:
        """Begin to record; ``with`` does it for you.

        Raises:
            ProfilerBusyError: another profiler is active; nothing has been changed.
            UsageError: it was started before.
        """
        if self._stage != "new":
            raise UsageError(
                "this profile has begun before: call perfkit.profile() again for the next region"
            )
        try:
            self._state.start()
            self._phases.start()
            self._recorder.start()
            self._stage = "running"
        except BaseException:
            surely(self._end)
            raise

    def stop(self) -> None:
        """End the recording; does nothing if it has ended."""
        if self._stage == "running":
            try:
                surely(self._end)
            finally:  # Ctrl-C meanwhile
                self._stage = "done"

    def _end(self) -> None:
        try:
            self._recorder.stop()
        finally:
            self._phases.stop()
            self._state.stop()

    def failed(self, error: BaseException) -> None:
        """Tell that the region's code raised, if you caught it inside the ``with`` block."""
        self._error = type(error).__name__

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        if error is not None:
            self.failed(error)
        elif self._recorder.is_done:
            with suppress(MeasurementError):  # the block's code runs on; `result` raises it again
                _ = self.result  # explained now: the machine and the time are those of the region

    def call(self, step: Callable[[], object], repeat: int | None = None) -> None:
        """Call ``step`` until enough steps are profiled.

        A call in which no optimizer steps is itself a step. If the first call makes several
        optimizer steps, it is a training loop and is called only once.

        Args:
            repeat: call it so often, whatever it does; by default as often as warm-up, profiling
                and three unprofiled steps need, but for at most 20 s.
        """
        __tracebackhide__ = True
        began_s = time.monotonic()
        recorder, is_default = self._recorder, repeat is None
        self._how_called = _HOW_CALLED * is_default
        for n in range(repeat or self._enough_calls):
            if n and is_default and time.monotonic() - began_s > _REPEAT_FOR_S:
                return
            n_before = recorder.n_steps_seen
            self.n_calls += 1
            step()
            is_loop = not n and is_default and (recorder.n_steps_seen > 1 or recorder.gave_way)
            if is_loop or repeat == 1:
                return
            if recorder.n_steps_seen == n_before:
                recorder.step()

    @cached_property
    def result(self) -> Profile:
        """The explained steps.

        Raises:
            UsageError: the region has not ended.
            MeasurementError: nothing could be recorded.
        """
        if self._stage != "done":
            raise UsageError("the region has not ended: read `result` after the `with` block")
        return self._explained(self._recorder.recording)

    def _rests(self) -> None:
        self._phases.rest()
        if self.on_recorded is not None:
            self._rests_since_s = time.monotonic()
            self._tell_early()

    def _tell_early(self) -> None:
        """Tell what was recorded, where the region is likely to go on for longer than that."""
        step_s = statistics.median(self._recorder.log.recorded_ms or [0.0]) / 1e3
        assert self._rests_since_s is not None
        if time.monotonic() - self._rests_since_s + step_s < _GOES_ON_S:
            return
        tell_of, self.on_recorded, self._rests_since_s = self.on_recorded, None, None

        def tell(recording: Recording) -> None:
            found = self._explained(recording)
            if tell_of is not None and found.operators:
                doubts = (_RUNS_ON, *found.diagnosis.doubts)
                tell_of(replace(found, diagnosis=replace(found.diagnosis, doubts=doubts)))

        with suppress(Exception):  # it fails again at the end, where it is told
            self._recorder.tell_early(tell)

    def _explained(self, recording: Recording) -> Profile:
        state, is_step = self._state.findings, self.n_calls > 0
        profile = explain(recording, is_step=is_step, state=state, evaluated_ms=self._evaluated_ms)
        if not profile.operators:
            return replace(profile, nothing=self._nothing(), warnings=recording.warnings)
        failures = (self._phases.failure, self._instrument.failure, *self._state.failures)
        said = filter(None, (self._remark(), *(f.sentence() for f in failures if f is not None)))
        return replace(profile, warnings=(*said, *profile.warnings))

    def to_dict(self) -> dict[str, Any]:
        """As :meth:`Profile.to_dict`."""
        return self.result.to_dict()

    def save(self, path: str | Path, *, scrub: bool = True) -> Path:
        """As :meth:`Profile.save`."""
        return self.result.save(path, scrub=scrub)

    @property
    def is_done(self) -> bool:
        """Whether the region has ended, so that there is a :attr:`result`."""
        return self._stage == "done"

    def _nothing(self) -> str:
        if self._recorder.gave_way:
            return "No torch operators were recorded: nothing to profile."
        until = " before it failed" if self._error else ""
        return (
            f"No torch operators ran in this thread{until}, the only one that is recorded: nothing "
            "to profile."
        )

    def _remark(self) -> str:
        """How the code ran, in words; empty if it ran once and ended well."""
        ran = f"the step ran {self.n_calls} times" if self.n_calls > 1 else ""
        if self._error:
            ran = f"{ran}; " if ran else ""
            return f"{ran}the code raised {self._error}; what was recorded until then is shown"
        return f"{ran}{self._how_called}" if ran else ""


class _Options(TypedDict, total=False):
    """What :func:`profile` takes in both of its forms."""

    steps: int
    warmup: int
    stacks: bool
    shapes: bool
    memory: bool
    lines: bool
    max_seconds: float


@overload
def profile(
    step: Callable[[], object], *, repeat: int | None = None, **options: Unpack[_Options]
) -> Profile: ...
@overload
def profile(
    step: None = None, *, repeat: None = None, **options: Unpack[_Options]
) -> Profiling: ...


def profile(
    step: Callable[[], object] | None = None,
    *,
    steps: int = STEPS,
    warmup: int = WARMUP,
    repeat: int | None = None,
    stacks: bool = False,
    shapes: bool = False,
    memory: bool = False,
    lines: bool = True,
    max_seconds: float = MAX_SECONDS,
) -> Profile | Profiling:
    """Profile a few training steps and say in words what bounds them.

    With ``step``, it is called until enough steps are profiled. Without, it is a context manager:
    what runs in the ``with`` block is recorded, as by ``%%torchprof`` in a cell. You do not mark
    steps: a step ends when an optimizer has stepped. Where none does (evaluation), each batch of a
    DataLoader is a step, or each call of ``step``. After the profiled steps your code runs on
    unprofiled, which shows what profiling cost. Your exceptions propagate unchanged; with
    ``with``, what was recorded until then is in ``prof.result``.

    Args:
        step: a training step or a whole training loop, called without arguments. A loop (several
            optimizer steps) is called once; a step is called ``warmup + steps + 3`` times, but
            for at most 20 s.
        steps: steps to profile, 1 to 1000.
        warmup: steps to skip first, because the first ones are not typical; 0 to 1000.
        repeat: call ``step`` this many times instead, 1 to 10000. Only with ``step``.
        stacks: record Python stacks. Makes small steps about 50 % slower.
        shapes: record the shapes of operators' inputs, e.g. for FLOPs. Recorded anyway where this
            machine's peaks are known (:func:`perfkit.peaks`): then the profile says how far a step
            is from its lower bound.
        memory: record allocations, e.g. for the memory curve.
        lines: sample source lines.
        max_seconds: code in which no optimizer steps is recorded for this long, then runs on
            unprofiled.

    Returns:
        With ``step``, a :class:`Profile`: ``diagnosis``, ``breakdown``, ``operators``, ``lines``,
        ``syncs``, ``trace``. Without, a context manager whose ``result`` is that. Print it,
        display it in a notebook, or ``save`` it: ``.txt``, ``.md``, ``.html``, ``.png``, ``.svg``,
        and ``.json`` for the trace.

    Raises:
        ProfilerBusyError: another profiler is active.
        UsageError: ``step`` cannot be called, or a number is invalid.
        MeasurementError: the code runs a torch profiler of its own.

    Examples::

        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step():
        ...     optimizer.zero_grad()
        ...     model(torch.rand(32, 64)).sum().backward()
        ...     optimizer.step()
        >>> print(perfkit.profile(step))

        >>> with perfkit.profile(steps=4) as prof:
        ...     for _ in range(12):
        ...         step()
        >>> print(prof)
    """
    __tracebackhide__ = True
    if step is not None:
        check_function("step", step)
    if repeat is not None:
        if step is None:
            raise UsageError("repeat is for a step that perfkit calls: give `step`, or no `repeat`")
        check_whole("repeat", repeat, 1, MOST_REPEATS)
    check_whole("steps", steps, 1, MOST_STEPS)
    check_whole("warmup", warmup, 0, MOST_WARMUP)
    flags = {"stacks": stacks, "shapes": shapes, "memory": memory, "lines": lines}
    for name, value in flags.items():
        check_flag(name, value)
    make = partial(
        Recorder,
        steps=steps,
        warmup=warmup,
        stacks=stacks,
        # with this machine's peaks known, shapes tell how far a step is from its lower bound
        shapes=shapes or _has_peaks(),
        memory=memory,
        lines=lines,
        max_seconds=max_seconds,
    )
    profiling = Profiling(make)
    if step is None:
        return profiling
    with profiling:
        profiling.call(step, repeat)
    return profiling.result


def _has_peaks() -> bool:
    if not (folder() / "peaks").is_dir():
        return False
    from perfkit.limit.kept import peaks_in_use

    return peaks_in_use() is not None
