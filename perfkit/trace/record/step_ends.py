"""Where steps end: an optimizer has stepped, as torch's global optimizer hooks report.

Of several, the first one, until another steps again and again without it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
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
    """One that has stepped.

    Attributes:
        n: its steps since the first one is the first.
        first_at, last_at: steps of the first one when this one stepped first and last.
        ends_s: when it has stepped since the first one has.
    """

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.facts: OptimizerFacts | None = None
        self.ends_s: list[float] = []
        self.start_anew()

    def start_anew(self) -> None:
        self.n = self.first_at = self.last_at = 0
        self.ends_s.clear()

    def name(self) -> str:
        facts = self.facts
        return "another" if facts is None else f"{facts.name} ({plural(facts.n_tensors, 'tensor')})"


def _nothing(*_: object) -> None: ...


class StepEnds:
    """Finds the ends of steps in the thread that makes it, from then on until :meth:`close`.

    Args:
        instrument: what fails here is its failure.
        run: calls what it is given as the recorder's own work.
        on_end: a step has ended.
        on_other: an optimizer that is not the first has stepped, at this time.
        on_replaced: it has taken the first one's place; steps have ended at these times.
    """

    def __init__(
        self,
        instrument: Instrument,
        run: Callable[..., None],
        on_end: Callable[[], None],
        on_other: Callable[[float], None] | None,
        on_replaced: Callable[[Sequence[float]], None],
    ) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._run, self._on_end, self._on_other = run, on_end, on_other
        self._on_replaced = on_replaced
        self._thread_id = threading.get_ident()
        self._graph_task = torch_compat.graph_task_id_reader()
        self.passes = BackwardPasses(instrument)
        self.n_foreign = 0  # in other threads
        self.only_marked = False  # steps end where they are marked, not where an optimizer steps
        self._stepped_in_pass: dict[int, Any] = {}  # id → optimizer
        self._known: dict[int, _Optimizer] = {}  # by id
        self._unread: list[_Optimizer] = []
        self._first = 0
        self._hook = register_optimizer_step_post_hook(instrument.hook(self._stepped))

    def close(self) -> None:
        """Find no more; within a backward pass, after its end."""
        self._hook.remove()
        self.passes.close()
        # mostly methods of its owner's: no cycle stays
        self._run = self._on_end = self._on_replaced = _nothing
        self._on_other = None

    @property
    def facts(self) -> tuple[OptimizerFacts, ...]:
        """Of each optimizer, in the order in which they first stepped."""
        return tuple(one.facts for one in self._known.values() if one.facts is not None)

    def read_facts(self) -> None:
        """Of the optimizers that are new. It may take long: call it between two steps."""
        unread, self._unread = self._unread, []
        for one in unread:
            if (optimizer := one.ref()) is not None:
                one.facts = optimizer_facts(optimizer)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # the step is being traced or captured, not run
        if self.only_marked or torch.compiler.is_compiling() or is_capturing():
            return
        if threading.get_ident() != self._thread_id:
            # a backward pass, which CUDA runs in threads of its own, is recorded
            if self._graph_task() < 0:
                self.n_foreign += 1
                return
            if not self.passes.inside:
                return
        if not self.passes.inside:
            self._run(self._one_stepped, optimizer)
            return
        if not self._stepped_in_pass:
            self.passes.after(self._pass_ended)
        self._stepped_in_pass[id(optimizer)] = optimizer

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
            self._unread.append(one)
        one.n += 1
        if key == self._first:
            if len(self._known) > 1:
                for other in self._known.values():
                    other.ends_s.clear()
            self._on_end()
            return
        one.last_at = self._known[self._first].n
        if one.n == 1:
            one.first_at = one.last_at
        one.ends_s.append(time.perf_counter())
        if self._on_other is not None:
            self._on_other(one.ends_s[-1])
        if len(one.ends_s) >= _TAKES_OVER:
            # the first one steps no more: layers that train one after the other
            ends_s, self._first = [*one.ends_s], key
            for other in self._known.values():
                other.start_anew()
            one.n = len(ends_s)
            self._on_replaced(ends_s)

    def whose_step(self) -> str:
        """That a step is of one optimizer, where another one steps more or less often."""
        first = self._known.get(self._first)
        others = [one for one in self._known.values() if one is not first and one.n > 1]
        if first is None or first.n < _MORE_OFTEN or not others or self.only_marked:
            return ""
        other = max(others, key=lambda one: max(one.n / first.n, first.n / one.n))
        step = f"a step here is one of {first.name()}"
        # steps of the first one between two of the other
        between = (other.last_at - other.first_at) / (other.n - 1)
        if between >= _MORE_OFTEN:
            n = fmt_count(round(between))
            return f"{step}, which makes about {n} for each of {other.name()}"
        if other.n >= _MORE_OFTEN * first.n:
            return f"{step}; {other.name()} makes about {fmt_count(round(other.n / first.n))} in it"
        return ""
