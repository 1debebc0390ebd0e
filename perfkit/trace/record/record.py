"""Record a few training steps of a region of code that knows nothing of it.

The profiler runs from the start of the region (what it sees before the warm-up is over is the
result if nothing better comes), marks ``steps`` steps after ``warmup`` others, then stops, and the
region runs on unprofiled. ``late`` starts it only when the warm-up is over: a whole script may take
hours until then, and sets up its devices itself. Later steps are timed by the hook alone, which
shows what profiling cost; lines are sampled all along.

The marks are ``ProfilerStep#n``, as of ``torch.profiler.profile.step``, so that other tools find
the same steps in a saved trace. A mark is closed before anything else is done at a step's end, and
the next one is opened after all that: what perfkit takes between two steps belongs to neither.

All that runs inside the region is guarded by an :class:`~perfkit.base.instrument.Instrument`: if it
fails the recording ends, and the region goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from perfkit.base import torch_compat
from perfkit.base.arguments import check_seconds, check_whole
from perfkit.base.errors import MeasurementError, ProfilerBusyError, UsageError
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.process_memory import give_back
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.words import plural
from perfkit.trace.read.columns import DEVICE_CATEGORIES, RECORDED_HERE, Category, Trace
from perfkit.trace.read.load import load
from perfkit.trace.read.steps import REGION_MARK
from perfkit.trace.record.deadline import Deadline, call_in_main_thread
from perfkit.trace.record.elsewhere import RegionLines, elsewhere, in_trace_time
from perfkit.trace.record.facts import FactsWatch
from perfkit.trace.record.profiler import (
    END_US,
    WRITTEN,
    TorchProfiler,
    raw_trace,
    stays_attached,
    telling,
    wait_for_devices,
)
from perfkit.trace.record.recording import Cost, Recording
from perfkit.trace.record.step_ends import StepEnds
from perfkit.trace.record.step_log import PATIENCE, EndedBy, StepLog, median

STEPS = 6
WARMUP = 2
MAX_SECONDS = 10.0

_STEP_MARK = "ProfilerStep#"
#: The mark that was open when the region ended: it is no step.
UNFINISHED_MARK = "perfkit unfinished step"
# Less freed memory than this stays with malloc: the next recording has page faults in its steps
# where it asks the system for memory again.
_MUCH_BYTES = 2**25

_State = Literal["new", "warm-up", "active", "done"]


class Recorder:
    """Records a region; a context manager, or :meth:`start` and :meth:`stop`.

    ``with Recorder() as recorder: train()``, then ``recorder.recording``. What the region raises
    passes through; what was recorded until then is still there.

    Args:
        warmup: how many to let pass before; the first ones are not typical.
        stacks: record the Python stack of every op. With shapes and memory this costs +47 % on a
            3 ms step where the default costs +18 %.
        shapes: record the shapes and types of inputs; or says whether, when the profiler starts.
        max_seconds: record no longer than this at a stretch. A region in which no optimizer
            steps is recorded so far and then runs on unprofiled.
        late: start only after the warm-up; a region that ends before has no recording.
        on_step: called with begin and end (``time.perf_counter``) of every step that ends, between
            two steps: what it takes belongs to neither. If it raises, the recorder ends.
        on_rest: called when nothing more is recorded, after the ``on_step`` of a step. Not sooner:
            elsewhere torch.compile may be building guards on what is there.
        n_slowed: so many of the first steps run under another instrument of perfkit's, which makes
            them slow: their length says nothing.
    """

    def __init__(
        self,
        *,
        steps: int = STEPS,
        warmup: int = WARMUP,
        stacks: bool = False,
        shapes: bool | Callable[[], bool] = False,
        memory: bool = False,
        max_seconds: float = MAX_SECONDS,
        lines: bool = True,
        late: bool = False,
        on_step: Callable[[float, float], None] | None = None,
        on_rest: Callable[[], None] | None = None,
        n_slowed: int = 0,
    ) -> None:
        check_whole("steps", steps, 1)
        check_whole("warmup", warmup, 0)
        check_seconds("max_seconds", max_seconds)
        self.steps, self.warmup = steps, warmup
        self.log = StepLog(steps, max_seconds, late=late)
        self.sampled = RegionLines(self.log)
        self._with_lines = lines
        self._on_step, self._on_rest = on_step, on_rest
        self._n_slowed = n_slowed

        self._state: _State = "new"
        self._ended_in: _State = "new"  # where recording did
        self._out_of_time = False  # … because of max_seconds
        self._instrument = Instrument(
            "perfkit's recorder", switch_off=self._give_up, let_pass=(ProfilerBusyError,)
        )
        self._profiler = TorchProfiler(shapes, stacks=stacks, memory=memory)
        self._start_s = self._stop_s = 0.0  # what the profiler took to
        self._facts = FactsWatch()
        self._deadline = Deadline(self._instrument.hook(self._deadline_passed))
        self.ends = StepEnds(self._instrument, self._as_ours, self._step_ended)
        self._hooks: list[Callable[[], object]] = []  # each takes one back
        self._thread_id = 0
        self._in_main_thread = False
        self._working = False  # inside our own code: a pending call must wait
        self._time_is_up = False  # recording ends with this step
        self._patient = False  # … which alone takes longer than the time to record in
        self._recording: Recording | None = None
        self._raw: tuple[Trace, bytes, float] | None = None  # and how long reading took
        self._told_s = 0.0  # of the region, in which it was read

    @property
    def n_steps_seen(self) -> int:
        return self.log.n

    @property
    def is_done(self) -> bool:
        """The profiler has stopped: all active steps are recorded, or the region has ended."""
        return self._state == "done"

    @property
    def runs_profiler(self) -> bool:
        """Whether there is a profiler to be stopped, which only the thread that began it may do."""
        profiler = self._profiler
        begun = profiler.profile is not None and profiler.began_s > 0
        return begun and self._state in ("warm-up", "active")

    @property
    def n_foreign_steps(self) -> int:
        """Optimizer steps in other threads, which are not recorded."""
        return self.ends.n_foreign

    @property
    def gave_way(self) -> bool:
        """There is no recording, because the region runs a profiler of its own."""
        return self._profiler.is_lost

    @property
    def saw_no_step(self) -> bool:
        """No step ended while it recorded, nor later: what it has is a part of one, or no step."""
        log = self.log
        in_a_step = self._ended_in == "active" and not self._profiler.is_lost
        return in_a_step and not log.n_recorded and log.n_until_stop == log.n

    @property
    def failure(self) -> Failure | None:
        parts = (self._instrument, self.sampled, self._facts, self._deadline.instrument)
        return next((part.failure for part in parts if part.failure is not None), None)

    # --- begin and end ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to record.

        Raises:
            ProfilerBusyError: a profiler is active already; nothing has been changed.
            UsageError: this recorder was started before.
        """
        if self._state != "new":
            raise UsageError("a Recorder records once: make a new one for the next region")
        self._thread_id = threading.get_ident()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._working = True
        try:
            if not self.log.late:
                # kernels of before, still at work, would be part of the recording
                with self._instrument.guard("waiting for the device"):
                    wait_for_devices()
            with Uninterrupted():
                self._begin()
        except Exception as error:
            if not isinstance(error, ProfilerBusyError):  # ours: the region runs without it
                self._instrument.fail(error, "starting")
            self.stop()
            self._profiler.forget()
            if isinstance(error, ProfilerBusyError):
                raise
        except BaseException:
            self.stop()
            raise
        finally:
            self._working = False
            self.log.began_s = self.log.since_s = time.perf_counter()

    def _begin(self) -> None:
        late, guarded = self.log.late, self._instrument.hook
        if not late:
            self._profiler.start()
        self._state = "warm-up"
        if self._with_lines:
            self.sampled.start()
        self._facts.start()
        self._deadline.start()
        self.ends.start()
        self._hooks = [torch_compat.watch_profiler_starts(guarded(self._other_profiler_starts))]
        if self.warmup == 0:
            self._activate()
            self._profiler.open_mark(f"{_STEP_MARK}0")
        elif not late:  # else the profiler starts with the first step after the warm-up
            self._deadline.allow_memory()
            self._deadline.set(self.log.max_seconds)
            self._profiler.open_mark(REGION_MARK)

    def stop(self) -> None:
        """End the recording; does nothing if it has ended. Leaves no hook, thread or profiler.

        It does not raise: what the region raised is what matters. Only Ctrl-C meanwhile is raised,
        at the end. Within a backward pass it ends with the pass; called in another thread (as the
        garbage collector calls it for a generator), it ends in the main thread, if it began there.
        """
        if not self.runs_profiler:
            surely(self._end)
        elif threading.get_ident() != self._thread_id and self._in_main_thread:
            call_in_main_thread(self._instrument.hook(self._end_after_pass, even_off=True))
        else:
            self._end_after_pass()

    @property
    def _ours_s(self) -> float:
        return self._stop_s + self._told_s + (self._start_s if self.log.late else 0.0)

    def _end_after_pass(self) -> None:
        self.ends.after_pass(partial(surely, self._end))

    def _end(self) -> None:
        self._working = True
        guard = partial(self._instrument.guard, "ending the recording")
        log = self.log
        if not log.ended_s:
            log.ended_s = time.perf_counter()
            # 0 where the profiler is stopped only now
            log.ours_s = self._ours_s
            with guard():  # what follows is no time of the region's
                if self._state == "warm-up":
                    self._profiler.close_mark()
            with guard():
                if self._hooks:
                    self._facts.region_ends()
        parts = (self.ends, self.sampled, self._facts, self._deadline)
        # the profiler again, where it could not be stopped, as near the limit of recursion
        undo = (self._stop_recording, self._profiler.end, *self._hooks, *(p.close for p in parts))
        self._hooks, self._on_step, self._on_rest = [], None, None  # they know who made this
        try:
            for call in undo:
                with guard():
                    call()
        finally:
            self._working = False

    def forget(self) -> None:
        """In a forked child: the recording is the parent's; leave no hook here. Does not raise."""
        self._state, self._working = "done", True
        self._profiler.forget()
        hooks, self._hooks = self._hooks, []
        for undo in (*hooks, self.ends.close, self._facts.close):
            with self._instrument.guard("forgetting the recording"):
                undo()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _give_up(self) -> None:
        """The recorder itself has failed: leave the region alone from now on."""
        if threading.get_ident() == self._thread_id:
            self.ends.after_pass(self._instrument.hook(self._stop_recording, even_off=True))

    # --- steps ------------------------------------------------------------------------------

    def step(self) -> None:
        """Mark the end of a step, where no optimizer does; in a hook, at the end of its pass."""
        if self._hooks:
            self.ends.after_pass(partial(self._instrument.hook(self._as_ours), self._step_ended))

    def _step_ended(self) -> None:
        now_s = time.perf_counter()
        was = self._state
        if was == "active":
            self._profiler.close_mark()
        log = self.log
        began_s = log.ended(now_s, later=was == "done")
        loaders = self._facts.loaders
        if loaders is not None:
            loaders.look()  # before the profiler starts, which takes a while
        if was == "active":
            log.n_recorded += 1
            log.recorded_ms.append((now_s - began_s) * 1e3)
            if self._deadline.steps_grew() or log.is_complete or self._time_is_up:
                self._out_of_time = not log.is_complete
                self._stop_recording()
        elif was != "done" and log.n >= self.warmup:
            self._activate()
        if self.ends.unread:
            self.ends.read_facts()
        if self._on_step is not None:
            self._on_step(began_s, now_s)
        if self._on_rest is not None and self._state == "done":
            on_rest, self._on_rest = self._on_rest, None
            on_rest()
        if loaders is not None:
            loaders.skip(time.perf_counter() - now_s)
        if self._state == "active":
            self._profiler.open_mark(f"{_STEP_MARK}{log.n_recorded}")
        log.since_s = time.perf_counter()

    def _as_ours(self, function: Callable[..., None], *args: Any) -> None:
        """Call it, unless we are at work already; then do what was asked for meanwhile."""
        if self._working:
            return
        self._working = self._facts.collector.is_off = True
        try:
            if self._state == "done":  # of a long run, most steps: nothing is changed there
                function(*args)
            else:
                with Uninterrupted():
                    function(*args)
        finally:
            self._working = self._facts.collector.is_off = False
        if self._time_is_up and not self._patient:
            self._time_is_up = False
            self._enough()

    def _activate(self) -> None:
        """The next mark is a step's."""
        if self.log.late:
            began_s = time.perf_counter()
            try:
                self._profiler.start()
            except ProfilerBusyError:
                self._stop_recording()
                self.log.skips_all = True
                return
            finally:
                self._start_s = time.perf_counter() - began_s
        self._profiler.go_on()
        self._state = "active"
        self._time_is_up = False
        self._deadline.allow_memory(at_step_end=self.log.n > 0)
        self._deadline.set(self.log.max_seconds)
        self._facts.recording_begins(late=self.log.late)

    def _stop_recording(self) -> None:
        before, self._state = self._state, "done"
        if before in ("new", "done"):
            return
        log, profiler = self.log, self._profiler
        self._ended_in, log.n_until_stop = before, log.n
        if profiler.profile is None:
            return
        began_s = time.perf_counter()
        try:
            profiler.close_mark()
            if not profiler.is_paused:
                profiler.ended_s = time.perf_counter()
            self._facts.recording_ends(has_steps=log.n_recorded > 0)
        finally:
            try:
                n_events = self._deadline.n_events
                end_s = n_events * END_US / 1e6
                with telling(end_s) as tell:
                    many = f"{n_events / 1e6:.1f} million events"
                    tell(f"torch ends its recording of about {many}", left_s=end_s)
                    profiler.end()
            finally:
                self._stop_s = time.perf_counter() - began_s
                if not log.ended_s:
                    log.since_s += self._stop_s  # of a step in whose middle this is
                log.skips_next = not log.is_complete

    def _other_profiler_starts(self) -> None:
        """The region starts a profiler by itself: end ours first: torch runs one at a time."""
        self.log.skips_all |= self._state == "done"  # steps that follow are no measure
        if not self.runs_profiler:
            return  # if theirs still runs when ours is to begin, it does not
        if threading.get_ident() != self._thread_id:
            raise ProfilerBusyError(
                "perfkit is profiling this code from another thread, and torch runs one profiler "
                "at a time: start this profiler in the thread that perfkit profiles, or without "
                "perfkit"
            )
        with Uninterrupted():
            self._profiler.give_way()
            self._stop_recording()

    # --- the time limit ---------------------------------------------------------------------

    def _deadline_passed(self) -> None:
        """In the deadline's thread. Only the thread that started the profiler may pause it."""
        if self._in_main_thread:
            # by then a step may have ended, from which on there is more time and memory
            call_in_main_thread(self._instrument.hook(partial(self._enough, self._state)))
        else:
            self._time_is_up = True  # seen at the next step's end

    def _enough(self, state: str = "") -> None:
        """Time or memory to record in are over; nothing, where it was in a state that has ended."""
        if self.ends.inside_pass:
            self.ends.after_pass(partial(self._enough, state))
        elif self._working:
            self._time_is_up = True
        elif not state or self._state == state:
            self._as_ours(self._stop_or_wait)

    def _stop_or_wait(self) -> None:
        if self._state == "warm-up" and not self._profiler.is_paused:
            self._profiler.pause()  # an optimizer may still step later; what was seen stays
            self._facts.recording_pauses()
        elif self._state == "active" and not (
            self._deadline.memory_was_full or self.log.n_recorded or self._patient
        ):
            self._patient = self._time_is_up = True  # the end of this step is the end
            self._deadline.set(PATIENCE * self.log.max_seconds)
        elif self._state == "active":
            self._out_of_time = True
            self._stop_recording()

    # --- reading ----------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """What was recorded; read back from torch on first access, which takes ``cost.read_s``.

        Raises:
            MeasurementError: nothing was started, or it is still running.
            TraceError: torch wrote a trace that cannot be read.
        """
        if self._recording is None:
            if self._state != "done":
                raise MeasurementError(
                    "there is no recording yet: start the Recorder and stop it (stopped within a "
                    "backward pass, it ends with the pass)"
                )
            if self._raw is None and self._profiler.profile is None:
                raise MeasurementError(f"there is no recording: {self._why_none()}")
            self._recording = self._read()
        return self._recording

    def _why_none(self) -> str:
        if self.failure is not None:
            return self.failure.sentence()
        if self._profiler.is_lost:
            return (
                "this code runs a torch profiler of its own, and torch runs one at a time: take it "
                "out to profile with perfkit (or perfkit began within a backward pass, whose end "
                "ends a profiler)"
            )
        return "the profiler did not start or stop"

    def tell_early(self, tell: Callable[[Recording], None]) -> None:
        """Tell what was recorded, while the region runs on; at the end of a step, in its thread.

        :attr:`recording` then has the rest, too; the time that this takes is in no figure of it.
        """
        log, began_s = self.log, time.perf_counter()
        self.sampled.take()
        log.ended_s, log.ours_s = began_s, self._ours_s
        try:
            made, self._recording = self.recording, None
            tell(made)
        finally:
            log.ended_s = log.ours_s = 0.0
            self._told_s += time.perf_counter() - began_s

    def _read_raw(self) -> tuple[Trace, bytes, float]:
        log, profiler = self.log, self._profiler
        began_s = time.perf_counter()
        with telling(self._stop_s) as tell:

            def read(share: float) -> None:
                share = WRITTEN + (1 - WRITTEN) * share
                tell("reading the recording", share=share, left_s=self._stop_s * (1 - share))

            tell("reading the recording", left_s=self._stop_s)
            raw = raw_trace(profiler.profile)
            if self._ended_in == "active":
                unfinished = f'"{_STEP_MARK}{log.n_recorded}"'.encode()
                raw = raw.replace(unfinished, f'"{UNFINISHED_MARK}"'.encode())
            trace = replace(load(raw, progress=read), source=RECORDED_HERE)
            if profiler.with_shapes:
                from perfkit.trace.record.lists import with_lists

                with self._instrument.guard("reading the shapes of lists"):
                    trace = with_lists(trace, profiler.profile)
            profiler.forget()
            give_back(_MUCH_BYTES)
        return trace, raw, time.perf_counter() - began_s

    def _read(self) -> Recording:
        log, profiler, lines = self.log, self._profiler, self.sampled
        trace, raw, read_s = self._raw = self._raw or self._read_raw()
        ran_ahead = self._host_ran_ahead(trace)
        recorded_ms, later_ms = ([], []) if ran_ahead else (log.recorded_ms, log.later_ms)
        return Recording(
            trace=trace,
            n_steps_seen=log.n,
            n_steps_profiled=log.n_recorded,
            cost=Cost(
                profiled_step_ms=median(recorded_ms),
                unprofiled_step_ms=median(later_ms),
                n_profiled=len(recorded_ms),
                n_unprofiled=len(later_ms),
                stop_s=self._stop_s,
                read_s=read_s,
                n_events=len(trace),
                stays_attached=trace.has_device and stays_attached(),
            ),
            lines=in_trace_time(lines.of_steps, trace, profiler.marks),
            worker_lines=lines.of_workers,
            process_lines=lines.of_processes,
            facts=self._facts.result(self.ends.facts),
            raw=raw,
            coverage=log.coverage(profiler.began_s, profiler.ended_s),
            warnings=(*trace.warnings, *filter(None, self._doubts(ran_ahead))),
            elsewhere=elsewhere(log, lines.samples, self._n_slowed),
            busy=self._facts.contention,
            n_foreign_steps=self.ends.n_foreign,
            unprofiled_ms=tuple(log.later_ms),
        )

    def _doubts(self, ran_ahead: bool) -> Iterator[str]:
        """What a reader must know, in words; some are empty."""
        failure = self.failure
        yield "" if failure is None else failure.sentence()
        yield self.log.why_so_few(self._ended_by())
        yield self.ends.whose_step()
        if n_foreign := self.ends.n_foreign:
            yield (
                f"{plural(n_foreign, 'optimizer step')} ran in another thread, which is "
                "not recorded: profile in the thread that trains"
            )
        yield (
            "the GPU was more than a step behind the host, on whose clock steps end: what "
            "profiling cost is unknown"
            if ran_ahead
            else self.log.odd_window()
        )

    def _ended_by(self) -> EndedBy:
        if self._deadline.memory_was_full:
            return "memory"
        if self._out_of_time:
            return "time"
        return "the code" if self._instrument.failure is None else "a failure"

    def _host_ran_ahead(self, trace: Trace) -> bool:
        """Whether the device was still at work on more than a step when the last one had ended.

        Then the host only handed out work in the recorded steps, as long as there was room for it,
        and later ones take the device's time: nothing can be compared.
        """
        step_ms = median(self.log.recorded_ms)
        last_mark = f"{_STEP_MARK}{self.log.n_recorded - 1}"
        marks = trace.is_a(Category.ANNOTATION) & trace.named(last_mark.__eq__)
        if step_ms is None or not trace.has_device or not marks.any():
            return False
        work_ns = trace.end_ns[trace.is_a(*DEVICE_CATEGORIES)].max()
        return bool(work_ns - trace.end_ns[marks].max() > step_ms * 1e6)
