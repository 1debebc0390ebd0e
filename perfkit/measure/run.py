"""A training loop watched from its loader: ``for batch in WatchedRun(loader)``.

The loop is the user's own. The run knows when each batch was requested and when it arrived, so it
splits each step into data wait and the rest without a hook or a thread. An observer decides what to
show, and where.
"""

from __future__ import annotations

import numbers
import operator
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Generic, Protocol, TypeVar

from perfkit.base.arguments import check_whole
from perfkit.base.errors import UsageError
from perfkit.base.instrument import Instrument
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention, this_thread
from perfkit.base.machine.dataloader_stats import DataLoaderSampler
from perfkit.base.printable import printable
from perfkit.base.uncompiled import leave_uncompiled
from perfkit.base.uninterrupted import surely
from perfkit.base.words import fmt_count
from perfkit.measure.batch import SampleCounter, n_bytes
from perfkit.measure.footprint import Footprint, MemoryReader
from perfkit.measure.groups import NOTHING_NS, group_size, may_be_groups
from perfkit.measure.lookout import Lookout
from perfkit.measure.meter import StepMeter
from perfkit.measure.phases import PHASES, Phases
from perfkit.measure.points import MOST_POINTS, points_since
from perfkit.measure.step_facts import StepFacts
from perfkit.measure.verdict import RunFacts, RunSummary, summarize_run

__all__ = ["Named", "Observer", "RunSummary", "Update", "WatchedRun"]

_Batch = TypeVar("_Batch")

DEFAULT_HZ = 1.0
MOST_HZ = 10.0
# The first updates come faster, so that the plot moves at once and a short run has enough memory
# readings for a trend.
_EARLY_UPDATES = 10
_EARLY_PERIOD_NS = 100_000_000
# The next update waits this many times as long as the quicker of the last two took. Where updates
# take about equally long, the early ones cost at most 0.25 % of the run and the others 0.02 %; in a
# kernel its own threads, which make and send the message, take longer than that
# (tests/bench/watch_overhead.py). One that is much slower than its neighbours costs more, and holds
# up none: the first takes tens of milliseconds (imports, code that runs for the first time), which
# says nothing about the next.
_REST_AFTER_EARLY_UPDATE, _REST_AFTER_UPDATE = 400, 4500
# Memory readings kept; when full, every second one is dropped.
_MOST_READINGS = 2048
# What else the machine does is asked from here on; a mark costs some 10 ms, which are in no step.
# Of many short loops it is asked in some: in as many as make up this share of their time.
_MARK_FROM_NS = 100_000_000
_COVERED = 0.25
# A shorter look at the machine says nothing (see perfkit.base.machine.cpu_contention).
_SHORTEST_NS = 200_000_000
# A loop this long is always asked, and is long enough to say why it waits.
_LONG_NS = 2_000_000_000
# One update in eleven days: anything slower is no update at all, and tiny rates overflow.
_LEAST_HZ = 1e-6
_LONGEST_NAME = 80
# How a loop ends that asks for no further batch: a break, a count of steps that is reached, an
# exception in its body. The iterator cannot tell them apart.
_LEFT = "left"


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What has happened since the last update.

    Attributes:
        numbers: step numbers from 1, counted over all epochs; the first step of each epoch is left
            out (it starts the loader and would dwarf all others).
        step_ms, wait_ms: their durations and data waits; means where steps were merged.
        memory: the current reading.
        epoch: its number, from 1.
        done: steps of this epoch that are over; of several batches where these are fetched
            together.
        total: steps per epoch, if known.
        elapsed_s: seconds since this epoch began.
        steps_per_s, samples_per_s: since the last update; None if unknown.
        wait_share: data wait as a share of the time since the last update; None without a step.
    """

    numbers: list[float]
    step_ms: list[float]
    wait_ms: list[float]
    memory: Footprint
    epoch: int
    done: int
    total: int | None
    elapsed_s: float
    steps_per_s: float | None
    samples_per_s: float | None
    wait_share: float | None


class Named(Protocol):
    """What an observer wants to know of a run."""

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def total(self) -> int | None:
        """Steps per epoch, if known."""

    @property
    def epochs(self) -> int:
        """How many have begun."""


class Observer(Protocol):
    """Shows a run. Its failures never reach the user's loop; they become a warning."""

    def begin(self, run: Named) -> None:
        """An epoch begins."""

    def update(self, update: Update) -> None:
        """Called once a second or so, between two steps."""

    def end(self, summary: RunSummary) -> None:
        """An epoch is over, however it ended."""


class WatchedRun(Generic[_Batch]):
    """An iterable around a loader that times the loop over it.

    It can be looped over again for more epochs; step numbers continue. If a second loop starts
    while the first is still running, the newer one is measured and the older one continues
    unmeasured.

    It keeps no reference to a batch, and the loader's iterator lives as long as in a bare loop.

    Args:
        loader: anything that can be looped over.
        total: steps per epoch; by default ``len(loader)`` if it has a length.
        name: the run's name.
        observer: shows the run.
        hz: updates per second.
        now: the clock, in nanoseconds.
        read_memory: called only at updates; by default a
            :class:`~perfkit.measure.footprint.MemoryReader`.
        mark: starts to observe what else the machine does.

    Raises:
        UsageError: ``loader`` cannot be looped over, or a number is invalid.
    """

    def __init__(
        self,
        loader: Iterable[_Batch],
        *,
        total: int | None = None,
        name: str | None = None,
        observer: Observer | None = None,
        hz: float = DEFAULT_HZ,
        now: Callable[[], int] = time.perf_counter_ns,
        read_memory: Callable[[], Footprint] | None = None,
        mark: Callable[[], ContentionMark] = this_thread,
    ) -> None:
        _check_iterable(loader)
        if total is not None:
            check_whole("total", total, 0)
        check_hz("updates per second", hz)
        self._loader: Any = loader
        self._given_total = total
        self.name = printable(str(name or type(loader).__name__), _LONGEST_NAME)
        self._observer = observer
        self._now = now
        self._read_memory = read_memory or MemoryReader()
        self._period_ns = int(1e9 / hz)
        self._meter = StepMeter()
        self._count = SampleCounter()
        self._samples = 0
        self._counted = True  # every batch so far had a size
        self._batch_size = 0
        self._starts: list[tuple[int, int, int]] = []  # (step number, its ns, its wait ns)
        self._memory: list[tuple[int, Footprint]] = []
        self._epochs = 0
        self._peeks = 0  # loops that took one batch and asked for no second one
        self._ended_before = "not started"
        self._unfinished = 0
        self._instrument = Instrument("perfkit.watch")
        self._lookout = Lookout(now)
        self._phases = Phases(now)
        self._facts = StepFacts(now)
        self._phase_ns = [0] * len(PHASES)
        self._make_mark = mark
        self._mark: ContentionMark | None = None
        self._marked_ns = 0
        self._judged_ns = 0  # length of the loops in which it was asked
        self._busy: CpuContention | None = None
        self._looks: DataLoaderSampler | None = None
        self._batch_bytes: int | None = None
        self._has_workers = False
        self._loop: object | None = None  # token of the loop being measured
        self._consumer: CodeType | None = None
        self._expected: int | None = None  # batches that this loop will get
        self._handed = 0
        self._working = False
        self._size: int | None = None
        self._asked_ns = self._came_ns = 0
        self._began_ns = 0
        self._looped_ns = 0
        self._epoch_from = 0
        self._due_ns = 0
        self._updates = 0
        self._update_ns = 0
        self._last_update_ns = 0
        self._updates_failed = False
        self._grouped = (0, 1)  # at so many steps: batches a step
        self._brief = (0, 0)  # so many of the first steps may be nothing but a wait
        self._seen = (0, 0, 0, 0)  # steps, samples, total ns, wait ns at the last update
        self._problems: list[str] = []
        self._ended = "not started"
        self._summary: RunSummary | None = None

    def __repr__(self) -> str:
        return f"<perfkit.watch of {self.name}: {self._meter.n} steps, {self._ended}>"

    def __len__(self) -> int:
        return len(self._loader)

    # The few attributes that training loops use. Everything else is at `.loader`: a forwarding
    # __getattr__ would hide a misspelt name.
    @property
    def loader(self) -> Any:
        """The wrapped loader."""
        return self._loader

    @property
    def dataset(self) -> Any:
        """The loader's data set."""
        return self._loader.dataset

    @property
    def batch_size(self) -> Any:
        """The loader's batch size."""
        return self._loader.batch_size

    @property
    def sampler(self) -> Any:
        """The loader's sampler (``loader.sampler.set_epoch(epoch)``)."""
        return self._loader.sampler

    @property
    def batch_sampler(self) -> Any:
        """The loader's batch sampler."""
        return self._loader.batch_sampler

    @property
    def num_workers(self) -> Any:
        """The loader's number of worker processes."""
        return self._loader.num_workers

    @property
    def total(self) -> int | None:
        """Steps per epoch, if known."""
        if self._given_total is not None:
            return self._given_total
        try:
            return len(self._loader)
        except Exception:  # no length, one that depends on the data, or an invalid one
            return None

    @property
    def running(self) -> bool:
        """Whether a loop over it is running."""
        return self._loop is not None

    @property
    def epochs(self) -> int:
        """Loops over it so far."""
        return self._epochs

    @property
    def summary(self) -> RunSummary:
        """The run so far; complete once the loop has ended, however it ended."""
        if self._summary is not None:
            return self._summary
        summary = self._summarise()
        if self._loop is None:
            self._summary = summary
        return summary

    def note_problem(self, problem: str) -> None:
        """Add a problem with showing this run to the summary's warnings."""
        self._problems.append(problem)

    def __iter__(self) -> Iterator[_Batch]:
        loop = object()
        # Only the loader's own exceptions reach the loop: a failure in here switches itself off.
        # What runs in each step is caught here, where that costs nothing.
        guard = self._instrument
        ended = _LEFT
        try:
            guard.hook(self._open)(loop)
            self._consumer = sys._getframe(1).f_code
            source = iter(self._loader)
            # Emptied before the batch is handed out: this frame must not keep it alive while the
            # loop uses it or the next one is fetched.
            box: list[_Batch] = []
            while True:
                try:
                    box.append(next(source))
                except StopIteration:
                    ended = "finished"
                    return
                if self._loop is loop and guard.failure is None:
                    try:
                        self._came(box[0])
                    except Exception as error:
                        guard.fail(error, "the look at a batch")
                yield box.pop()
                if self._loop is loop and guard.failure is None:
                    try:
                        self._asked()
                    except Exception as error:
                        guard.fail(error, "the end of a step")
        except Exception as error:
            ended = f"the loader raised {type(error).__name__}"
            raise
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            try:
                surely(lambda: self._loop_ended(loop, ended))
            except KeyboardInterrupt:  # it may have come before that began
                surely(lambda: self._loop_ended(loop, ended))
                raise

    def _loop_ended(self, loop: object, ended: str) -> None:
        if self._loop is not loop:
            return
        guard = self._instrument
        with guard.guard("closing"):
            self._close(ended)
        self._loop = None
        for stop in (self._lookout.stop, self._facts.stop, self._phases.stop):
            with guard.guard("closing"):  # also where closing failed before it came to this
                stop()
        if not guard.is_on:
            self._summary = None  # it is to say so

    def _open(self, loop: object) -> None:
        if self._loop is not None:
            self._close("overtaken by a newer loop over the same watch")
        self._loop = loop
        self._epochs += 1
        self._epoch_from = self._meter.n
        self._expected = self.total
        self._has_workers = _has_workers(self._loader)
        self._handed = 0
        self._working = False
        self._size = None
        self._summary = None
        self._ended_before, self._ended = self._ended, "running"
        self._tell(lambda observer: observer.begin(self))
        self._began_ns = self._now()
        self._due_ns = self._began_ns + min(_EARLY_PERIOD_NS, self._period_ns)
        if "torch" in sys.modules:
            self._phases.start()
        self._facts.start()
        self._asked_ns = self._now()
        self._meter.begin(self._asked_ns)
        self._phases.fetch_begins(self._asked_ns)

    def _came(self, batch: Any) -> None:
        """A batch has arrived and is about to be handed out."""
        now = self._now
        self._came_ns = came = now()
        self._phases.fetch_ends(came)
        self._meter.wait(came - self._asked_ns)
        self._size = None
        if self._counted:  # after one batch without a size the sum is unknown
            self._size = self._count(batch)
            if self._size is not None and self._has_workers and self._batch_bytes is None:
                self._batch_bytes = n_bytes(batch) or 0
            looked = now() - came
            self._meter.leave_out(looked)
            self._update_ns += looked
        self._handed += 1
        self._working = True

    def _asked(self) -> None:
        """The loop asks for the next batch: a step is over."""
        self._working = False
        meter = self._meter
        self._asked_ns = asked = self._now()
        step_ns, wait_ns = meter.end(asked)
        taken = self._phases.take(asked)
        self._phase_ns = list(map(operator.add, self._phase_ns, taken))
        self._facts.step(taken)
        size = self._size
        if size is None:
            self._counted = False
        else:
            self._samples += size
            if size > self._batch_size:
                self._batch_size = size
        if self._handed == 1:
            self._starts.append((meter.n - 1, step_ns, wait_ns))
        if asked >= self._due_ns:
            self._update(asked)
            # the update's time belongs to no step
            self._asked_ns = asked = self._now()
            meter.begin(asked)
            self._phases.skip(asked)
        self._phases.fetch_begins(asked)
        self._lookout.begins(meter.n, asked)

    @property
    def _all_handed_out(self) -> bool:
        """Whether the loop has had every batch. Trainers that count batches never ask again."""
        return self._expected is not None and self._handed >= self._expected > 0

    @property
    def _is_a_peek(self) -> bool:
        """Whether this loop took one batch and asked for no second: ``next(iter(watched))``."""
        took_one = self._handed == 1 and self._working and self._meter.n == self._epoch_from
        return took_one and not self._all_handed_out

    def _forget_peek(self) -> None:
        """A look at one batch is no epoch: it has no step that could be timed."""
        self._working = False
        self._epochs -= 1
        self._peeks += 1
        self._ended = self._ended_before
        summary = self._summary = self._summarise()
        self._tell(lambda observer: observer.end(summary))

    def _left_words(self) -> str:
        of = f" of {fmt_count(self._expected)}" if self._expected else ""
        epoch = f" of epoch {self._epochs}" if self._epochs > 1 else ""
        return f"ended after {fmt_count(self._handed)}{of} batches{epoch}"

    def settle(self) -> None:
        """End a loop that has had every batch and never asked for another.

        Frameworks call ``next`` exactly ``len`` times and keep the iterator. The end of the last
        step is unknown, so it is not timed.
        """
        if self._loop is not None and self._all_handed_out:
            with self._instrument.guard("closing"):
                self._close("finished")

    def _close(self, ended: str) -> None:
        self._loop = None
        self._lookout.stop()
        self._facts.stop()
        if self._phases.is_on:
            self._phases.stop()
            self._phase_ns = list(map(operator.add, self._phase_ns, self._phases.take()))
        if self._is_a_peek:
            self._forget_peek()
            return
        if self._working:
            self._unfinished += 1
        if ended == _LEFT:
            ended = self._left_words()
        now = self._now()
        if self._working and self._all_handed_out:
            ended = "finished"
            now = self._came_ns  # later time may not be the loop's
        elif self._looks is not None:
            self._looks.look(now=True)
        self._working = False
        mark, self._mark = self._mark, None
        if mark is not None:
            self._judged_ns += max(now - self._began_ns, 0)
            if now - self._marked_ns >= _SHORTEST_NS:
                busy = mark.until_now()
                self._busy = busy if self._busy is None else self._busy.and_then(busy)
        self._looped_ns += max(now - self._began_ns, 0)
        self._ended = ended
        if self._meter.n > self._seen[0]:
            self._update(self._now())
        summary = self._summary = self._summarise()
        self._tell(lambda observer: observer.end(summary))

    def _update(self, now_ns: int) -> None:
        """Read the memory and notify the observer; our failures never end the user's loop."""
        if self._updates_failed:
            return
        try:
            self._read_and_tell(now_ns)
        except Exception as error:
            self._updates_failed = True
            self._problems.append(
                f"live updates failed and were left out: {type(error).__name__}: {error}"
            )

    def _read_and_tell(self, now_ns: int) -> None:
        steps, samples, total_ns, wait_ns = self._seen
        meter = self._meter
        memory = self._read_memory()
        self._note(meter.n, memory)
        spent_ns = meter.total_ns - total_ns
        per_s = 1e9 / spent_ns if spent_ns > 0 else None
        self._seen = (meter.n, self._samples, meter.total_ns, meter.wait_total_ns)
        if self._observer is not None:
            group = self._group()
            numbers, step_ms, wait_ms = points_since(meter, steps, self._starts, group)
            total = self._expected
            update = Update(
                numbers=numbers,
                step_ms=step_ms,
                wait_ms=wait_ms,
                memory=memory,
                epoch=self._epochs,
                done=(meter.n - self._epoch_from) // group,
                total=None if total is None else -(-total // group),
                elapsed_s=max(now_ns - self._began_ns, 0) / 1e9,
                steps_per_s=(meter.n - steps) / group * per_s if per_s else None,
                samples_per_s=(
                    (self._samples - samples) * per_s
                    if per_s and self._counted and self._samples > samples
                    else None
                ),
                wait_share=(meter.wait_total_ns - wait_ns) / spent_ns if spent_ns > 0 else None,
            )
            self._tell(lambda observer: observer.update(update))
        self._updates += 1
        after = self._now()
        took = max(after - now_ns, 0)
        self._update_ns += took
        period, rest = self._period_ns, _REST_AFTER_UPDATE
        if self._updates <= _EARLY_UPDATES:
            period, rest = min(period, _EARLY_PERIOD_NS), _REST_AFTER_EARLY_UPDATE
        self._due_ns = after + max(period, rest * min(took, self._last_update_ns))
        self._last_update_ns = took
        self._look_out(after)
        self._update_ns += max(self._now() - after, 0)

    def _look_out(self, now_ns: int) -> None:
        """From the first update on, watch for overdue steps and for a busy machine."""
        if self._loop is None:
            return
        self._lookout.learns(self._meter)
        if not self._lookout.watches:
            self._lookout.start(self._consumer)
        looped_ns = now_ns - self._began_ns
        if self._mark is None:
            is_due = self._judged_ns <= _COVERED * (self._looped_ns + looped_ns)
            if looped_ns >= (_MARK_FROM_NS if is_due else _LONG_NS):
                self._mark = self._make_mark()
                self._marked_ns = now_ns
        if looped_ns >= _LONG_NS:
            if self._looks is None:
                self._looks = DataLoaderSampler()
            self._looks.look()

    def _group(self) -> int:
        """How many batches make a step; see :mod:`perfkit.measure.groups`.

        Asked again when a fourth more steps are over: it looks at all of them, which takes half
        an update's time, so only where the new steps of each update leave it possible.
        """
        meter = self._meter
        n_brief, n_looked_at = self._brief
        new = meter.n - n_looked_at
        n_brief += new if new > MOST_POINTS else meter.n_brief_since(n_looked_at, NOTHING_NS)
        self._brief = n_brief, meter.n
        asked_at, group = self._grouped
        if 4 * meter.n >= 5 * asked_at:
            may_be = meter.stride == 1 and may_be_groups(n_brief, meter.n)
            group = group_size(meter.step_ms, meter.wait_ms) if may_be else 1
            self._grouped = meter.n, group
        return group

    def _note(self, step: int, memory: Footprint) -> None:
        if self._memory and self._memory[-1][1].kind != memory.kind:
            self._memory.clear()  # CUDA was initialised meanwhile: this is another quantity
        self._memory.append((step, memory))
        if len(self._memory) >= _MOST_READINGS:
            del self._memory[1::2]

    def _tell(self, say: Callable[[Observer], None]) -> None:
        """Call the observer; if it fails, it is dropped and the loop continues."""
        if self._observer is None:
            return
        try:
            say(self._observer)
        except Exception as error:
            self._observer = None
            self._problems.append(
                f"the live display failed and was left out: {type(error).__name__}: {error}"
            )
            self._summary = None  # it is to say so

    @property
    def _instruments(self) -> tuple[Instrument, ...]:
        looks = () if self._looks is None else (self._looks.instrument,)
        return (self._instrument, self._lookout.instrument, *looks)

    def _summarise(self) -> RunSummary:
        meter = self._meter
        looped_ns = self._looped_ns
        if self._loop is not None:
            looped_ns += max(self._now() - self._began_ns, 0)
        # a trainer that counts batches never asks for one more, so its loop ends unseen
        over = self._loop is not None and self._working and self._all_handed_out and meter.n
        ended = "finished" if over else self._ended
        return summarize_run(
            RunFacts(
                name=self.name,
                ended=ended,
                n_batches=meter.n,
                n_epochs=self._epochs,
                n_unfinished=self._unfinished + bool(over),
                numbers=meter.numbers,
                step_ms=meter.step_ms,
                wait_ms=meter.wait_ms,
                total_ms=meter.total_ns / 1e6,
                starts=tuple((n, step / 1e6, wait / 1e6) for n, step, wait in self._starts),
                samples=self._samples if self._counted and self._samples else None,
                batch_size=self._batch_size if self._counted and self._samples else None,
                memory=tuple(self._memory),
                wall_s=looped_ns / 1e9,
                update_s=self._update_ns / 1e9,
                one_shot=_is_iterator(self._loader),
                n_peeks=self._peeks,
                problems=(
                    *self._problems,
                    *_failures(*self._instruments, self._phases, self._facts),
                    *filter(None, [self._phases.doubt]),
                ),
                busy=self._busy,
                loading=None if self._looks is None else self._looks.result(),
                batch_bytes=self._batch_bytes or None,
                during=self._lookout.during,
                phase_ns=self._phases.told(self._phase_ns),
                columns=None if self._phases.doubt else self._facts.columns(),
            )
        )


def check_hz(what: str, hz: object) -> None:
    """Refuse a rate that is not a number, too small to matter, or above 10 per second."""
    real = isinstance(hz, numbers.Real) and not isinstance(hz, bool)
    if not real or not _LEAST_HZ <= hz <= MOST_HZ:  # type: ignore[operator]
        raise UsageError(
            f"{what} must be a number above 0 and up to {MOST_HZ:g}, got "
            f"{printable(reprlib.repr(hz))}"
        )


def _check_iterable(loader: Any) -> None:
    kind = type(loader)
    has_items = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    # a number of torch's or numpy's has no dimension
    if has_items and getattr(loader, "ndim", None) != 0:
        return
    hint = "pass a DataLoader, a list, a generator …"
    if isinstance(loader, type):
        hint = f"that is a class, pass an instance: {loader.__name__}(…)"
    elif callable(loader):
        hint = "if that function makes batches, call it: watch(" + _name_of(loader) + "())"
    raise UsageError(f"watch() cannot loop over {_name_of(loader)} ({kind.__name__}): {hint}")


def _failures(*instruments: Instrument | Phases | StepFacts) -> list[str]:
    return [one.failure.sentence() for one in instruments if one.failure is not None]


def _name_of(loader: Any) -> str:
    return str(getattr(loader, "__name__", None) or repr(loader)[:60])


def _has_workers(loader: Any) -> bool:
    try:
        return bool(loader.num_workers)
    except Exception:  # most things that can be looped over have none
        return False


def _is_iterator(loader: Any) -> bool:
    return hasattr(type(loader), "__next__")


leave_uncompiled(__name__)  # its loops run in the program's functions
