"""Where a training loop's time goes, for all of it: data wait, forward, backward, optimizer …

No profiler: torch's own hooks say when the outermost module, a backward pass, an optimizer and a
DataLoader begin and end, and what is between them is ``other`` (the loss, copies, metrics,
logging). ``tests/bench/phases_cost.py`` measures what that costs.

Times are the thread's own, of the host. On a GPU the work of a phase is only queued in it, and the
phase that waits for the device gets the time of what it waits for.

A forward pass without gradients, or of a module in evaluation mode, is a *look*. It is evaluation
if a batch is fetched after it before anything trains, or if its module is in evaluation mode and
has trained, and no batch has come since. Otherwise it belongs to its step and is forward: a frozen
teacher, labels that a model makes for its own training, an episode that is played. So is what runs
between a training forward pass and its backward pass (a network that is the loss). What modules
compute in the fetch of a batch (transforms) is data wait.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.uninterrupted import Uninterrupted
from perfkit.measure.outer_calls import OuterCalls, nothing

if TYPE_CHECKING:
    from perfkit.measure.batch import Batches
    from perfkit.measure.live import Live

#: What to call each in a sentence.
PHASE_WORDS = {
    "data_wait": "the wait for data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "evaluation": "the evaluation",
    "checkpoint": "the saving of checkpoints",
    "other": "the code outside of model, backward pass and optimizer",
}
#: The names, in the order of :meth:`Phases.take`.
PHASES = tuple(PHASE_WORDS)
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _EVALUATION, _CHECKPOINT, _OTHER = range(len(PHASES))
# A look, and what follows it, until it is known what they were; see _settle.
_LOOK, _AFTER_LOOK = len(PHASES), len(PHASES) + 1
_N = len(PHASES) + 2
# For _advance: what ran before what runs now goes on; or that goes on.
_BACK, _ON = -1, -2
# In these a module's forward pass is a part of something else.
_INSIDE = frozenset((_FORWARD, _BACKWARD, _LOOK, _EVALUATION))
# So many modules called from outside of a module between two updates are too dear to tell apart, if
# that costs more than this share of the step. 80 µs a call is the upper end of what
# tests/bench/phases_cost.py saw on a busy machine (median 33 to 43 µs).
_MOST_CALLS = 40
_CALL_NS = 80_000
_MOST_COST = 0.02


class Phases:
    """Adds up the time of the thread that started it, by phase, from the first of them on.

    It cannot raise into the program: where it fails it does no more, and :attr:`failure` says why.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self.is_on = False
        self._instrument = Instrument("the phases of the steps", switch_off=self._silence)
        self._thread_id = 0
        self._undo: list[Callable[[], object]] = []
        self._may_rest: tuple[Callable[[], object], ...] = ()
        self._ns = [0] * _N
        self._phase = _OTHER
        self._stack: list[int] = []
        self._since = 0
        self._waited = 0  # for data, since the last forward pass
        self._look_waited = 0  # of it, before looks that are not settled
        self._has_looked = False
        self._own: weakref.ref[Any] | None = None  # looked at, and has trained since a batch came
        self._own_graph = False  # … and the look kept a graph: it may be part of the next loss
        self._keeps = False  # the forward pass that runs keeps a graph
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()  # a loss may be one, too
        self._in_step = False  # a training forward pass has been, and not yet its backward pass
        self._fetched = False  # a batch has come since something trained
        self._n_calls = self._most_calls = 0  # of modules, since an update; of the step
        self._outer = OuterCalls(self._instrument)
        # made with the hooks, which would keep this object
        self._end_fetch_event: Callable[..., Any] = nothing
        self._leave_event: Callable[..., Any] = nothing
        #: false once telling forward passes apart would have slowed the steps
        self.sees_modules = True
        #: told of the batches of loaders
        self.batches: Batches | None = None
        self._source: Any = None  # the iterator of a loader that is asked for a batch
        #: told of the objects that it meets, in the steps that it looks at
        self.live: Live | None = None

    @property
    def doubt(self) -> str:
        """Why forward passes are not told apart; empty where they are."""
        if self.sees_modules:
            return ""
        return (
            "forward passes are not told apart: a step of this code calls many modules by "
            "themselves, and watching each would slow such steps; their time is in other, and in "
            "the optimizer where that calls them"
        )

    def told(self, ns: Sequence[int]) -> tuple[int, ...]:
        """Times of :data:`PHASES` of a whole run, as far as they are known."""
        found = list(ns)
        if not self.sees_modules and found:
            found[_OTHER] += found[_FORWARD] + found[_EVALUATION]
            found[_FORWARD] = found[_EVALUATION] = 0
        return tuple(found)

    @property
    def failure(self) -> Failure | None:
        return self._instrument.failure

    @property
    def are_sure(self) -> bool:
        """Whether all of them are told apart, and none failed."""
        return self.sees_modules and self.failure is None

    def start(self) -> None:
        """Begin, in this thread. Does nothing where it has begun; imports torch."""
        if self._undo or not self._instrument.is_on:
            return
        self._thread_id = get_ident()
        try:
            with self._instrument.guard("starting"), Uninterrupted():
                self._hook_all()
        except BaseException:  # Ctrl-C meanwhile
            self._unhook()
            raise
        if self.failure is not None:
            self._unhook()  # what was in place when it failed
        self.is_on = bool(self._undo)
        self._phase, self._since = _OTHER, 0
        self._ns = [0] * _N
        self._waited = 0
        self._forget_looks()
        self._stack.clear()

    def _hook_all(self) -> None:
        import torch
        from torch.optim import optimizer

        compiles = torch.compiler.is_compiling
        self._grad_is_on = torch.is_grad_enabled  # runs some times a step
        # one by one: where one fails, those before it are taken away
        undo = self._undo
        undo.append(self._outer.stop)
        backward = self._event(self._backward_begins, (_BACKWARD, _EVALUATION))
        undo.append(torch_compat.watch_backward(backward))
        undo.append(torch_compat.watch_saves(self._event(self._saves, (_CHECKPOINT,))))
        self._may_rest = tuple(undo)
        fetch = self._event(self._fetches, (_DATA, _EVALUATION, _LOOK))
        undo.append(torch_compat.watch_loader_iterators(fetch))
        step = self._event(self._optimizer_begins, (_EVALUATION,), compiles)
        undo.append(optimizer.register_optimizer_step_pre_hook(step).remove)
        self._may_rest += (undo[-1],)
        stepped = self._event(self._optimizer_ended, (_OTHER,), compiles)
        undo.append(optimizer.register_optimizer_step_post_hook(stepped).remove)
        self._end_fetch_event = self._event(self.fetch_ends)
        self._leave_event = self._event(self._left)
        if self.sees_modules:
            self._outer.start(self._opens, self._closes)

    def _event(
        self,
        act: Callable[..., Any],
        unless: tuple[int, ...] = (),
        is_compiling: Callable[[], bool] | None = None,
    ) -> Callable[..., Any]:
        """A hook: it acts in the watched thread, not in these phases, and cannot raise."""

        def event(*args: Any) -> Any:
            if is_compiling is not None and is_compiling():  # torch.compile may look through it
                return None
            if self._phase in unless or get_ident() != self._thread_id:
                return None
            try:
                return act(*args)
            except Exception as error:
                self._instrument.fail(error, getattr(act, "__name__", "a hook"))
                return None

        return event

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        with self._instrument.guard("ending"):
            if self._undo:
                # what follows the last look until the program ends may be anything
                passed = self._advance() * (self._phase == _AFTER_LOOK)
                self._ns[_AFTER_LOOK] -= passed
                self._ns[_OTHER] += passed
                self._settle(evaluated=True)
        self._unhook()

    def _silence(self) -> None:
        """Maybe within torch's loop over the hooks of optimizers, which stay."""
        self._thread_id = 0  # and do nothing, as in a thread that is not watched
        with suppress(Exception):  # the failure is known
            self._outer.stop()

    def _unhook(self) -> None:
        self._thread_id, self.is_on = 0, False
        self._instrument.take_back(self._undo)
        self._may_rest = ()
        self._end_fetch_event = self._leave_event = nothing

    def rest(self) -> None:
        """Measure no more, from between two steps on; :attr:`live` still hears of loaders."""
        self.is_on = False
        self._forget_evaluations()
        with self._instrument.guard("resting"):
            for call in self._may_rest:
                call()

    def _forget_evaluations(self) -> None:
        if self.live is not None:
            self.live.with_graph_s = math.inf

    def take(self, until_ns: int | None = None) -> tuple[int, ...]:
        """Nanoseconds of each of :data:`PHASES` since the last call: a step is over."""
        self._advance(until_ns)
        if self._stack and self._phase != _EVALUATION:  # left open by an optimizer that raised
            self._stack.clear()
            self._phase = _OTHER
        if self._has_looked and self._phase in (_AFTER_LOOK, _OTHER):
            self._settle(evaluated=self._own is not None and not self._own_graph)
        self._in_step = False
        n_calls = max(self._most_calls, self._n_calls)
        if n_calls > _MOST_CALLS and self.sees_modules and self._undo:
            self.sees_modules = n_calls * _CALL_NS <= _MOST_COST * sum(self._ns[: len(PHASES)])
            if not self.sees_modules:
                self._outer.stop()
                self._forget_evaluations()
        self._n_calls = self._most_calls = self._waited = 0
        ns = self._ns
        taken = tuple(ns[: len(PHASES)])
        ns[: len(PHASES)] = (0,) * len(PHASES)
        return taken

    def skip(self, now_ns: int) -> None:
        """The time since the step ended, until now, belongs to no phase."""
        self._since = now_ns

    def begin(self, phase: str) -> None:
        """A phase begins here that no hook shows; :meth:`end` ends it."""
        if not self._undo:
            return
        self._advance()
        if phase == "evaluation":  # its loader has been started before
            self._move_wait(self._waited)
        self._waited = 0
        self._advance(to=PHASES.index(phase))

    def end(self) -> None:
        if self._undo:
            self._left()

    def was_evaluation(self) -> None:
        """All since the last :meth:`take` was evaluation, or a checkpoint."""
        if not self._undo:
            return
        self._advance()
        ns = self._ns
        for i in range(_N):
            if i not in (_EVALUATION, _CHECKPOINT):
                ns[_EVALUATION] += ns[i]
                ns[i] = 0
        self._waited = 0
        self._forget_looks()
        self._phase = _OTHER
        self._stack.clear()

    # --- the account ------------------------------------------------------------------------

    def _advance(self, until_ns: int | None = None, to: int = _ON) -> int:
        """What runs has run until now; and ``to`` is what runs from now on."""
        now = self._now() if until_ns is None else until_ns
        # at the first event: what was before it is set-up
        passed = now - (self._since or now)
        if passed > 0:
            self._ns[self._phase] += passed
        if passed > 0 or not self._since:
            self._since = now
        if to >= 0:
            self._stack.append(self._phase)
            self._phase = to
        elif to == _BACK:
            self._phase = self._stack.pop() if self._stack else _OTHER
        return max(passed, 0)

    def _left(self, _: Any = None) -> None:
        """A backward pass, a checkpoint or what somebody else began has ended."""
        self._advance(to=_BACK)

    def _move_wait(self, waited: int) -> None:
        waited = min(waited, self._ns[_DATA])
        self._ns[_DATA] -= waited
        self._ns[_EVALUATION] += waited

    def _settle(self, *, evaluated: bool) -> None:
        """Looks were evaluation, with what followed them, or belong to the step."""
        ns = self._ns
        if self._has_looked:
            if evaluated:
                self._move_wait(self._look_waited)
                ns[_EVALUATION] += ns[_LOOK] + ns[_AFTER_LOOK]
            else:
                ns[_FORWARD] += ns[_LOOK]
                ns[_OTHER] += ns[_AFTER_LOOK]
            ns[_LOOK] = ns[_AFTER_LOOK] = 0
        self._forget_looks()
        if self._phase == _AFTER_LOOK:
            self._phase = _OTHER

    def _forget_looks(self) -> None:
        self._has_looked = self._own_graph = False
        self._own, self._look_waited = None, 0

    # --- DataLoaders ------------------------------------------------------------------------

    def _fetches(self, is_batch: bool, source: Any) -> Callable[[Any], None]:
        self.fetch_begins()
        self._source = source if is_batch else None
        live = self.live
        if live is not None and (live.looks or not is_batch):
            return self._event(partial(self._fetched_for, live, is_batch, source, self._since))
        return self._end_fetch_event

    def _fetched_for(
        self, live: Live, is_batch: bool, source: Any, began_ns: int, batch: Any
    ) -> None:
        self.fetch_ends(batch)
        live.fetched(is_batch, source, batch, (self._since - began_ns) / 1e9)

    def fetch_begins(self, now_ns: int | None = None) -> None:
        """The loop asks for a batch, of whatever loader."""
        self._outer.close()
        self._outer.pause()  # transforms may be modules, some for each sample
        if self._phase == _AFTER_LOOK:
            self._advance(now_ns)
            self._settle(evaluated=True)
        self._advance(now_ns, _DATA)

    def fetch_ends(self, batch: Any = None, now_ns: int | None = None) -> None:
        self._outer.go_on()
        if self._phase == _DATA:
            self._waited += self._advance(now_ns, _BACK)
            source, self._source = self._source, None
            if self.batches is not None and source is not None and batch is not None:
                self.batches.came(batch, source)
            self._fetched, self._in_step = True, False

    # --- modules ----------------------------------------------------------------------------

    def _opens(self, module: Any, args: Any) -> None:
        if self._phase in _INSIDE:
            return
        graph, live = self._grad_is_on(), self.live
        if live is not None and (live.looks or not module.training):  # an evaluation: always
            if live.looks or graph:
                live.forward_begins(module, args)
            else:
                live.evaluates(args)
        looks = not (module.training and graph)
        if self._phase == _AFTER_LOOK and not looks:
            self._advance()
            own = self._own
            if own is None or own() is module or not self._own_graph:
                self._settle(evaluated=own is not None)
            else:
                looks = True  # of what was looked at: a loss
        if looks and not self._in_step:
            self._look_waited += self._waited
            self._has_looked = True
            if not (module.training or self._fetched) and module in self._trained:
                self._own = weakref.ref(module)
                self._own_graph |= graph
        elif not looks:  # an evaluation calls its model often, and says nothing of the steps
            self._n_calls += 1
            self._in_step = True
            self._trained.add(module)
        self._waited, self._keeps = 0, graph
        self._advance(to=_FORWARD if self._in_step else _LOOK)

    def _closes(self) -> None:
        if self._phase in (_FORWARD, _LOOK):
            looked = self._phase == _LOOK
            spent_ns = self._advance(to=_BACK)
            if looked and self._keeps and self.live is not None:
                self.live.with_graph_s += spent_ns / 1e9
            if looked and self._phase == _OTHER:
                self._phase = _AFTER_LOOK

    # --- backward, optimizer, checkpoint ------------------------------------------------------

    def _backward_begins(self, roots: Any) -> Callable[[Any], None]:
        live = self.live
        if live is not None and live.looks:
            live.backward_begins(roots)
        self._trains(_BACKWARD)
        return self._leave_event

    def _trains(self, phase: int) -> None:
        self._outer.close()
        if self._phase == _AFTER_LOOK:
            self._advance()
            self._settle(evaluated=self._own is not None and not self._own_graph)
        self._fetched = self._in_step = False
        self._advance(to=phase)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if self.live is not None and self.live.looks:
            self.live.optimizer_begins(optimizer)
        self._most_calls, self._n_calls = max(self._most_calls, self._n_calls), 0
        self._trains(_OPTIMIZER)

    def _optimizer_ended(self, *_: Any) -> None:
        self._outer.close()
        if self._phase == _OPTIMIZER:
            self._advance(to=_BACK)

    def _saves(self) -> Callable[[Any], None]:
        self._outer.close_what_raised()  # its hook is to be in no file
        self._advance(to=_CHECKPOINT)
        return self._leave_event
