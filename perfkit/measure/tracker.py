"""The steps of a run: told when each ends, it adds what they were made of, and what bounds them.

One engine for every watched run. ``perfkit.watch`` is an iterator over a loader that tells it of
each step (:mod:`perfkit.measure.run`); a trainer's callback and ``perfkit run`` tell it when an
optimizer has stepped.
"""

from __future__ import annotations

import operator
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Protocol

from perfkit.base import torch_compat
from perfkit.base.collector import CollectorTime
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention, this_thread
from perfkit.base.machine.dataloader_stats import DataLoaderSampler
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.measure.batch import Batches
from perfkit.measure.memory_looks import Footprint, footprint
from perfkit.measure.meter import StepMeter
from perfkit.measure.phases import PHASES, Phases
from perfkit.measure.slow_step_sampler import SlowStepSampler
from perfkit.measure.verdict import RunFacts, RunSummary, summarize_run

# Memory readings kept; when full, every second one is dropped.
_MOST_READINGS = 2048
# A mark of what else the machine does costs some 10 ms, which are in no step: shorter loops have
# none. A shorter look says nothing (see perfkit.base.machine.cpu_contention).
_MARK_FROM_NS, _SHORTEST_NS = 500_000_000, 200_000_000
# A loop this long is long enough to say why it waits.
_LONG_NS = 2_000_000_000
# Of a watched loader the first updates come faster, so that the plot moves at once and a short run
# has enough memory readings for a trend.
_EARLY_UPDATES = 10
_EARLY_PERIOD_NS = 100_000_000
# The next update waits this many times as long as the quicker of the last two took: the early ones
# cost at most 0.25 % of the run, others 0.02 % (tests/bench/watch_overhead.py). A slow one holds up
# none: the first takes tens of milliseconds (imports), which says nothing about the next.
_REST_AFTER_EARLY_UPDATE, _REST_AFTER_UPDATE = 400, 4500
_DATA, _EVALUATION, _CHECKPOINT = map(PHASES.index, ("data_wait", "evaluation", "checkpoint"))
_NO_PHASES = (0,) * len(PHASES)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What has happened since the last update.

    Attributes:
        numbers: step numbers from 1, counted over all epochs; the first step of each epoch is left
            out (it starts the loader and would dwarf all others).
        step_ms, wait_ms: their durations and data waits; means where steps were merged.
        done, elapsed_s: steps of this epoch that are over, and seconds since it began.
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
    """What an observer wants to know of a run; ``total`` is its steps per epoch, if known."""

    @property
    def name(self) -> str: ...
    @property
    def total(self) -> int | None: ...
    @property
    def epochs(self) -> int: ...


class Observer(Protocol):
    """Shows a run: each epoch as it begins and ends, and an update once a second or so.

    Its failures never reach the user's loop; they become a warning.
    """

    def begin(self, run: Named) -> None: ...
    def update(self, update: Update) -> None: ...
    def end(self, summary: RunSummary) -> None: ...


class StepTracker:
    """Steps, data wait, phases, memory and slow steps of a run, in the thread that starts it.

    It may be started and stopped again and again, for each epoch. Nothing of it raises into the
    run, except :meth:`step_ended`: whoever calls that guards it.

    Args:
        on_update: called between two steps and at the end; if it raises, it is called no more, and
            :attr:`failures` says so.
        fetches: the caller tells of each batch and epoch; else DataLoaders are listened to.
        steps_only: evaluation and checkpoints are no part of a step; the phases have them.
        is_recorded: a recorder samples the lines of slow steps, and looks at loaders' workers.
        hz: updates a second, rarer where they take long.

    Attributes:
        samples: of all batches that the steps used; None where one had no size.
        samples_at: the same after ``n_left_out`` steps, which are in no rate.
        memory: readings, each with the number of steps before it.
        phase_ns: nanoseconds of each of :data:`~perfkit.measure.phases.PHASES`, of the whole run.
        after_ns: the part of these that came after the last step.
        update_ns: what the updates took; part of no step.
        busy: what else the machine did, as far as it was looked at; None where it was not.
    """

    def __init__(
        self,
        on_update: Callable[[Update], None] | None = None,
        *,
        fetches: bool = False,
        steps_only: bool = False,
        is_recorded: bool = False,
        n_left_out: int = 0,
        now: Callable[[], int] = time.perf_counter_ns,
        mark: Callable[[], ContentionMark] = this_thread,
        read_memory: Callable[[], Footprint] | None = None,
        hz: float = 2.0,
    ) -> None:
        self.now = now
        self._display = Instrument("the live display")
        self._on_update = None if on_update is None else self._display.hook(on_update)
        self._updates = Instrument("the live updates")
        self._update = self._updates.hook(self._read_and_tell)
        self._machine = Instrument("the look at the machine")
        self._look_at_machine = self._machine.hook(self._mark_and_look)
        self._steps_only, self._is_recorded = steps_only, is_recorded
        self.meter = StepMeter()
        self.phases = Phases(now)
        self.phases.batches = self._batches = None if fetches else Batches()
        self.sampler = SlowStepSampler(now)
        self._collector = CollectorTime(now)
        self.samples: int | None = 0
        self.samples_at: int | None = None
        self.n_left_out = n_left_out
        self._batch_samples: int | None = None
        self.uses_loader = fetches
        self.memory: list[tuple[int, Footprint]] = []
        self._read_memory = read_memory or footprint
        self.phase_ns = list(_NO_PHASES)
        self.after_ns = list(_NO_PHASES)
        self.epochs = 0
        self.starts: list[tuple[int, int, int]] = []  # first step of each epoch, its ns, its wait
        self.update_ns = 0
        self._period_ns = self._early_ns = int(1e9 / hz)
        if fetches:  # others promise a log how often it is called at most
            self._early_ns = min(_EARLY_PERIOD_NS, self._period_ns)
        self._n_updates = self._took_ns = self._due_ns = 0
        self._seen = (0, 0, 0, 0)  # steps, samples, total ns, wait ns at the last update
        self._epoch: weakref.ref[Any] | None = None  # the iterator that the steps' batches are from
        self._epoch_from = 0
        self._epoch_began_ns = 0
        self._expected: int | None = None
        self._loop: CodeType | None = None
        self._is_on = False
        self._began_ns = 0
        self._make_mark = mark
        self._mark: ContentionMark | None = None
        self._marked_ns = 0
        self.busy: CpuContention | None = None
        self.looks: DataLoaderSampler | None = None

    @property
    def failures(self) -> tuple[Failure, ...]:
        mine: list[Any] = [self._display, self._updates, self._machine, self.phases]
        mine += [self._collector.instrument, self.sampler.instrument]
        mine += [one.instrument for one in (self._batches, self.looks) if one]
        return tuple(i.failure for i in mine if i.failure is not None)

    def start(self) -> None:
        """Begin; torch is imported, if ever."""
        self._began_ns = self.now()
        self._epoch_began_ns = self._began_ns
        self._due_ns = 0 if self._batches else self._began_ns + self._early_ns
        self._is_on = True
        try:
            with Uninterrupted():
                if "torch" in sys.modules:
                    self.phases.start()
                self._collector.start()
        except BaseException:  # Ctrl-C meanwhile
            self.forget()
            raise

    def tell(self, show: Callable[..., object], what: object) -> None:
        """Call what shows the run; where that fails, it is called no more, and the run goes on."""
        self._display.hook(show)(what)

    def epoch_begins(self, loop: CodeType | None, n_batches: int | None) -> None:
        """An epoch begins, of so many batches; where fetches are told."""
        self.epochs += 1
        self._loop, self._expected = loop, n_batches
        self._epoch_from = self.meter.n

    def stop(self, until_ns: int | None = None) -> None:
        """End: leave no hook, and update once more; the loop ended then, or now."""
        self.unhook()
        now_ns = self.now() if until_ns is None else until_ns
        with self._machine.guard("ending"):
            mark, self._mark = self._mark, None
            if mark is not None and now_ns - self._marked_ns >= _SHORTEST_NS:
                busy = mark.until_now()
                self.busy = busy if self.busy is None else self.busy.and_then(busy)
            if self.looks is not None and until_ns is None:
                self.looks.look(now=True)
        if self.meter.n > self._seen[0]:
            self._update(self.now())

    def unhook(self) -> None:
        """Leave no hook, and no thread; once more where that is so."""
        self._is_on = False
        surely(self._unhook)

    def _unhook(self) -> None:
        self._collector.stop()
        self.sampler.stop()
        if self.phases.is_on:
            self.phases.stop()
            if self.phases.failure is None:
                taken = self.phases.take(0)
                self.phase_ns[:] = map(operator.add, self.phase_ns, taken)
                self.after_ns[:] = map(operator.add, self.after_ns, taken)

    def forget(self) -> None:
        self._collector.stop()
        self.sampler.forget()
        self.phases.stop()

    def step_ended(
        self, began_ns: int, ended_ns: int, fetched: tuple[int, int | None] | None = None
    ) -> int:
        """A step is over; return when this is: what it takes belongs to neither step.

        Args:
            began_ns, ended_ns: by the clock.
            fetched: its data wait in nanoseconds and its samples, where fetches are told.
        """
        meter, batches = self.meter, self._batches
        wait_ns, samples = fetched or (0, None)
        step_ns = ended_ns - began_ns
        taken = _NO_PHASES
        if self.phases.is_on:
            taken = self.phases.take(ended_ns)
            self.phase_ns[:] = map(operator.add, self.phase_ns, taken)
            if self._steps_only:
                step_ns -= taken[_EVALUATION] + taken[_CHECKPOINT]
        if batches is not None:
            wait_ns, samples = taken[_DATA], batches.take()
            if taken[_EVALUATION]:  # what was counted has those of the evaluation, too
                samples = self._batch_samples
            self._batch_samples = samples
            if batches.source is not self._epoch:
                self._epoch = batches.source
                self.epochs += 1
                self._epoch_from, self._epoch_began_ns = meter.n, began_ns
            if not meter.n:
                self._epoch_began_ns = ended_ns  # its first step also holds the set-up
        step_ns, wait_ns = meter.add(step_ns, wait_ns, (*taken, sum(self._collector.take())))
        if wait_ns or samples:
            self.uses_loader = True
        if self.samples is not None:
            self.samples = None if samples is None else self.samples + samples
        if meter.n == self.n_left_out:
            self.samples_at = self.samples
        if meter.n == self._epoch_from + 1:
            self.starts.append((self._epoch_from, step_ns, wait_ns))
        if ended_ns >= self._due_ns:
            self._update(ended_ns)
        now_ns = self.now()
        self.phases.skip(now_ns)
        self.sampler.begins(meter.n, now_ns)
        return now_ns

    def _read_and_tell(self, now_ns: int) -> None:
        before, samples_before, total_ns, wait_ns = self._seen
        meter = self.meter
        memory = self._note_memory()
        self._seen = (meter.n, self.samples or 0, meter.total_ns, meter.wait_total_ns)
        if self._on_update is not None:
            spent_ns = meter.total_ns - total_ns
            per_s = 1e9 / spent_ns if spent_ns > 0 else None
            samples = (self.samples or 0) - samples_before
            numbers, step_ms, wait_ms = meter.points(before, {n for n, _, _ in self.starts})
            waited_ns = meter.wait_total_ns - wait_ns
            done, total = self._position()
            self._on_update(
                Update(
                    numbers=numbers,
                    step_ms=step_ms,
                    wait_ms=wait_ms,
                    memory=memory,
                    epoch=max(self.epochs, 1),
                    done=done,
                    total=total,
                    elapsed_s=max(now_ns - self._epoch_began_ns, 0) / 1e9,
                    steps_per_s=(meter.n - before) * per_s if per_s else None,
                    samples_per_s=samples * per_s if per_s and samples > 0 else None,
                    wait_share=waited_ns / spent_ns if spent_ns > 0 and self.uses_loader else None,
                )
            )
        after_ns = self.now()
        self._n_updates += 1
        period_ns, rest = self._period_ns, _REST_AFTER_UPDATE
        if self._n_updates <= _EARLY_UPDATES:
            period_ns, rest = self._early_ns, _REST_AFTER_EARLY_UPDATE
        took_ns = max(after_ns - now_ns, 0)
        quicker_ns, self._took_ns = min(took_ns, self._took_ns), took_ns
        self._due_ns = after_ns + max(period_ns, rest * quicker_ns)
        if self._is_on:
            if not self._is_recorded:
                self.sampler.learns(meter, self._loop)
            self._look_at_machine(after_ns)
        self.update_ns += max(self.now() - now_ns, 0)

    def _position(self) -> tuple[int, int | None]:
        """Steps of this epoch that are over, and how many it has; all steps where unknown."""
        n = self.meter.n - self._epoch_from
        if self._batches is None:
            return n, self._expected
        iterator = self._epoch() if self._epoch is not None else None
        position = None if iterator is None else torch_compat.loader_position(iterator)
        if position is None:
            return self.meter.n, None
        fetched, total = position
        each = max(round(fetched / max(n, 1)), 1)  # batches a step
        return fetched // each, -(-total // each)

    def _mark_and_look(self, now_ns: int) -> None:
        looped_ns = now_ns - self._began_ns
        if self._mark is None and looped_ns >= _MARK_FROM_NS:
            self._mark, self._marked_ns = self._make_mark(), now_ns
        if looped_ns >= _LONG_NS and not self._is_recorded:
            if self.looks is None:
                self.looks = DataLoaderSampler()
            self.looks.look()

    def _note_memory(self) -> Footprint:
        memory = self._read_memory()
        if self.memory and self.memory[-1][1].kind != memory.kind:
            self.memory.clear()  # a device came into use meanwhile: this is another quantity
        self.memory.append((self.meter.n, memory))
        if len(self.memory) >= _MOST_READINGS:
            del self.memory[1::2]
        return memory

    def summary(self, name: str, ended: str, wall_s: float, **known: Any) -> RunSummary:
        """What the steps were like, and what bounds them; ``known`` are fields of ``RunFacts``."""
        meter, phases = self.meter, self.phases
        doubts = *(f.sentence() for f in self.failures), *filter(None, [phases.doubt])
        found = RunFacts(
            name=name,
            ended=ended,
            n_steps=meter.n,
            n_epochs=max(self.epochs, 1),
            steps=meter.steps if phases.are_sure else replace(meter.steps, phase_ms={}),
            total_ms=meter.total_ns / 1e6,
            starts=tuple((n, step / 1e6, wait / 1e6) for n, step, wait in self.starts),
            samples=self.samples,
            memory=tuple(self.memory),
            wall_s=wall_s,
            update_s=self.update_ns / 1e9,
            problems=(*known.pop("problems", ()), *doubts),
            busy=self.busy,
            during=self.sampler.during,
            loading=None if self.looks is None else self.looks.result(),
            waits_known=self.uses_loader and (self._batches is None or not phases.failure),
            phase_ns=phases.told(self.phase_ns),
        )
        return summarize_run(replace(found, **known))
