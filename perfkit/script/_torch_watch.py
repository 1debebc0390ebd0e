"""What is watched once the program has imported torch: steps, data wait, memory, a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfkit.advice.state import StateWatch
from perfkit.base.instrument import Failure, Instrument
from perfkit.limit.kept import peaks_in_use
from perfkit.measure.outer_calls import OuterCalls
from perfkit.measure.tracker import StepTracker, Update
from perfkit.script.options import SYNCLINT_STEPS, Options
from perfkit.trace.record.record import Recorder

if TYPE_CHECKING:
    from perfkit.memory.account import Accountant, MemoryAccount
    from perfkit.synclint.find import SyncLines
    from perfkit.synclint.watch import SyncWatch


class TorchWatch:
    """The instruments of a run; see :class:`perfkit.script.run_watch.RunWatch`.

    Attributes:
        left_as_it_is: the program hung while it was recorded, or while its memory or waits were
            looked at: that ends in the program's thread alone, so nothing of it is known.
    """

    def __init__(self, options: Options, on_update: Callable[[Update], None] | None) -> None:
        self._options = options
        self._instrument = Instrument("the watch of this run")
        self._extras = Instrument("the memory account or the sync lint of this run")
        self.recorder = Recorder(
            steps=options.steps,
            warmup=options.warmup + options.n_slowed,
            stacks=options.stacks,
            # with this machine's peaks known, shapes tell how far a step is from its lower bound;
            # which device the program uses shows only once it runs
            shapes=options.shapes or (lambda: peaks_in_use() is not None),
            late=True,
            on_step=self._instrument.hook(self._step_ended),
            n_slowed=options.n_slowed,
        )
        self.recorder.ends.counts_passes = True
        self.run = StepTracker(on_update, is_recorded=True, n_left_out=options.n_left_out)
        self.meter = self.run.meter
        self.state = StateWatch(lambda: self.recorder.runs_profiler)
        self.run.phases.live = self.state.live
        self.state.live.traces_until = 0
        self.account: MemoryAccount | None = None
        self.syncs: SyncLines | None = None
        self.left_as_it_is = False
        self._accountant: Accountant | None = None
        self._lint: SyncWatch | None = None
        self._outer = OuterCalls(self._extras)

    @property
    def failures(self) -> tuple[Failure, ...]:
        mine = (i.failure for i in (self._instrument, self._extras))
        return (*(f for f in mine if f is not None), *self.run.failures, *self.state.failures)

    def start(self) -> None:
        """Begin; torch is imported."""
        if self._options.memory or self._options.synclint:
            with self._extras.guard("starting"):
                self._outer.start(self._before_module, lambda: None)
        self.state.start()
        self.run.start()
        self.recorder.start()

    def stop(self, error: BaseException | None, *, hangs: bool = False) -> None:
        """End all of it, but for what may end only in the thread that hangs. Does not raise."""
        modes_are_on = self._accountant is not None or self._lint is not None
        self.left_as_it_is = hangs and (modes_are_on or self.recorder.runs_profiler)
        with self._extras.guard("ending"):
            self._outer.stop()
        if not self.left_as_it_is:
            with self._extras.guard("ending the memory account"):
                self._end_account(error)
            with self._extras.guard("ending the sync lint"):
                self._end_lint(error)
        self.state.stop()
        with self._instrument.guard("ending"):
            self.run.stop()
        if not self.left_as_it_is:
            self.recorder.stop()

    def forget(self) -> None:
        """In a forked child: no hook, no mode, nothing is recorded here."""
        self.recorder.forget()
        self.state.stop()
        for undo in (self.run.forget, self._outer.stop):
            with self._extras.guard("forgetting"):
                undo()
        for mode in (self._accountant, self._lint):
            with self._extras.guard("forgetting"):
                if mode is not None:
                    mode.__exit__(None, None, None)

    def _step_ended(self, began_s: float, ended_s: float) -> None:
        """Between two steps: what this takes belongs to neither."""
        live = self.state.live
        if live.traces_until > live.n_steps:  # it was slowed, and counts as a usual one
            self.run.phases.take(round(ended_s * 1e9))
            began_s = max(began_s, ended_s - self.meter.usual_ns() / 1e9)
            self.recorder.log.times_s[-1:] = [(began_s, ended_s)]
        self.run.step_ended(round(began_s * 1e9), round(ended_s * 1e9))
        live.step_ended()

    def _before_module(self, module: Any, _: object) -> None:
        """Before a forward pass: begin and end what is looked for in the first steps.

        Here and not when a step has ended: torch goes through the optimizer hooks then, and both
        add and remove some. Nor where a backward pass computes again: as that ends, torch puts back
        the modes that were on when it began. Nor in another thread, which could not end them.
        """
        if next(module.parameters(), None) is None:
            return
        options, n = self._options, self.meter.n
        if n >= options.n_slowed - 1:
            self._outer.stop()
        if options.memory and n >= options.memory_steps:
            self._end_account()
        elif options.memory and self._accountant is None:
            from perfkit.memory.account import Accountant

            accountant = Accountant(max_steps=options.memory_steps, command="perfkit run")
            self._accountant = accountant.__enter__()
        if not options.synclint or n < options.synclint_from:
            return
        if n >= options.synclint_from + SYNCLINT_STEPS:
            self._end_lint()
        elif self._lint is None:
            from perfkit.synclint.watch import SyncWatch

            self._lint = SyncWatch().__enter__()

    def _end_account(self, error: BaseException | None = None) -> None:
        accountant, self._accountant = self._accountant, None
        if accountant is not None:
            accountant.__exit__(None, error, None)
            self.account = accountant.result

    def _end_lint(self, error: BaseException | None = None) -> None:
        lint, self._lint = self._lint, None
        if lint is not None:
            from perfkit.synclint.find import syncs_of

            lint.__exit__(None, None, None)
            self.syncs = syncs_of(lint)
            self.syncs.ended_by = "" if error is None else type(error).__name__
            first = self._options.synclint_from + 1
            last = min(first + SYNCLINT_STEPS - 1, max(self.meter.n, first))
            which = f"steps {first} and {last}" if last > first else f"step {first}"
            self.syncs.seen = (
                f"Seen: {which} of the run. What only other steps do, such as logging or an "
                "evaluation now and then, is not listed."
            )
