"""Where steps end: an optimizer has stepped, as torch's global optimizer hooks report.

Of several, the first one, until another steps again and again without it. In a whole program that
makes none, because it changes the weights itself, a step ends with each backward pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.backward_passes import BackwardPasses
from perfkit.base.device import is_capturing
from perfkit.base.instrument import Instrument
from perfkit.base.words import fmt_count, plural
from perfkit.trace.record.facts import OptimizerFacts, optimizer_facts

# An optimizer that steps so often while the first one does not has taken its place.
_TAKES_OVER = 20
# If one optimizer steps this many times as often as another, it is said whose steps are meant.
_MORE_OFTEN = 2


class _Optimizer:
    """One that has stepped, and how often since the first one has."""

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.facts: OptimizerFacts | None = None
        self.n = self.n_in_a_row = 0

    def name(self) -> str:
        facts = self.facts
        return "another" if facts is None else f"{facts.name} ({plural(facts.n_tensors, 'tensor')})"


class StepEnds:
    """Finds the ends of steps in the thread that starts it, until :meth:`close`."""

    def __init__(
        self, instrument: Instrument, run: Callable[..., None], on_end: Callable[[], None]
    ) -> None:
        self._instrument = instrument
        self._run, self._on_end = run, on_end  # the first calls it as the recorder's own work
        self.n_foreign = 0  # in other threads
        self.counts_passes = False  # where no optimizer has been made
        self._stepped_in_pass: dict[int, Any] = {}  # id → optimizer
        self._known: dict[int, _Optimizer] = {}  # by id
        self.unread: list[_Optimizer] = []  # those whose facts are to be read
        self._first = 0
        self._passes: BackwardPasses | None = None
        self._hook: Any = None

    def start(self) -> None:
        """Begin, in the thread whose steps count."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._is_compiling = torch.compiler.is_compiling
        self._thread_id = threading.get_ident()
        self._graph_task = torch_compat.graph_task_id_reader()
        self._passes = BackwardPasses(self._instrument, self._passed)
        self._hook = register_optimizer_step_post_hook(self._instrument.hook(self._stepped))

    @property
    def inside_pass(self) -> bool:
        return self._passes is not None and self._passes.inside

    def after_pass(self, function: Callable[[], object]) -> None:
        """Call it as soon as the thread is in no backward pass: perhaps at once."""
        if self._passes is None:
            function()
        else:
            self._passes.after(function)

    def close(self) -> None:
        """Find no more; within a backward pass, after its end."""
        if self._hook is not None:
            self._hook.remove()
        if self._passes is not None:
            self._passes.close()
        # mostly methods of its owner's: no cycle stays
        self._run = lambda *_: None
        self._on_end = lambda: None

    @property
    def facts(self) -> tuple[OptimizerFacts, ...]:
        """Of each optimizer, in the order in which they first stepped."""
        return tuple(one.facts for one in self._known.values() if one.facts is not None)

    def read_facts(self) -> None:
        """Of the optimizers that are new. It may take long: call it between two steps."""
        unread, self.unread = self.unread, []
        for one in unread:
            if (optimizer := one.ref()) is not None:
                one.facts = optimizer_facts(optimizer)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # the step is being traced or captured, not run
        if self._is_compiling() or is_capturing():
            return
        passes = self._passes
        inside = passes is not None and passes.depth > 0 and passes.inside
        is_foreign = threading.get_ident() != self._thread_id
        if is_foreign and self._graph_task() < 0:
            self.n_foreign += 1
        elif inside:  # … in a thread of CUDA's, too, where it runs backward passes
            if not self._stepped_in_pass:
                self.after_pass(self._pass_ended)
            self._stepped_in_pass[id(optimizer)] = optimizer
        elif not is_foreign:
            self._run(self._one_stepped, optimizer)

    def _passed(self) -> bool:
        if is_one := self.counts_passes and not torch_compat.has_made_an_optimizer():
            self._run(self._on_end)
        return is_one

    def _pass_ended(self) -> None:
        """Optimizers have stepped in hooks of this pass: the step ends with it."""
        stepped, self._stepped_in_pass = self._stepped_in_pass, {}
        for optimizer in stepped.values():
            self._run(self._one_stepped, optimizer)

    def _one_stepped(self, optimizer: Any) -> None:
        key = id(optimizer)
        first = self._known.get(self._first)
        if first is None or first.ref() is None:  # none yet, or it is gone: a new training run
            self._known, self._first = {}, key
        one = self._known.get(key)
        if one is None:
            one = self._known[key] = _Optimizer(optimizer)
            self.unread.append(one)
        one.n += 1
        one.n_in_a_row += 1
        if key == self._first or one.n_in_a_row >= _TAKES_OVER:
            self._first = key  # perhaps of layers that train one after the other
            for other in self._known.values():
                other.n_in_a_row = 0
            self._on_end()

    def whose_step(self) -> str:
        """That a step is of one optimizer, where another one steps more or less often."""
        if self.counts_passes and not self._known:
            return "a step here is one backward pass: the program has made no torch optimizer"
        first = self._known.get(self._first)
        others = [one for one in self._known.values() if one is not first and one.n > 1]
        if first is None or first.n < _MORE_OFTEN or not others:
            return ""
        other = max(others, key=lambda one: max(one.n / first.n, first.n / one.n))
        if max(other.n / first.n, first.n / other.n) < _MORE_OFTEN:
            return ""
        return (
            f"a step here is one of {first.name()}, which made {fmt_count(first.n)}; "
            f"{other.name()} made {fmt_count(other.n)}"
        )
