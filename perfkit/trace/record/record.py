"""Record a few training steps of a region of code that knows nothing of it.

A step ends when an optimizer has stepped, as torch's global optimizer hooks report; of several,
the first one, until another steps again and again without it. The profiler
runs from the start of the region (what it sees before the warm-up is over is *provisional*:
the result if nothing better comes), marks ``steps`` steps after ``warmup`` others, then
stops, and the region runs on unprofiled. ``late`` starts it only when the warm-up is over: a whole
script may take hours until then, and sets up its devices itself. Later steps are timed by the
hook alone, which shows what profiling cost; lines are sampled at a low rate all along, so that time
outside of steps like the recorded ones can be named (see :mod:`perfkit.trace.record.elsewhere`).

One profiler serves the whole recording; while nothing is wanted its collection is switched
off, not stopped. Stopping and starting again inside of a ``record_function`` block of the user
would leave torch with a pointer into the first recording.

The marks are ``ProfilerStep#n``, as of ``torch.profiler.profile.step``, so that other tools
find the same steps in a saved trace.

torch cannot run two profilers at once: one that the region starts, or ends, takes the other's
events, and reading ours then ends the process. So our recording ends just before and is read at
once, and the region's own profiler works as if it were alone. If torch says that our profiler no
longer runs, its result is somebody else's and is never touched.

All that runs inside the region (hooks, callbacks, the sampler) is guarded by an
:class:`~perfkit.base.instrument.Instrument`: if it fails the recording ends,
and the region goes on.
"""

from __future__ import annotations

import bisect
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Literal, Self

from perfkit.base import torch_compat
from perfkit.base.arguments import check_seconds, check_whole
from perfkit.base.backward_passes import BackwardPasses
from perfkit.base.compiling import CompileReport, CompileWatch
from perfkit.base.device import here, in_use, is_capturing
from perfkit.base.errors import MeasurementError, ProfilerBusyError, UsageError
from perfkit.base.heap import give_back
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.line_sampler import LineSampler, frames_of
from perfkit.base.machine._host import usable_cpus
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.base.machine.dataloader_stats import DataLoaderSampler
from perfkit.base.stack import levels_of
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.words import fmt_count, fmt_ms, fmt_s, fmt_share, plural
from perfkit.trace.read.columns import DEVICE_CATEGORIES, RECORDED_HERE, Category, Trace
from perfkit.trace.read.events import is_data_wait
from perfkit.trace.read.load import load
from perfkit.trace.read.steps import REGION_MARK
from perfkit.trace.record._main_thread import call_in_main_thread
from perfkit.trace.record._threads import watch_thread_starts
from perfkit.trace.record.cost import Cost, ratio_interval
from perfkit.trace.record.coverage import Coverage
from perfkit.trace.record.deadline import Deadline
from perfkit.trace.record.elsewhere import Elsewhere, elsewhere, longest_alike_s
from perfkit.trace.record.facts import Facts, OptimizerFacts, optimizer_facts
from perfkit.trace.record.lines import (
    NO_LINES,
    LineSamples,
    Sample,
    child_lines,
    lines_of,
    samples_of,
    user_line,
)
from perfkit.trace.record.lists import with_lists
from perfkit.trace.record.pauses import GcPauses
from perfkit.trace.record.profiler import (
    raw_trace,
    start_alone,
    stays_attached,
    stop_quietly,
    wait_for_devices,
)
from perfkit.trace.record.quiet import quiet_profiler
from perfkit.trace.record.reading import Reading, tell_end
from perfkit.trace.record.waits import waiting_share

STEPS = 6
WARMUP = 2
MAX_SECONDS = 10.0

# The recorded part is a wait for others from this share of its samples on.
_MOSTLY = 0.5
# A region of which this share was recorded counts as recorded whole.
_ALL_OF_IT = 0.99
_STEP_MARK = "ProfilerStep#"
_UNFINISHED_MARK = "perfkit unfinished step"

# One step may be longer than max_seconds; it is waited for, up to this many times as long.
_PATIENCE = 5
# Tiny ops make a million events a second; then time is no bound. Each takes about 8 µs to end and
# to read, and 1.5 KB then. Torch does not tell how many it holds, so what they take is looked at,
# 240 bytes each until then; within a step, whose tensors take memory, too, only roughly.
_MOST_EVENTS = 500_000
_EVENT_BYTES = 240
_KEPT_BYTES = _MOST_EVENTS * _EVENT_BYTES
_MEMORY_BYTES = 2**30

# Kept for the median of unprofiled steps; more would not move it.
_MOST_UNPROFILED = 1000
# The recorded steps may be too short to show a busy machine; then the whole region decides.
_LEAST_BUSY_S = 0.5
# Begin and end of so many steps are kept, 16 bytes each.
_MOST_STEPS = 200_000

# A profiler makes no step faster, and seldom a step more than three times as long or, of some
# thousand operators, longer by this: beyond, the steps themselves differ.
_FASTER, _SLOWER, _MOST_COST_MS = 0.8, 3.0, 20.0

# Fewer samples of a line say nothing.
_LEAST_SAMPLES = 2

# An optimizer that steps so often while the first one does not has taken its place.
_TAKES_OVER = 20

# If one optimizer steps this many times as often as another, it is said whose steps are meant.
_MORE_OFTEN = 2

# Names of started threads are kept for a note; these are enough to know them by.
_MOST_THREADS = 3

_State = Literal["new", "waiting", "provisional", "paused", "active", "done"]


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded region.

    Attributes:
        trace: the events.
        n_steps_seen: steps of the whole region, profiled or not.
        n_steps_profiled: steps that the trace's marks cover.
        cost: what recording cost.
        lines: samples of source lines, of steps like the recorded ones, recorded or not; of the
            whole region where it has none.
        worker_lines: the same of the DataLoader's workers, of the whole region.
        process_lines: the same of other processes that the region starts.
        facts: what the trace does not say.
        raw: the trace as torch wrote it, JSON.
        coverage: what part of the region the figures are of.
        warnings: what is doubtful.
        elsewhere: the region's time outside of steps like the recorded ones; None where no step
            was recorded.
        busy: what else the machine did meanwhile.
        cut_short: it ended early because the region started or ended a profiler by itself.
        n_foreign_steps: optimizer steps in other threads, which are not recorded.
        has_threads: the region started threads: what they do, but for optimizer steps, is not seen.
        unprofiled_ms: lengths of steps that followed the recorded ones, by the host's clock.
    """

    trace: Trace
    n_steps_seen: int
    n_steps_profiled: int
    cost: Cost
    lines: LineSamples
    worker_lines: LineSamples
    process_lines: LineSamples
    facts: Facts
    raw: bytes
    coverage: Coverage
    warnings: tuple[str, ...]
    elsewhere: Elsewhere | None = None
    busy: CpuContention | None = None
    cut_short: bool = False
    n_foreign_steps: int = 0
    has_threads: bool = False
    unprofiled_ms: tuple[float, ...] = ()

    def no_step(self) -> str:
        """That the region has no step at all, and what to do; empty where an optimizer stepped.

        A loop over a DataLoader has steps without an optimizer: who finds these says nothing.
        """
        if self.n_steps_seen:
            return ""
        n_fetches = int(
            (
                self.trace.is_a(Category.ANNOTATION, Category.OP) & self.trace.named(is_data_wait)
            ).sum()
        )
        # hooks see the whole region, but what a DataLoader does is only seen while recording
        is_part = self.coverage.profiled_s < self.coverage.region_s
        recorded = " in what was recorded" if is_part else ""
        fetched = (
            f"the {plural(n_fetches, 'fetch', 'fetches')} from a DataLoader{recorded} made no "
            "steps of it"
            if n_fetches
            else f"no DataLoader was read{recorded}"
        )
        part = (
            f"the first {fmt_s(self.coverage.profiled_s)} of your code"
            if self.coverage.share < _ALL_OF_IT
            else f"{'nearly ' * is_part}all of your code"
        )
        waits = waiting_share(self.lines) >= _MOSTLY
        where = "in this thread, " if self.n_foreign_steps or self.has_threads else ""
        where = where or ("in this process, " if waits else "")
        do = (
            "profile in the thread that trains"
            if self.n_foreign_steps
            else "this thread mostly waits for others: profile in the thread or process that trains"
            if waits
            else "to see steps, profile the loop that calls optimizer.step(), or one step by "
            "itself: %torchprof train_step()"
        )
        return (
            f"No step was found: {where}no optimizer stepped and {fetched}, so the figures are of "
            f"{part} as one piece; {do}."
        )

    def not_steps(self) -> str:
        """Why the figures are not of steps although the region has some; empty where they are."""
        if not self.cut_short or self.n_steps_profiled or not self.n_steps_seen:
            return ""
        return (
            "No step was recorded: your code runs a torch profiler of its own (take it out to "
            "profile with perfkit), and what perfkit saw before it is "
            f"{fmt_s(self.coverage.profiled_s)} of {fmt_s(self.coverage.region_s)}."
        )

    def __repr__(self) -> str:
        return (
            f"<Recording of {self.n_steps_profiled} of {self.n_steps_seen} steps: {self.trace!r}>"
        )


class Recorder:
    """Records a region; a context manager, or :meth:`start` and :meth:`stop`.

    ``with Recorder() as recorder: train()``, then ``recorder.recording``. What the region raises
    passes through; what was recorded until then is still there.

    Args:
        steps: how many steps to record.
        warmup: how many to let pass before; the first ones are not typical.
        stacks: record the Python stack of every op. With shapes and memory this costs +47 % on a
            3 ms step where the default costs +18 %.
        shapes: record the shapes and types of inputs; or says whether, when the profiler starts.
        memory: record allocations.
        max_seconds: record no longer than this at a stretch. A region in which no optimizer
            steps is recorded so far and then runs on unprofiled.
        lines: sample source lines.
        late: start the profiler only when the warm-up is over. A region that ends before has no
            recording.
        on_step: called with begin and end (``time.perf_counter``) of every step that ends, between
            two steps: what it takes belongs to neither. If it raises, the recorder ends.
        on_other: called with the time at which another optimizer has stepped; if that takes the
            first one's place, ``on_step`` is called for these steps later.
        on_rest: called when nothing more is recorded, after the ``on_step`` of a step. Not sooner:
            elsewhere torch.compile may be building guards on what is there.
        n_slowed: so many of the first steps run under another instrument of perfkit's, which makes
            them slow: their length says nothing.

    Raises:
        UsageError: a count or time that cannot be.
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
        on_other: Callable[[float], None] | None = None,
        on_rest: Callable[[], None] | None = None,
        n_slowed: int = 0,
    ) -> None:
        check_whole("steps", steps, 1)
        check_whole("warmup", warmup, 0)
        check_seconds("max_seconds", max_seconds)
        self.steps = steps
        self.warmup = warmup
        self._options: dict[str, Any] = {
            "with_stack": stacks,
            "record_shapes": shapes is True,
            "profile_memory": memory,
        }
        self._asks_for_shapes = shapes if callable(shapes) else None
        self._max_seconds = max_seconds
        self._with_lines = lines
        self._late = late
        self._on_step, self._on_other, self._on_rest = on_step, on_other, on_rest
        self._n_slowed = n_slowed

        self._state: _State = "new"
        self._profile: Any = None
        self._must_end = False  # our profiler has been started and not been stopped
        self._raw: bytes | None = None  # read already, where another profiler was in the way
        self._instrument = Instrument(
            "perfkit's recorder", switch_off=self._give_up, let_pass=(ProfilerBusyError,)
        )
        self._hook: Any = None
        self._unwatch: Any = None
        self._unwatch_ends: Any = None
        self._passes: BackwardPasses | None = None
        self._stepped_in_pass: dict[int, Any] = {}  # id → optimizer
        self._busy_mark: ContentionMark | None = None
        self._busy: CpuContention | None = None
        self._looks: DataLoaderSampler | None = None
        self._compile_watch: CompileWatch | None = None
        self._compiled: CompileReport | None = None
        # (time.perf_counter, name) of each mark opened: ties the samples' clock to the trace's
        self._marks: list[tuple[float, str]] = []
        self._step_times: list[tuple[float, float]] = []
        self._gave_way = False  # to a profiler of the region's own
        self._cut_short = False  # … before all steps were recorded
        self._taken = False  # our profiler was ended behind our back: its events are lost
        self._began_in_pass = False
        self._sampler: LineSampler | None = None
        self._samples: tuple[Sample, ...] = ()
        self.worker_lines = self.process_lines = NO_LINES
        self._frameworks: frozenset[tuple[str, int]] = frozenset()
        self._deadline: Deadline | None = None
        self._gc: GcPauses | None = None
        self._mark: Any = None
        self._thread_id = 0
        self._in_main_thread = False
        self._working = False  # inside our own code: a pending call must wait
        self._time_is_up = False
        self._was_too_long = False  # … and it ended the recording
        self._patient = False

        self._first_optimizer: weakref.ref[Any] | None = None
        self._first_id = 0
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._unread: dict[int, weakref.ref[Any]] = {}
        self._n_of: dict[int, int] = {}  # id → its steps, since the first one is the first
        # id of another → steps of the first one when that one stepped for the first and last time
        self._first_at: dict[int, tuple[int, int]] = {}
        # since the first one stepped: id of another → when it has stepped
        self._by_others: dict[int, list[float]] = {}
        self._n_foreign = 0
        self._only_marked = False  # steps end where step() is called, not where an optimizer steps
        self._started_threads: list[str] = []
        self._unwatch_threads: Any = None
        self._n_steps = 0
        self._n_profiled = 0
        self._n_steps_until_stop = 0
        self._began_s = self._ended_s = self._stop_inside_s = 0.0
        self._profiler_began_s = self._profiler_ended_s = 0.0
        self._step_began_s = self._last_step_s = 0.0
        self._skip_interval = False
        self._profiled_ms: list[float] = []
        self._unprofiled_ms: list[float] = []
        self._stop_s = self._start_s = 0.0
        self._recorded_s = 0.0
        self._ended_as: _State = "new"  # the state in which the profiler was stopped
        self._ran_ahead = False
        self._recording: Recording | None = None

    @property
    def n_steps_seen(self) -> int:
        """Steps that have ended so far, profiled or not."""
        return self._n_steps

    @property
    def is_done(self) -> bool:
        """The profiler has stopped: all active steps are recorded, or the region has ended."""
        return self._state == "done"

    @property
    def runs_profiler(self) -> bool:
        """Whether there is a profiler to be stopped, which only the thread that began it may do."""
        return self._state not in ("new", "waiting", "done")

    @property
    def saw_other_threads(self) -> bool:
        """The code started threads, or optimizers stepped in another one: not recorded."""
        return self._n_foreign > 0 or bool(self._started_threads)

    @property
    def n_foreign_steps(self) -> int:
        """Optimizer steps in other threads, which are not recorded."""
        return self._n_foreign

    @property
    def gave_way(self) -> bool:
        """The recording ended early because the region started a profiler of its own."""
        return self._cut_short

    @property
    def saw_no_step(self) -> bool:
        """No step ended while it recorded, nor later: what it has is a part of one, or no step."""
        if self._ended_as != "active" or self._cut_short:
            return False
        return not self._n_profiled and self._n_steps_until_stop == self._n_steps

    @property
    def failure(self) -> Failure | None:
        """What of the recorder failed and was switched off; None where all went well."""
        looks = None if self._looks is None else self._looks.instrument
        parts = (self._instrument, self._sampler, self._deadline, self._gc, looks)
        return next((p.failure for p in parts if p is not None and p.failure is not None), None)

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
            if not self._late:
                # kernels of before, still at work, would be part of the recording
                with self._instrument.guard("waiting for the device"):
                    wait_for_devices()
            with Uninterrupted():
                self._begin()
            self._began_s = self._step_began_s = time.perf_counter()
        except ProfilerBusyError:
            self.stop()
            raise
        except Exception as error:  # ours: the region runs without it
            self._instrument.fail(error, "starting")
            self.stop()
            self._profile = None
            self._began_s = self._step_began_s = time.perf_counter()
        except BaseException:
            self.stop()
            raise
        finally:
            self._working = False

    def _begin(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._late:
            self._state = "waiting"
        else:
            self._start_profiler()
            self._state = "provisional"
        guarded = self._instrument.hook
        self._passes = BackwardPasses(self._instrument)
        self._unwatch = torch_compat.watch_profiler_starts(guarded(self._other_profiler_starts))
        ended = guarded(self._other_ends_profiler, instead=False)
        self._unwatch_ends = torch_compat.watch_profiler_ends(lambda: bool(ended()))
        if self._with_lines:
            self._sampler = LineSampler(self._thread_id)
            self._sampler.start()
        self._deadline = Deadline(guarded(self._deadline_passed), _MEMORY_BYTES, _KEPT_BYTES)
        self._deadline.start()
        self._gc = GcPauses(self._thread_id)
        self._gc.start()
        self._unwatch_threads = watch_thread_starts(guarded(self._thread_starts))
        self._hook = register_optimizer_step_post_hook(guarded(self._optimizer_stepped))
        self._busy_mark = ContentionMark()
        self._looks = DataLoaderSampler()
        self._compile_watch = CompileWatch()
        if self.warmup == 0:
            self._activate()
            self._open_mark(f"{_STEP_MARK}0")
        elif not self._late:  # else the profiler starts with the first step after the warm-up
            self._deadline.allow_memory()
            self._deadline.set(time.monotonic() + self._max_seconds)
            self._open_mark(REGION_MARK)

    def stop(self) -> None:
        """End the recording; does nothing if it has ended. Leaves no hook, thread or profiler.

        It does not raise: what the region raised is what matters. Only Ctrl-C meanwhile is raised,
        at the end. Within a backward pass it ends with the pass; called in another thread (as the
        garbage collector calls it for a generator), it ends in the main thread, if it began there.
        """
        surely(self._stop)

    def _stop(self) -> None:
        if not self.runs_profiler:
            self._end()
        elif threading.get_ident() != self._thread_id and self._in_main_thread:
            call_in_main_thread(self._instrument.hook(self._end_after_pass, even_off=True))
        else:
            self._end_after_pass()

    def _end_after_pass(self) -> None:
        self._after_pass(partial(surely, self._end))

    def _end(self) -> None:
        self._working = True
        if not self._ended_s:
            self._ended_s = time.perf_counter()
            if self._compile_watch is not None:
                with self._instrument.guard("reading what was compiled"):
                    found = self._compile_watch.report()
                    self._compiled = None if found.is_empty else found
            if self._state == "provisional":  # what follows is no time of the region's
                with self._instrument.guard("ending the recording"):
                    self._close_mark()
            # _stop_s is 0 where the profiler is stopped only now
            self._stop_inside_s = self._stop_s + (self._start_s if self._late else 0.0)
            if self._busy_mark is not None and (
                self._busy is None or self._busy.wall_s < _LEAST_BUSY_S
            ):
                with self._instrument.guard("looking whether the machine is busy"):
                    self._busy = self._busy_mark.until_now()
        hook, self._hook = self._hook, None
        undo = [None if hook is None else hook.remove]
        for name in ("_unwatch", "_unwatch_threads"):
            undo.append(getattr(self, name))
            setattr(self, name, None)
        undo.append(self._stop_profiler)
        # again, where they failed, as near the limit of recursion
        undo.append(self._end_profiler)
        undo.append(None if self._gc is None else self._gc.stop)
        undo.append(self._unwatch_ends)  # only now: it says whether our profiler is still ours
        self._unwatch_ends = None
        if self._passes is not None:
            undo.append(self._passes.close)
        if self._deadline is not None:
            undo.append(self._deadline.close)
        undo.append(self._end_sampling)
        try:
            for call in undo:
                if call is not None:
                    with self._instrument.guard("ending the recording"):
                        call()
        finally:
            self._first_optimizer = None
            self._working = False

    def forget(self) -> None:
        """In a forked child: the recording is the parent's; leave no hook here. Does not raise."""
        self._state, self._working = "done", True
        self._profile = self._raw = None
        self._must_end = False
        undo: list[Callable[[], object] | None] = [
            self._unwatch, self._unwatch_threads, self._unwatch_ends,
            None if self._hook is None else self._hook.remove,
            None if self._passes is None else self._passes.close,
            None if self._gc is None else self._gc.stop,
        ]  # fmt: skip
        for call in undo:
            if call is not None:
                with self._instrument.guard("forgetting the recording"):
                    call()

    @property
    def step_times_s(self) -> list[tuple[float, float]]:
        """Begin and end of every step so far, by ``time.perf_counter``; of the first 200,000."""
        return self._step_times

    def line_between(self, begin_s: float, end_s: float) -> str:
        """The line most often seen from ``begin_s`` to ``end_s``, in words; empty if too few."""
        top = self._lines_in([(begin_s, end_s)]).by_line()[:1]
        if not top or top[0].n_samples < _LEAST_SAMPLES:
            return ""
        source = f": {top[0].source}" if top[0].source else ""
        return f"{fmt_share(top[0].share)} of it at {top[0].place}{source}"

    @property
    def last_step_s(self) -> float:
        """When the last step ended, by ``time.perf_counter``."""
        return self._last_step_s

    def _give_up(self) -> None:
        """The recorder itself has failed: leave the region alone from now on."""
        if self._deadline is not None:
            self._deadline.close()
        if threading.get_ident() == self._thread_id:
            self._stop_after_pass()
        elif self._in_main_thread:
            call_in_main_thread(self._stop_after_pass)

    def _stop_after_pass(self) -> None:
        self._after_pass(self._instrument.hook(self._stop_profiler, even_off=True))

    def step(self) -> None:
        """Mark the end of a step, where no optimizer does; in a hook, at the end of its pass."""
        if self._hook is not None:
            ended = partial(self._instrument.hook(self._in_our_code), self._step_ended)
            self._after_pass(ended)

    def steps_ended(self, ends_s: Sequence[float]) -> None:
        """Count steps that nobody marked when they ended, at these times of ``perf_counter``.

        None of them is recorded. From then on only :meth:`step` marks the end of a step, and
        optimizers no longer do.
        """
        if self._hook is not None:
            self._instrument.hook(self._in_our_code)(self._count_steps, ends_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

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
            if self._taken and self._began_in_pass:
                raise MeasurementError(
                    "there is no recording: it began within a backward pass, and torch ended it "
                    "with that pass; begin before backward()"
                )
            if self._taken and self.failure is None:
                raise MeasurementError(
                    "there is no recording: this code ended perfkit's profiler, and what it had "
                    "recorded is lost; run it without ending torch's profiler"
                )
            if self._profile is None and self._raw is None:
                why = "the profiler did not start or stop"
                if self._cut_short:
                    why = "this code runs a torch profiler of its own, and torch runs one at a time"
                if self.failure is not None:
                    why = self.failure.sentence()
                raise MeasurementError(f"there is no recording: {why}")
            self._recording = self._read()
        return self._recording

    # --- steps ------------------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # the step is being traced or captured, not run
        if self._only_marked or torch.compiler.is_compiling() or is_capturing():
            return
        if threading.get_ident() != self._thread_id:
            # a backward pass, which CUDA runs in threads of its own, is recorded
            if torch_compat.graph_task_id_reader()() < 0:
                self._n_foreign += 1
                return
            if self._passes is None or not self._passes.inside:
                return
        if self._passes is not None and self._passes.inside:
            if not self._stepped_in_pass:
                self._passes.after(self._pass_ended)
            self._stepped_in_pass[id(optimizer)] = optimizer
            return
        self._in_our_code(self._one_optimizer_stepped, optimizer)

    def _pass_ended(self) -> None:
        """Optimizers have stepped in hooks of this pass: the step ends with it."""
        stepped, self._stepped_in_pass = self._stepped_in_pass, {}
        for optimizer in stepped.values():
            self._in_our_code(self._one_optimizer_stepped, optimizer)

    def _after_pass(self, function: Callable[[], None]) -> None:
        if self._passes is None:
            function()
        else:
            self._passes.after(function)

    def _one_optimizer_stepped(self, optimizer: Any) -> None:
        key = id(optimizer)
        first = self._first_optimizer() if self._first_optimizer is not None else None
        if first is None:  # none yet, or it is gone: a new training run has begun
            self._first_optimizer, self._first_id = weakref.ref(optimizer), key
            self._optimizers, self._by_others, self._n_of, self._first_at = {}, {}, {}, {}
            first = optimizer
        if key not in self._optimizers:
            self._optimizers[key] = OptimizerFacts("", 0, (), ())
            self._unread[key] = weakref.ref(optimizer)
        self._n_of[key] = self._n_of.get(key, 0) + 1
        if first is optimizer:
            self._by_others.clear()
            self._step_ended()
            return
        n = self._n_of.get(self._first_id, 0)
        self._first_at[key] = self._first_at.get(key, (n, n))[0], n
        ends_s = self._by_others.setdefault(key, [])
        ends_s.append(time.perf_counter())
        if self._on_other is not None:
            self._on_other(ends_s[-1])
        if len(ends_s) >= _TAKES_OVER:
            self._takes_over(optimizer, ends_s)

    def _takes_over(self, optimizer: Any, ends_s: list[float]) -> None:
        """The first one steps no more (layers that train one after the other), this one does."""
        self._first_optimizer, self._first_id = weakref.ref(optimizer), id(optimizer)
        self._by_others, self._n_of = {}, {self._first_id: len(ends_s)}
        self._first_at = {}
        if self._state == "active":  # the open mark is of all of them, so they are one step
            self._step_ended()
            return
        self._count_past(ends_s)
        self._step_began_s = time.perf_counter()

    def _count_steps(self, ends_s: Sequence[float]) -> None:
        self._only_marked = True
        self._count_past(ends_s)

    def _count_past(self, ends_s: Sequence[float]) -> None:
        for end_s in ends_s:
            began_s, self._step_began_s = self._step_began_s, end_s
            self._last_step_s = end_s
            self._n_steps += 1
            if len(self._step_times) < _MOST_STEPS:
                self._step_times.append((began_s, end_s))
            if self._on_step is not None:
                self._on_step(began_s, end_s)

    def _step_ended(self) -> None:
        now_s = time.perf_counter()
        if self._state == "active":  # first of all: what perfkit does here belongs to no step
            self._close_mark()
        began_s, self._last_step_s = self._step_began_s, now_s
        interval_ms = (now_s - began_s) * 1e3
        if self._looks is not None:
            self._looks.look()  # before the profiler starts, which takes a while
        self._n_steps += 1
        if len(self._step_times) < _MOST_STEPS:
            self._step_times.append((began_s, now_s))
        if self._state == "active":
            self._n_profiled += 1
            self._profiled_ms.append(interval_ms)
            grew = self._deadline is not None and self._deadline.steps_grew()
            if self._n_profiled >= self.steps or self._time_is_up or grew:
                self._was_too_long = self._n_profiled < self.steps
                self._stop_profiler()
        elif self._state == "done":
            if self._skip_interval:
                self._skip_interval = False
            elif not self._gave_way and len(self._unprofiled_ms) < _MOST_UNPROFILED:
                self._unprofiled_ms.append(interval_ms)
        elif self._n_steps >= self.warmup:
            self._activate()
        if self._state != "done":
            self._note_framework(sys._getframe(1))
        self._read_facts()
        if self._on_step is not None:
            self._on_step(began_s, now_s)
        if self._on_rest is not None and self._state == "done":
            on_rest, self._on_rest = self._on_rest, None
            on_rest()
        if self._looks is not None:
            self._looks.skip(time.perf_counter() - now_s)
        if self._state == "active":
            self._open_mark(f"{_STEP_MARK}{self._n_profiled}")
        self._step_began_s = time.perf_counter()

    def _activate(self) -> None:
        """The next mark is a step's."""
        if self._state == "paused":
            self._collect(True)
        elif self._state == "waiting" and not self._started_late():
            return
        self._state = "active"
        self._time_is_up = False
        assert self._deadline is not None
        self._deadline.allow_memory(at_step_end=self._n_steps > 0)
        self._deadline.set(time.monotonic() + self._max_seconds)
        assert self._gc is not None
        self._gc.forget()

    def _read_facts(self) -> None:
        """Of the optimizers that have stepped for the first time."""
        unread, self._unread = self._unread, {}
        for key, ref in unread.items():
            if (optimizer := ref()) is not None and key in self._optimizers:
                self._optimizers[key] = optimizer_facts(optimizer)

    def _note_framework(self, frame: FrameType) -> None:
        """A step has ended below this frame: shows whether the loop is a framework's."""
        key = user_line(frames_of(levels_of(frame)))
        if key is not None and key.inner is not None:
            self._frameworks |= {key.frame.place}

    def _end_sampling(self) -> None:
        sampler = self._sampler
        if sampler is not None and not self._samples:
            found = sampler.stop()
            self._samples = samples_of(found.thread)
            self.worker_lines, self.process_lines = child_lines(found.children)

    def _lines_in(self, spans: Sequence[tuple[float, float]]) -> LineSamples:
        """What ran in these spans, which are in order of time."""
        begins = [begin for begin, _ in spans]
        inside = []
        for sample in self._samples:
            at = bisect.bisect_right(begins, sample.at_s) - 1
            if at >= 0 and sample.at_s <= spans[at][1]:
                inside.append(sample)
        return lines_of(inside, self._frameworks)

    @property
    def lines(self) -> LineSamples:
        """Of all steps like the recorded ones, or the usual ones; without steps of the region."""
        later = self._step_times[1:]
        if not (self._profiled_ms or (self._late and later)):
            return self._lines_in([(self._began_s, self._ended_s)])
        alike_ms = self._profiled_ms or [statistics.median((e - b) * 1e3 for b, e in later)]
        limit_s = longest_alike_s(alike_ms)
        return self._lines_in([(b, e) for b, e in later if e - b <= limit_s])

    def _started_late(self) -> bool:
        """Start the profiler in the middle of the region; False where one runs already."""
        began_s = time.perf_counter()
        try:
            self._start_profiler()
        except ProfilerBusyError:
            self._state = "done"
            self._gave_way = self._cut_short = True
            self._n_steps_until_stop = self._n_steps
            return False
        finally:
            self._start_s = time.perf_counter() - began_s
        self._busy_mark = ContentionMark()
        return True

    def _start_profiler(self) -> None:
        import torch

        self._activities = [torch.profiler.ProfilerActivity.CPU]
        names = here().profiler
        if names is not None:
            self._activities.append(getattr(torch.profiler.ProfilerActivity, names.activity))
        if self._asks_for_shapes is not None:
            self._options["record_shapes"] = self._asks_for_shapes()
        self._profile = torch.profiler.profile(activities=self._activities, **self._options)
        self._began_in_pass = torch_compat.graph_task_id_reader()() >= 0
        self._must_end = True
        try:
            start_alone(self._profile)
        except ProfilerBusyError:
            self._profile, self._must_end = None, False
            raise
        self._profiler_began_s = time.perf_counter()

    # --- other profilers ---------------------------------------------------------------------

    def _other_ends_profiler(self) -> bool:
        """The region ends the profiler that runs: if it is ours, end it ourselves."""
        if self._state in ("new", "waiting", "done") or threading.get_ident() != self._thread_id:
            return False  # our own stop, or a profiler of the region's
        self._give_way()
        return True

    def _other_profiler_starts(self) -> None:
        """The region starts a profiler by itself: end ours first, two at once crash."""
        if self._state == "waiting":
            return  # the region's own, before ours; if it still runs then, ours does not begin
        if self._state == "done":
            self._gave_way = True  # nothing is lost but the timing of the steps that follow
            return
        if threading.get_ident() != self._thread_id:
            raise ProfilerBusyError(
                "perfkit is profiling this code from another thread, and torch runs one profiler "
                "at a time: start this profiler in the thread that perfkit profiles, or without "
                "perfkit"
            )
        self._give_way()

    def _give_way(self) -> None:
        """End our profiler and read it at once, while its events are still ours."""
        self._gave_way = self._cut_short = True
        working, self._working = self._working, True
        try:
            with Uninterrupted():
                self._stop_profiler()
                if self._profile is not None:
                    began_s = time.perf_counter()
                    self._raw = raw_trace(self._profile)
                    torch_compat.forget_events(self._profile)
                    self._profile = None
                    read_s = time.perf_counter() - began_s
                    self._stop_s += read_s
                    self._step_began_s += read_s
        finally:
            self._working = working

    # --- other threads -----------------------------------------------------------------------

    def _thread_starts(self, name: str) -> None:
        if threading.get_ident() == self._thread_id and len(self._started_threads) < _MOST_THREADS:
            self._started_threads.append(name)

    # --- the time limit ---------------------------------------------------------------------

    def _deadline_passed(self) -> None:
        """In the sampler's thread. Only the thread that started the profiler may pause it."""
        if self._in_main_thread:
            # by then a step may have ended, from which on there is more time and memory
            call_in_main_thread(self._instrument.hook(partial(self._enough, self._state)))
        else:
            self._time_is_up = True  # seen at the next step's end

    def _enough(self, state: str = "") -> None:
        """Time or memory to record in are over; nothing, where it was in a state that has ended."""
        if self._passes is not None and self._passes.inside:
            self._passes.after(partial(self._enough, state))
            return
        if state and self._state != state:
            return
        if self._working:
            self._time_is_up = True
            return
        self._working = True
        try:
            with Uninterrupted():
                self._stop_or_wait()
        finally:
            self._working = False

    def _stop_or_wait(self) -> None:
        if self._state == "provisional":
            self._pause()
        elif self._state == "active" and self._is_full:
            self._stop_profiler()
        elif self._state == "active" and self._n_profiled == 0 and not self._patient:
            self._patient = self._time_is_up = True  # the end of this step is the end
            assert self._deadline is not None
            self._deadline.set(time.monotonic() + _PATIENCE * self._max_seconds)
        elif self._state == "active":
            self._was_too_long = True
            self._stop_profiler()

    @property
    def _is_full(self) -> bool:
        """Whether the process has grown by all that the events may take, and recording ended."""
        return self._deadline is not None and self._deadline.memory_was_full

    def _pause(self) -> None:
        """Stop collecting, in case an optimizer steps later; what was seen stays."""
        self._close_mark()
        self._recorded_s = time.perf_counter() - self._step_began_s
        self._collect(False)
        self._state = "paused"

    def _in_our_code(self, function: Any, *args: Any) -> None:
        if self._working:
            return
        self._working = True
        try:
            if self._state == "done":  # of a long run, most steps: nothing is changed there
                function(*args)
            else:
                with Uninterrupted():
                    function(*args)
        finally:
            self._working = False
        if self._time_is_up and not self._patient:
            self._time_is_up = False
            self._enough()

    # --- the profiler -----------------------------------------------------------------------

    def _collect(self, on: bool) -> None:
        with quiet_profiler():
            self._profile.toggle_collection_dynamic(on, self._activities)

    def _open_mark(self, name: str) -> None:
        from torch.profiler import record_function

        self._close_mark()
        mark: Any = record_function(name)
        with torch_compat.without_modes():
            mark.__enter__()
        self._mark = mark
        self._marks.append((time.perf_counter(), name))

    def _close_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            with torch_compat.without_modes():
                mark.__exit__(None, None, None)

    def _stop_profiler(self) -> None:
        if self._state in ("new", "waiting", "done"):
            if self._state == "waiting":
                self._n_steps_until_stop = self._n_steps
            self._state = "done"
            return
        before, self._state = self._state, "done"
        self._n_steps_until_stop = self._n_steps
        began_s = self._profiler_ended_s = time.perf_counter()
        try:
            if self._gc is not None:
                self._gc.stop()
            began_s = self._profiler_ended_s = time.perf_counter()
            if before != "paused":
                self._close_mark()
            if self._busy_mark is not None and self._n_profiled:
                self._busy = self._busy_mark.until_now()
            if self._looks is not None:
                self._looks.look(now=True)
            tell_end(self._events_about())
        finally:
            try:
                self._end_profiler()
            finally:
                self._stop_s = time.perf_counter() - began_s
                if not self._ended_s:
                    self._step_began_s += self._stop_s  # of a step in whose middle this is
                self._ended_as = before
                self._skip_interval = before != "active" or self._n_profiled < self.steps

    def _events_about(self) -> float:
        if self._deadline is None or not self._n_profiled:
            return 0.0  # unknown: what a first step leaves are tensors, too
        n_steps = self._n_profiled + (0 if self._late else self.warmup)
        return self._deadline.kept_bytes / _EVENT_BYTES * n_steps / self._n_profiled

    def _end_profiler(self) -> None:
        """Stop our profiler if it is still running; what torch holds otherwise is not ours."""
        if not self._must_end:
            return
        if torch_compat.profiler_runs_here():
            stop_quietly(self._profile)
            self._must_end = False
        else:
            self._must_end = False
            self._taken = True
            self._profile = None
            torch_compat.forget_running_profiler()

    # --- reading ----------------------------------------------------------------------------

    def _read(self) -> Recording:
        began_s = time.perf_counter()
        reading = Reading(self._stop_s)
        raw = raw_trace(self._profile) if self._raw is None else self._raw
        if self._ended_as == "active":
            # The mark that was open when the region ended is no step.
            unfinished = f'"{_STEP_MARK}{self._n_profiled}"'.encode()
            raw = raw.replace(unfinished, f'"{_UNFINISHED_MARK}"'.encode())
        trace = replace(load(raw, progress=reading.read), source=RECORDED_HERE)
        if self._profile is not None and self._options["record_shapes"]:
            with self._instrument.guard("reading the shapes of lists"):
                trace = with_lists(trace, self._profile)
        if self._profile is not None:
            torch_compat.forget_events(self._profile)
        self._profile = self._raw = None
        give_back()
        reading.done()
        read_s = time.perf_counter() - began_s
        self._ran_ahead = self._host_ran_ahead(trace)
        told = ([], []) if self._ran_ahead else (self._profiled_ms, self._unprofiled_ms)
        return Recording(
            trace=trace,
            n_steps_seen=self._n_steps,
            n_steps_profiled=self._n_profiled,
            cost=Cost(
                profiled_step_ms=_median(told[0]),
                unprofiled_step_ms=_median(told[1]),
                n_profiled=len(told[0]),
                n_unprofiled=len(told[1]),
                stop_s=self._stop_s,
                read_s=read_s,
                n_events=len(trace),
                slowdown_interval=ratio_interval(*told),
                stays_attached=trace.has_device and stays_attached(),
            ),
            lines=_in_trace_time(self.lines, trace, self._marks),
            worker_lines=self.worker_lines,
            process_lines=self.process_lines,
            facts=self._facts(),
            raw=raw,
            coverage=self._coverage(),
            warnings=(*trace.warnings, *self._doubts(trace)),
            elsewhere=self._elsewhere(),
            busy=self._busy,
            cut_short=self._cut_short,
            n_foreign_steps=self._n_foreign,
            has_threads=bool(self._started_threads),
            unprofiled_ms=tuple(self._unprofiled_ms),
        )

    def _elsewhere(self) -> Elsewhere | None:
        return elsewhere(
            self._step_times,
            self._began_s,
            self._ended_s,
            self._profiled_ms,
            self._samples,
            partial(lines_of, frameworks=self._frameworks),
            n_steps=self._n_steps,
            region_s=max(self._ended_s - self._began_s - self._stop_inside_s, 0.0),
            last_s=self._step_began_s,
            n_slowed=self._n_slowed,
            n_recorded=self._n_steps_until_stop,
        )

    def _doubts(self, trace: Trace) -> list[str]:
        doubts = [] if self.failure is None else [self.failure.sentence()]
        if self._cut_short:
            doubts.append(
                "this code started a torch profiler of its own, and torch runs one at a time: "
                "perfkit stopped recording there, after "
                f"{plural(self._n_steps_until_stop, 'step')}"
            )
        elif self._is_full and self._n_profiled < self.steps:
            doubts.append(
                f"recording ended early, after {plural(self._n_profiled, 'whole step')}: "
                "meanwhile this process grew by more than perfkit lets the events take (about "
                f"{fmt_count(_MOST_EVENTS)} of them); your code ran on unrecorded; "
                f"{self._what_fits()}"
            )
        elif self._n_steps and self._n_profiled < self.steps:
            doubts.append(self._why_so_few())
        if said := self._whose_step():
            doubts.append(said)
        if self._n_foreign:
            doubts.append(
                f"{plural(self._n_foreign, 'optimizer step')} ran in another thread, which is "
                "not recorded: profile in the thread that trains"
            )
        elif self._started_threads and not trace.is_a(Category.OP).any():
            doubts.append(
                f"this code started threads ({', '.join(self._started_threads)}), and perfkit "
                "records only the thread that called it: profile in the thread that does the work"
            )
        if self._ran_ahead:
            doubts.append(
                "the GPU was more than a step behind the host, on whose clock steps end: what "
                "profiling cost is unknown"
            )
        elif odd := self._is_odd_window():
            doubts.append(odd)
        return doubts

    def _what_fits(self) -> str:
        if self._n_profiled:
            return "record fewer steps (-n 1), or a shorter piece of the code"
        if not self.warmup or self._n_steps < self.warmup:
            # nothing has shown yet how much the code needs for itself
            return (
                "if it was your tensors that grew, run the code once before you profile it; if it "
                "was the events, profile a shorter piece"
            )
        return (
            "no whole step of it fits: make one shorter for the recording (a shorter sequence, "
            "fewer iterations)"
        )

    def _why_so_few(self) -> str:
        """That fewer steps were recorded than were asked for, and what ended the recording."""
        n, within = self._n_profiled, self._n_steps_until_stop + 1
        figures = "are of that part of it" if self._late else "include warm-up"
        if n or self._instrument.failure is not None:
            said = f"{n} of {self.steps} steps {'was' if n == 1 else 'were'} recorded"
            if self._was_too_long:
                return f"{said}: the {self._max_seconds:g} s to record in were over"
            return said if self._instrument.failure is not None else f"{said}: the code ended"
        if self._was_too_long:
            longest_s = (1 + _PATIENCE) * self._max_seconds
            return (
                f"step {within} took longer than the {longest_s:g} s that are recorded of one: "
                f"the figures {figures}"
            )
        if self._late:
            return f"the code ended within step {within}: the figures {figures}"
        return (
            f"the code ended after {plural(self._n_steps, 'step')}, and the warm-up takes "
            f"{self.warmup}: the figures {figures}"
        )

    def _whose_step(self) -> str:
        """That a step is of one optimizer, where another one steps more or less often."""
        first = self._first_id
        n = self._n_of.get(first, 0)
        others = {key: steps for key, steps in self._n_of.items() if key != first and steps > 1}
        if n < _MORE_OFTEN or not others or self._only_marked:
            return ""
        other = max(others, key=lambda key: max(others[key] / n, n / others[key]))
        n_other = others[other]
        began, ended = self._first_at[other]
        # steps of the first one between two of the other
        between = (ended - began) / (n_other - 1)
        mine, its = (
            f"{facts.name} ({plural(facts.n_tensors, 'tensor')})"
            for facts in (self._optimizers[first], self._optimizers[other])
        )
        step = f"a step here is one of {mine}"
        if between >= _MORE_OFTEN:
            return f"{step}, which makes about {fmt_count(round(between))} for each of {its}"
        if n_other >= _MORE_OFTEN * n:
            return f"{step}; {its} makes about {fmt_count(round(n_other / n))} in it"
        return ""

    def _host_ran_ahead(self, trace: Trace) -> bool:
        """Whether the device was still at work on more than a step when the last one had ended.

        Then the host only handed out work in the recorded steps, as long as there was room for it,
        and later ones take the device's time: nothing can be compared.
        """
        step_ms = _median(self._profiled_ms)
        if step_ms is None or not trace.has_device:
            return False
        last_mark = f"{_STEP_MARK}{self._n_profiled - 1}"
        marks = trace.is_a(Category.ANNOTATION) & trace.named(lambda name: name == last_mark)
        if not marks.any():
            return False
        work_ns = trace.end_ns[trace.is_a(*DEVICE_CATEGORIES)].max()
        return bool(work_ns - trace.end_ns[marks].max() > step_ms * 1e6)

    def _coverage(self) -> Coverage:
        region_s = max(self._ended_s - self._began_s - self._stop_inside_s, 0.0)
        if self._n_profiled:
            profiled_s = sum(self._profiled_ms) / 1e3
        elif self._ended_as == "paused":
            profiled_s = self._recorded_s
        else:
            began_s = max(self._began_s, self._profiler_began_s)  # late: not with the region
            ended_s = min(self._profiler_ended_s, self._ended_s)
            profiled_s = max(min(ended_s - began_s, region_s), 0.0)
        last = self._n_steps_until_stop
        first = last - self._n_profiled + 1 if self._n_profiled else 0
        return Coverage(self._n_steps, first, last if first else 0, profiled_s, region_s)

    def _is_odd_window(self) -> str | None:
        """Whether steps after the recorded ones differ by more than profiling can explain."""
        interval = ratio_interval(self._profiled_ms, self._unprofiled_ms)
        profiled, later = _median(self._profiled_ms), _median(self._unprofiled_ms)
        if interval is None or profiled is None or later is None:
            return None
        costly = profiled - later > _MOST_COST_MS
        if not (interval[1] < _FASTER or (interval[0] > _SLOWER and costly)):
            return None
        last = self._n_steps_until_stop
        later_from = max(self._n_steps // 2, last)
        return (
            f"steps {last - self._n_profiled + 1}–{last} took {fmt_ms(profiled)}, the later ones "
            f"{fmt_ms(later)}: the profiled ones are not typical; profile later ones with "
            f"-w {min(later_from, max(self._n_steps - self.steps, last))} (in Python: `warmup`)"
        )

    def _facts(self) -> Facts:
        import torch

        return Facts(
            optimizers=tuple(self._optimizers.values()),
            n_threads=torch.get_num_threads(),
            n_cores=usable_cpus(),
            gc_pauses_ms=() if self._gc is None else self._gc.pauses_ms,
            loading=None if self._looks is None else self._looks.result(),
            compiled=self._compiled,
            expandable_segments=(
                None if in_use().is_cpu else torch_compat.has_expandable_segments()
            ),
        )


def _in_trace_time(lines: LineSamples, trace: Trace, marks: list[tuple[float, str]]) -> LineSamples:
    """Samples by the trace's clock: both know when each mark was opened."""
    shifts = []
    for at_s, name in marks:
        rows = trace.is_a(Category.ANNOTATION) & trace.named(lambda n, name=name: n == name)
        if rows.sum() == 1:
            shifts.append(float(trace.start_ns[rows][0]) - at_s * 1e9)
    if not shifts:
        return replace(lines, taken=())
    shift = statistics.median(shifts)
    return replace(lines, taken=tuple((round(at + shift), index) for at, index in lines.taken))


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
