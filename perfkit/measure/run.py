"""A training loop watched from its loader: ``for batch in WatchedRun(loader)``.

The loop is the user's own. The run knows when each batch was requested and when it arrived, so it
splits each step into data wait and the rest, and tells its
:class:`~perfkit.measure.tracker.StepTracker`. An observer decides what to show, and where.
"""

from __future__ import annotations

import numbers
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfkit.base.arguments import check_whole, shown
from perfkit.base.compiling import leave_uncompiled
from perfkit.base.errors import UsageError
from perfkit.base.instrument import Instrument
from perfkit.base.machine.cpu_contention import ContentionMark, this_thread
from perfkit.base.printable import printable
from perfkit.base.uninterrupted import surely
from perfkit.base.words import fmt_count
from perfkit.measure.batch import SampleCounter
from perfkit.measure.memory_looks import Footprint
from perfkit.measure.tracker import Observer, StepTracker
from perfkit.measure.verdict import RunSummary

_Batch = TypeVar("_Batch")

DEFAULT_HZ = 1.0
MOST_HZ = 10.0
# One update in eleven days: anything slower is no update at all, and tiny rates overflow.
_LEAST_HZ = 1e-6
_LONGEST_NAME = 80
# What training loops ask a loader for; all else is at `.loader`: a misspelt name is an error.
_OF_THE_LOADER = ("dataset", "batch_size", "sampler", "batch_sampler", "num_workers")
# How a loop ends that asks for no further batch: by a break, a count, an exception in its body.
_LEFT = "left"


class WatchedRun(Generic[_Batch]):
    """An iterable around a loader that times the loop over it.

    It can be looped over again for more epochs; step numbers continue. If a second loop starts
    while the first is still running, the newer one is measured and the older one continues
    unmeasured.

    It keeps no reference to a batch, and the loader's iterator lives as long as in a bare loop.

    Args:
        total: steps per epoch; by default ``len(loader)`` if it has a length.
        read_memory: called only at updates.
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
        check_hz("hz", hz)
        #: the wrapped loader
        self.loader: Any = loader
        self._given_total = total
        self.name = printable(str(name or type(loader).__name__), _LONGEST_NAME)
        self._observer = observer
        self._now = now
        self.tracker = StepTracker(
            None if observer is None else observer.update,
            fetches=True,
            now=now,
            mark=mark,
            read_memory=read_memory,
            hz=hz,
        )
        self._count = SampleCounter()
        self._batch_size = 0
        self._ended_before = "not started"
        self._unfinished = 0
        self._instrument = Instrument("perfkit.watch")
        self._loop: object | None = None  # token of the loop being measured
        self._expected: int | None = None  # batches that this loop will get
        self._handed = 0
        self._working = False
        self._size: int | None = None
        self._asked_ns = self._came_ns = self._looked_ns = 0
        self._began_ns = self._looped_ns = 0
        self._problems: list[str] = []
        self._ended = "not started"
        self._summary: RunSummary | None = None

    def __repr__(self) -> str:
        return f"<perfkit.watch of {self.name}: {self.tracker.meter.n} steps, {self._ended}>"

    def __len__(self) -> int:
        return len(self.loader)

    dataset: Any
    batch_size: Any
    sampler: Any
    batch_sampler: Any
    num_workers: Any

    if not TYPE_CHECKING:  # type checkers find misspelt names

        def __getattr__(self, name: str) -> Any:
            if name in _OF_THE_LOADER:
                return getattr(self.loader, name)
            raise AttributeError(f"a watch has no {name!r}; what the loader has is at .loader")

    @property
    def total(self) -> int | None:
        """Steps per epoch, if known."""
        if self._given_total is not None:
            return self._given_total
        try:
            return len(self.loader)
        except Exception:  # no length, one that depends on the data, or an invalid one
            return None

    @property
    def running(self) -> bool:
        return self._loop is not None

    @property
    def epochs(self) -> int:
        """Loops over it so far."""
        return self.tracker.epochs

    @property
    def summary(self) -> RunSummary:
        """The run so far; complete once the loop has ended, however it ended."""
        self.settle()
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
        guard = self._instrument
        came, asked = guard.hook(self._came), guard.hook(self._asked)
        ended = _LEFT
        try:
            guard.hook(self._open)(loop, sys._getframe(1).f_code)
            source = iter(self.loader)
            # Emptied before the batch is handed out: this frame must not keep it alive while the
            # loop uses it or the next one is fetched.
            box: list[_Batch] = []
            while True:
                try:
                    box.append(next(source))
                except StopIteration:
                    ended = "finished"
                    return
                if self._loop is loop:
                    came(box[0])
                yield box.pop()
                if self._loop is loop:
                    asked()
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
        with self._instrument.guard("closing"):
            self._close(ended)
        self._loop = None
        self.tracker.unhook()  # also where closing failed before it came to this
        if not self._instrument.is_on:
            self._summary = None  # it is to say so

    def _open(self, loop: object, consumer: Any) -> None:
        if self._loop is not None:
            self._close("overtaken by a newer loop over the same watch")
        self._loop = loop
        self._expected = self.total
        self._handed = 0
        self._working = False
        self._summary = None
        self._ended_before, self._ended = self._ended, "running"
        tracker = self.tracker
        tracker.epoch_begins(consumer, self._expected)
        if self._observer is not None:
            tracker.tell(self._observer.begin, self)
        self._began_ns = self._now()
        tracker.start()
        self._asked_ns = self._now()
        tracker.phases.fetch_begins(self._asked_ns)

    def _came(self, batch: Any) -> None:
        """A batch has arrived and is about to be handed out."""
        now = self._now
        self._came_ns = came = now()
        tracker = self.tracker
        tracker.phases.fetch_ends(None, came)
        self._size, self._looked_ns = None, 0
        if tracker.samples is not None:  # after one batch without a size the sum is unknown
            self._size = size = self._count(batch)
            if size is not None and size > self._batch_size:
                self._batch_size = size
            looked = now() - came
            if looked > 0:
                self._looked_ns = looked
                tracker.update_ns += looked
        self._handed += 1
        self._working = True

    def _asked(self) -> None:
        """The loop asks for the next batch: a step is over."""
        self._working = False
        waited = self._came_ns - self._asked_ns
        # the look at the batch is no part of the step
        began = self._asked_ns + self._looked_ns
        fetched = waited, self._size
        self._asked_ns = asked = self.tracker.step_ended(began, self._now(), fetched)
        self.tracker.phases.fetch_begins(asked)

    @property
    def _all_handed_out(self) -> bool:
        """Whether the loop has had every batch. Trainers that count batches never ask again."""
        return self._expected is not None and self._handed >= self._expected > 0

    def settle(self) -> None:
        """End a loop that has had every batch and never asked for another.

        Frameworks call ``next`` exactly ``len`` times and keep the iterator. The end of the last
        step is unknown, so it is not timed.
        """
        if self._loop is not None and self._all_handed_out and self._working:
            with self._instrument.guard("closing"):
                self._close("finished")

    def _close(self, ended: str) -> None:
        self._loop = None
        took_one = self._handed == 1 and self._working
        if took_one and not self._all_handed_out:  # next(iter(watched)): a look, and no epoch
            self.tracker.unhook()
            self.tracker.epochs -= 1
            self._ended = self._ended_before
        else:
            of = f" of {fmt_count(self._expected)}" if self._expected else ""
            epoch = f" of epoch {self.epochs}" if self.epochs > 1 else ""
            left = f"ended after {fmt_count(self._handed)}{of} batches{epoch}"
            self._ended = left if ended == _LEFT else ended
            until_ns = self._now()
            is_unseen = self._working and self._all_handed_out
            if is_unseen:
                self._ended = "finished"
                until_ns = self._came_ns  # later time may not be the loop's
            self._unfinished += self._working
            self._looped_ns += max(until_ns - self._began_ns, 0)
            self.tracker.stop(until_ns if is_unseen else None)
        self._working = False
        summary = self._summary = self._summarise()
        if self._observer is not None:
            self.tracker.tell(self._observer.end, summary)
            if self.tracker.failures:
                self._summary = None  # it is to say so

    def _summarise(self) -> RunSummary:
        tracker = self.tracker
        looped_ns = self._looped_ns
        if self._loop is not None:
            looped_ns += max(self._now() - self._began_ns, 0)
        failed = self._instrument.failure
        return tracker.summary(
            self.name,
            self._ended,
            looped_ns / 1e9,
            n_epochs=tracker.epochs,
            n_unfinished=self._unfinished,
            batch_size=self._batch_size if tracker.samples else None,
            one_shot=hasattr(type(self.loader), "__next__"),
            problems=(*self._problems, *([failed.sentence()] if failed else ())),
        )


def check_hz(what: str, hz: object) -> None:
    """Refuse a rate that is not a number, too small to matter, or above 10 per second."""
    real = isinstance(hz, numbers.Real) and not isinstance(hz, bool)
    if not real or not _LEAST_HZ <= hz <= MOST_HZ:  # type: ignore[operator]
        raise UsageError(f"{what} is {shown(hz)}; give a number above 0 and up to {MOST_HZ:g}")


def _check_iterable(loader: Any) -> None:
    kind = type(loader)
    has_items = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    # a number of torch's or numpy's has no dimension
    if has_items and getattr(loader, "ndim", None) != 0:
        return
    name = str(getattr(loader, "__name__", None) or repr(loader)[:60])
    hint = "pass a DataLoader, a list, a generator …"
    if isinstance(loader, type):
        hint = f"that is a class, pass an instance: {loader.__name__}(…)"
    elif callable(loader):
        hint = f"if that function makes batches, call it: watch({name}())"
    raise UsageError(f"watch() cannot loop over {name} ({kind.__name__}): {hint}")


leave_uncompiled(__name__)  # its loops run in the program's functions
