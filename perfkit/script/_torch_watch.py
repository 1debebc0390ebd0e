"""What is watched once the program has imported torch: steps, data wait, memory, a trace."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.measure.footprint import Footprint, footprint
from perfkit.measure.loader_wait import LoaderWait
from perfkit.measure.meter import StepMeter
from perfkit.measure.run import Update
from perfkit.script.options import SYNCLINT_STEPS, Options
from perfkit.trace.record.record import Recorder

if TYPE_CHECKING:
    from perfkit.memory.account import Accountant, MemoryAccount
    from perfkit.synclint.find import Syncs
    from perfkit.synclint.watch import Watch

_UPDATE_EVERY_S = 0.5
#: So many backward passes without a step of an optimizer, and each counts as a step: more than
#: nearly any training accumulates for one update.
PASSES = 50
# Memory readings kept; when full, every second one is dropped.
_MOST_READINGS = 2048


class TorchWatch:
    """The instruments of a run; see :class:`perfkit.script.run_watch.RunWatch`.

    Attributes:
        recorder: finds the steps and records a few.
        meter: every step, and its data wait.
        samples: of all batches of DataLoaders that the steps used; None where one had no size.
        samples_at: the same after so many steps as are left out of rates.
        uses_loader: whether a batch came from a DataLoader.
        memory: readings, each with the number of steps before it.
        account: of the first steps' memory.
        syncs: predicted waits.
        by_passes: whether a step is a backward pass, because no optimizer stepped.
    """

    def __init__(self, options: Options, on_update: Callable[[Update], None] | None) -> None:
        self._options = options
        self._on_update = on_update
        self._instrument = Instrument("the watch of this run")
        self._extras = Instrument("the memory account or the sync lint of this run")
        self._display = Instrument("the live line")
        self.recorder = Recorder(
            steps=options.steps,
            warmup=options.warmup + options.n_slowed,
            stacks=options.stacks,
            late=True,
            on_step=self._instrument.hook(self._step_ended),
            n_slowed=options.n_slowed,
        )
        self.meter = StepMeter()
        self.loader = LoaderWait()
        self.samples: int | None = 0
        self.samples_at: int | None = None
        self.uses_loader = False
        self.first_wait_ns = 0
        self.memory: list[tuple[int, Footprint]] = []
        self.account: MemoryAccount | None = None
        self.syncs: Syncs | None = None
        self.by_passes = False
        # of each backward pass before the first step: its end, its data wait, its samples
        self._passes: list[tuple[float, float, int | None]] = []
        self._no_passes: Callable[[], None] | None = None
        self._accountant: Accountant | None = None
        self._lint: Watch | None = None
        self._forward_hook: Any = None
        self._due_s = 0.0
        self._seen = (0, 0, 0, 0)  # steps, samples, total ns, wait ns at the last update
        self._epoch: weakref.ref[Any] | None = None  # the iterator that the steps' batches are from
        self._epochs = 0
        self._epoch_from = 0
        self._epoch_began_s = 0.0
        self.update_s = 0.0

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What of it failed and was switched off."""
        mine = (self._instrument, self._extras, self._display, self.loader)
        return tuple(i.failure for i in mine if i.failure is not None)

    def start(self) -> None:
        """Begin; torch is imported."""
        if self._options.memory or self._options.synclint:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._forward_hook = register_module_forward_pre_hook(
                self._extras.hook(self._before_module)
            )
        self.loader.__enter__()
        self.recorder.start()
        self._thread_id = threading.get_ident()
        with self._instrument.guard("watching for backward passes"):
            self._no_passes = torch_compat.watch_backward_passes(
                self._instrument.hook(self._pass_ended)
            )

    def stop(self, error: BaseException | None) -> None:
        """End all of it. Does not raise."""
        with self._extras.guard("ending"):
            self._look_no_more()
        with self._extras.guard("ending the memory account"):
            self._end_account(error)
        with self._extras.guard("ending the sync lint"):
            self._end_lint(error)
        with self._instrument.guard("counting backward passes"):
            self._watch_no_passes()
            if len(self._passes) > 1 and not self.recorder.n_steps_seen:
                self._step_by_passes()
        self.recorder.stop()
        with self._instrument.guard("ending"):
            self.loader.__exit__()
        with self._instrument.guard("reading the memory"):
            self._read_memory()

    def forget(self) -> None:
        """In a forked child: no hook, no mode, nothing is recorded here."""
        self.recorder.forget()
        with self._instrument.guard("forgetting"):
            self._watch_no_passes()
        with self._instrument.guard("forgetting"):
            self.loader.__exit__()
        with self._extras.guard("forgetting"):
            self._look_no_more()
        with self._extras.guard("forgetting"):
            if self._accountant is not None:
                self._accountant.__exit__(None, None, None)
        with self._extras.guard("forgetting"):
            if self._lint is not None:
                self._lint.__exit__(None, None, None)

    # --- steps ------------------------------------------------------------------------------

    def _step_ended(self, began_s: float, ended_s: float) -> None:
        """Between two steps: what this takes belongs to neither."""
        meter = self.meter
        wait_s, samples = self._since_the_last_step()
        meter.begin(round(began_s * 1e9))
        if wait_s:
            meter.wait(round(wait_s * 1e9))
            self.uses_loader = True
        _, wait_ns = meter.end(round(ended_s * 1e9))
        if meter.n == 1:
            self.first_wait_ns = wait_ns
        if self.samples is not None:
            self.samples = None if samples is None else self.samples + samples
        if meter.n == self._options.n_left_out:
            self.samples_at = self.samples
        source = self.loader.source
        if source is not self._epoch:
            self._epoch = source
            self._epochs += 1
            self._epoch_from = meter.n - 1
            self._epoch_began_s = began_s
        if meter.n == 1:
            # the first step also holds the set-up, which says nothing of how long the rest takes
            self._epoch_began_s = ended_s
        if ended_s >= self._due_s:
            self._update(ended_s)
            self._due_s = time.perf_counter() + _UPDATE_EVERY_S

    def _since_the_last_step(self) -> tuple[float, int | None]:
        """Data wait and samples of the step that ended."""
        if self.by_passes and self._passes:
            _, wait_s, samples = self._passes.pop(0)
            return wait_s, samples
        if not self.by_passes:
            self._watch_no_passes()  # an optimizer has stepped: what passes there were are its
        taken = [*((wait_s, n) for _, wait_s, n in self._passes), self.loader.take()]
        self._passes.clear()
        counts = [n for _, n in taken if n is not None]
        return sum(wait_s for wait_s, _ in taken), sum(counts) if counts else None

    # --- backward passes, of a program without an optimizer -------------------------------------

    def _pass_ended(self) -> None:
        if threading.get_ident() != self._thread_id:
            return
        if self.by_passes:
            self.recorder.step()
            return
        self._passes.append((time.perf_counter(), *self.loader.take()))
        if len(self._passes) >= PASSES:
            last = self._passes.pop()
            self._step_by_passes()
            self._passes.append(last)
            self.recorder.step()

    def _step_by_passes(self) -> None:
        self.by_passes = True
        self.recorder.steps_ended([end_s for end_s, _, _ in self._passes])

    def _watch_no_passes(self) -> None:
        stop, self._no_passes = self._no_passes, None
        if stop is not None:
            stop()

    def _update(self, now_s: float) -> None:
        before, samples_before, total_ns, wait_ns = self._seen
        meter = self.meter
        memory = self._read_memory()
        self._seen = (meter.n, self.samples or 0, meter.total_ns, meter.wait_total_ns)
        if self._on_update is not None:
            spent_ns = meter.total_ns - total_ns
            per_s = 1e9 / spent_ns if spent_ns > 0 else None
            samples = (self.samples or 0) - samples_before
            numbers, step_ms, wait_ms = meter.since(before)
            done, total = self._position()
            self._display.hook(self._on_update)(
                Update(
                    numbers=numbers.astype(np.float64) + 1,
                    step_ms=step_ms,
                    wait_ms=wait_ms,
                    memory=memory,
                    epoch=max(self._epochs, 1),
                    done=done,
                    total=total,
                    elapsed_s=now_s - self._epoch_began_s,
                    steps_per_s=(meter.n - before) * per_s if per_s else None,
                    samples_per_s=samples * per_s if per_s and samples > 0 else None,
                    wait_share=(
                        (meter.wait_total_ns - wait_ns) / spent_ns
                        if spent_ns > 0 and self.uses_loader
                        else None
                    ),
                )
            )
        self.update_s += time.perf_counter() - now_s

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

    def _read_memory(self) -> Footprint:
        memory = footprint()
        if self.memory and self.memory[-1][1].kind != memory.kind:
            self.memory.clear()  # a device came into use meanwhile: this is another quantity
        self.memory.append((self.meter.n, memory))
        if len(self.memory) >= _MOST_READINGS:
            del self.memory[1::2]
        return memory

    # --- the memory account and the sync lint, one after the other ----------------------------

    def _before_module(self, module: Any, _: object) -> None:
        """Before a forward pass: begin and end what is looked for in the first steps.

        Here and not when a step has ended: torch goes through the optimizer hooks then, and both
        add and remove some.
        """
        import torch

        if torch.compiler.is_compiling() or next(module.parameters(), None) is None:
            return
        options, n = self._options, self.meter.n
        if n >= options.n_slowed - 1:
            self._look_no_more()
        if options.memory and n >= options.memory_steps:
            self._end_account(None)
        elif options.memory and self._accountant is None:
            from perfkit.memory.account import Accountant

            accountant = Accountant(max_steps=options.memory_steps, command="perfkit run")
            accountant.__enter__()
            self._accountant = accountant
        if not options.synclint or n < options.synclint_from:
            return
        if n >= options.synclint_from + SYNCLINT_STEPS:
            self._end_lint()
        elif self._lint is None:
            from perfkit.synclint.watch import Watch

            lint = Watch()
            lint.__enter__()
            self._lint = lint

    def _look_no_more(self) -> None:
        hook, self._forward_hook = self._forward_hook, None
        if hook is not None:
            hook.remove()

    def _end_account(self, error: BaseException | None) -> None:
        accountant, self._accountant = self._accountant, None
        if accountant is not None:
            kind = None if error is None else type(error)
            accountant.__exit__(kind, error, None)
            self.account = accountant.result

    def _end_lint(self, error: BaseException | None = None) -> None:
        lint, self._lint = self._lint, None
        if lint is not None:
            from perfkit.synclint.find import syncs_of

            lint.__exit__(None, None, None)
            self.syncs = syncs_of(lint)
            self.syncs.ended_by = "" if error is None else type(error).__name__
