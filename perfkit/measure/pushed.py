"""A run whose steps somebody else ends: a trainer's callback, or an optimizer that has stepped.

:class:`PushedRun` is told when a step ends. It adds the data wait and the phases, reads the memory
twice a second at most, and says at the end what bounds the steps.
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Callable
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.measure.footprint import Footprint, MemoryReader
from perfkit.measure.loader_wait import LoaderWait
from perfkit.measure.lookout import Lookout
from perfkit.measure.meter import StepMeter
from perfkit.measure.phases import PHASES, Phases
from perfkit.measure.points import points_since
from perfkit.measure.run import Update
from perfkit.measure.step_facts import StepFacts
from perfkit.measure.verdict import RunFacts, RunSummary, summarize_run

_UPDATE_EVERY_NS = 500_000_000
# Memory readings kept; when full, every second one is dropped.
_MOST_READINGS = 2048
_DATA, _EVALUATION, _CHECKPOINT = map(PHASES.index, ("data_wait", "evaluation", "checkpoint"))


class PushedRun:
    """Steps, data wait, phases and memory of a run, in the thread that starts it.

    Nothing of it raises into the run, except :meth:`step_ended` where it is not guarded: what calls
    it wraps it in an :class:`~perfkit.base.instrument.Instrument`.

    Args:
        on_update: called at most twice a second, between two steps, and at the end; if it raises,
            it is called no more, and :attr:`failures` says so.
        n_left_out: after so many steps :attr:`samples_at` is taken.
        steps_only: evaluation and checkpoints are no part of a step; the phases have them.
        now: the clock, in nanoseconds.
        mark: begins to look at what else the machine does; None where the caller looks itself.

    Attributes:
        meter: every step, and its data wait.
        samples: of all batches of DataLoaders that the steps used; None where one had no size.
        n_left_out: first steps that no figure is of.
        samples_at: the same after so many steps as are left out of rates.
        uses_loader: whether a batch came from a DataLoader.
        memory: readings, each with the number of steps before it.
        phase_ns: nanoseconds of each of :data:`~perfkit.measure.phases.PHASES`, of the whole run.
        after_ns: the part of these that came after the last step.
        epochs: how many iterators of DataLoaders gave the steps' batches.
        update_ns: what the updates took; part of no step.
    """

    def __init__(
        self,
        on_update: Callable[[Update], None] | None = None,
        *,
        steps_only: bool = False,
        n_left_out: int = 0,
        now: Callable[[], int] = time.perf_counter_ns,
        mark: Callable[[], ContentionMark] | None = None,
    ) -> None:
        self._machine = Instrument("the look at the machine")
        self._make_mark = mark
        self._mark: ContentionMark | None = None
        self._busy: CpuContention | None = None
        self._display = Instrument("the live line")
        self._on_update = None if on_update is None else self._display.hook(on_update)
        self._steps_only = steps_only
        self._now = now
        self.meter = StepMeter()
        is_real = now is time.perf_counter_ns
        self.loader = LoaderWait(time.perf_counter if is_real else lambda: now() / 1e9)
        self.phases = Phases(now)
        self.facts = StepFacts(now)
        self.lookout = Lookout(now)
        self._watches_lines = steps_only  # else a recorder samples them
        self.samples: int | None = 0
        self.samples_at: int | None = None
        self.n_left_out = n_left_out
        self._batch_samples: int | None = None
        self.uses_loader = False
        self.memory: list[tuple[int, Footprint]] = []
        self._memory_reader = MemoryReader()
        self.phase_ns = [0] * len(PHASES)
        self.after_ns = [0] * len(PHASES)
        self.epochs = 0
        self.starts: list[tuple[int, int, int]] = []  # first step of each epoch, its ns, its wait
        self.update_ns = 0
        self._due_ns = 0
        self._seen = (0, 0, 0, 0)  # steps, samples, total ns, wait ns at the last update
        self._epoch: weakref.ref[Any] | None = None  # the iterator that the steps' batches are from
        self._epoch_from = 0
        self._epoch_began_ns = 0

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What of it failed and was switched off."""
        mine = (
            self._display,
            self._machine,
            self.loader,
            self.phases,
            self.facts,
            self.lookout.instrument,
        )
        return tuple(i.failure for i in mine if i.failure is not None)

    def now(self) -> int:
        """The clock, in nanoseconds."""
        return self._now()

    def start(self) -> None:
        """Begin; torch is imported."""
        try:
            with Uninterrupted():
                self.loader.__enter__()
                self.phases.start()
                self.facts.start()
            if self._make_mark is not None:
                with self._machine.guard("beginning"):
                    self._mark = self._make_mark()
        except BaseException:  # Ctrl-C meanwhile
            self.forget()
            raise

    def stop(self) -> None:
        """End: leave no hook."""
        surely(self._unhook)
        if self._mark is not None:
            with self._machine.guard("ending"):
                self._busy = self._mark.until_now()
            self._mark = None
        if self.meter.n > self._seen[0]:
            self._update(self._now())
        else:
            self.read_memory()

    def _unhook(self) -> None:
        self.facts.stop()
        self.lookout.stop()
        self.phases.stop()
        if self.phases.failure is None:
            taken = self.phases.take(0)
            self._add(taken)
            self.after_ns[:] = map(operator.add, self.after_ns, taken)
        self.loader.__exit__()

    def forget(self) -> None:
        """In a forked child: leave no hook."""
        self.facts.stop()
        self.lookout.rests()
        self.phases.stop()
        self.loader.__exit__()

    def step_ended(
        self, began_ns: int, ended_ns: int, fetched: tuple[float, int | None] | None = None
    ) -> None:
        """A step is over: what this takes belongs to neither it nor the next.

        Args:
            began_ns: by the clock.
            ended_ns: by the clock.
            fetched: its data wait in seconds and its samples, where they were taken before.
        """
        meter = self.meter
        wait_s, samples = self.loader.take() if fetched is None else fetched
        wait_ns = round(wait_s * 1e9)
        meter.begin(began_ns)
        if wait_ns or samples:
            self.uses_loader = True
        if self.phases.is_on:
            taken = self.phases.take(ended_ns)
            self._add(taken)
            self.facts.step(taken)
            if taken[_EVALUATION]:  # the counts have that of the evaluation, too
                wait_ns = taken[_DATA]
                samples = self._batch_samples
            if self._steps_only:
                meter.leave_out(taken[_EVALUATION] + taken[_CHECKPOINT])
        self._batch_samples = samples
        meter.wait(wait_ns)
        step_ns, wait_ns = meter.end(ended_ns)
        if self.samples is not None:
            self.samples = None if samples is None else self.samples + samples
        if meter.n == self.n_left_out:
            self.samples_at = self.samples
        self._note_epoch(began_ns, ended_ns, step_ns, wait_ns)
        if ended_ns >= self._due_ns:
            self._update(ended_ns)
            self._due_ns = self._now() + _UPDATE_EVERY_NS
            if self._watches_lines:
                self._look_out()
        now_ns = self._now()
        self.phases.skip(now_ns)
        self.lookout.begins(meter.n, now_ns)

    def _look_out(self) -> None:
        self.lookout.learns(self.meter)
        if self.lookout.limit_ns:
            self.lookout.start(None)

    def _add(self, taken: tuple[int, ...]) -> None:
        self.phase_ns[:] = map(operator.add, self.phase_ns, taken)

    def _note_epoch(self, began_ns: int, ended_ns: int, step_ns: int, wait_ns: int) -> None:
        source = self.loader.source
        if source is not self._epoch:
            self._epoch = source
            self.epochs += 1
            self._epoch_from = self.meter.n - 1
            self._epoch_began_ns = began_ns
            self.starts.append((self.meter.n - 1, step_ns, wait_ns))
        if self.meter.n == 1:
            # the first step also holds the set-up, which says nothing of how long the rest takes
            self._epoch_began_ns = ended_ns

    def _update(self, now_ns: int) -> None:
        before, samples_before, total_ns, wait_ns = self._seen
        meter = self.meter
        memory = self.read_memory()
        self._seen = (meter.n, self.samples or 0, meter.total_ns, meter.wait_total_ns)
        if self._on_update is not None:
            spent_ns = meter.total_ns - total_ns
            per_s = 1e9 / spent_ns if spent_ns > 0 else None
            samples = (self.samples or 0) - samples_before
            numbers, step_ms, wait_ms = points_since(meter, before, self.starts)
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
                    elapsed_s=(now_ns - self._epoch_began_ns) / 1e9,
                    steps_per_s=(meter.n - before) * per_s if per_s else None,
                    samples_per_s=samples * per_s if per_s and samples > 0 else None,
                    wait_share=(
                        (meter.wait_total_ns - wait_ns) / spent_ns
                        if spent_ns > 0 and self.uses_loader
                        else None
                    ),
                )
            )
        self.update_ns += self._now() - now_ns

    def _position(self) -> tuple[int, int | None]:
        """Steps of this epoch that are over, and how many it has; all steps where unknown."""
        iterator = self._epoch() if self._epoch is not None else None
        position = None if iterator is None else torch_compat.loader_position(iterator)
        n = self.meter.n - self._epoch_from
        if position is None:
            return self.meter.n, None
        fetched, total = position
        group = max(round(fetched / max(n, 1)), 1)
        return fetched // group, -(-total // group)

    def read_memory(self) -> Footprint:
        """Read and note it."""
        memory = self._memory_reader()
        if self.memory and self.memory[-1][1].kind != memory.kind:
            self.memory.clear()  # a device came into use meanwhile: this is another quantity
        self.memory.append((self.meter.n, memory))
        if len(self.memory) >= _MOST_READINGS:
            del self.memory[1::2]
        return memory

    def summary(
        self, name: str, ended: str, wall_s: float, *, problems: tuple[str, ...] = ()
    ) -> RunSummary:
        """What the steps were like, and what bounds them."""
        meter = self.meter
        starts = self.starts or ([(0, 0, 0)] if meter.n > 1 else [])
        return summarize_run(
            RunFacts(
                name=name,
                ended=ended,
                n_batches=meter.n,
                n_epochs=max(self.epochs, 1),
                n_unfinished=0,
                numbers=meter.numbers,
                step_ms=meter.step_ms,
                wait_ms=meter.wait_ms,
                total_ms=meter.total_ns / 1e6,
                starts=tuple((n, step / 1e6, wait / 1e6) for n, step, wait in starts),
                samples=self.samples,
                batch_size=None,
                memory=tuple(self.memory),
                wall_s=wall_s,
                update_s=self.update_ns / 1e9,
                one_shot=False,
                problems=(
                    *problems,
                    *(f.sentence() for f in self.failures),
                    *filter(None, [self.phases.doubt]),
                ),
                may_be_grouped=False,
                waits_known=self.uses_loader,
                phase_ns=self.phases.told(self.phase_ns),
                columns=None if self.phases.doubt else self.facts.columns(),
                busy=self._busy,
                during=self.lookout.during,
            )
        )
