"""Where a training loop's time goes, for all of it: data wait, forward, backward, optimizer …

No profiler: torch's own hooks say when the outermost module, a backward pass, an optimizer and a
DataLoader begin and end, and what is between them is ``other`` (the loss, copies, metrics,
logging). The hook for modules is taken away while one runs, so that its cost does not grow with the
model. ``tests/bench/phases_cost.py`` measures the cost: on a 2.5 GHz machine whose two cores were
busy, the hooks of a step took 0.08 to 0.13 ms after other work (medians of three runs).

Times are the thread's own, of the host. On a GPU the work of a phase is only queued in it, and the
phase that waits for the device gets the time of what it waits for.

A forward pass without gradients, or in evaluation mode, is *evaluation* if a batch is fetched after
it before any training, if one module has several in evaluation mode, or if it is both, of a module
that trains, and no batch has come since that trained. If such a pass in evaluation mode leaves
gradients on, it is one (a guess) where the module trains again before anything goes back. Without a
loader it is none if its input is less than half of what the step trains with: a policy that plays,
a few samples at a time. Otherwise it belongs to its step (a frozen teacher, labels that a model
makes for its own training, an episode played without gradients), and is forward; so does all
between a training forward pass and its backward pass (a network that is the loss), and what a model
in training mode computes of one batch before the next of the same loader, whose batches it trains
with (features of several batches for one loss). A frozen network (none of its parameters requires a
gradient) that has never trained is a part of the step however often it is called, unless a batch is
fetched after it. What modules compute in the fetch of a batch (transforms) is data wait.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from threading import get_ident
from typing import Any

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.stand_in import CallEnd
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.words import fmt_count

#: The names, in the order of :meth:`Phases.take`.
PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "checkpoint", "other")
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _EVALUATION, _CHECKPOINT, _OTHER = range(len(PHASES))
# A forward pass that may be evaluation, and what follows it; see _settle.
_LOOK, _AFTER_LOOK = len(PHASES), len(PHASES) + 1
_N = len(PHASES) + 2
# In these a module's forward pass is a part of something else …
_INSIDE = frozenset((_FORWARD, _BACKWARD, _LOOK, _EVALUATION))
# … a fetch of a batch …
_NO_FETCH = frozenset((_DATA, _EVALUATION, _LOOK))
# … and a backward pass.
_NO_BACKWARD = frozenset((_BACKWARD, _EVALUATION))
_ZEROS = (0,) * len(PHASES)
# The source of batches that :meth:`Phases.fetch_begins` tells of.
_THE_LOOPS = object()
# A step that calls so many modules from outside of a module makes telling them apart too dear, if
# what that costs is more than this share of the step. 80 µs a call is the upper end of what
# tests/bench/phases_cost.py saw ("one module, after other work") on a 2.5 GHz machine whose two
# cores were busy: median 33 and 43 µs in two runs, 13 to 77 µs in 95 % of the blocks.
_MOST_CALLS = 40
_CALL_NS = 80_000
_MOST_COST = 0.02
# Modules that are remembered when those that are gone are forgotten.
_FORGET_EVERY = 1000
# More looks of one module than this in evaluation mode before training goes on are an evaluation,
# also without a DataLoader. Those of several modules may be a frozen part of the step, and those in
# training mode the episodes of reinforcement learning.
_MOST_LOOKS = 3
# … unless what the step trains with is more than so many times their input.
_SMALL = 2


class Phases:
    """Adds up the time of the thread that started it, by phase, from the first of them on.

    It cannot raise into the program: where it fails it takes its hooks away, and :attr:`failure`
    says why.

    Args:
        now: the clock, in nanoseconds.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._instrument = Instrument("the phases of the steps", switch_off=self._silence)
        self._thread_id = 0
        self._undo: list[Callable[[], None]] = []
        self._may_go: tuple[Callable[[], None], ...] = ()
        self._ns = [0] * _N
        self._phase = _OTHER
        self._stack: list[int] = []
        self._since = 0
        self._waited = 0  # for data, since the last forward pass
        self._look_waited = 0  # of it, before looks that are not settled
        self._n_looks = 0
        # modules by id, which may go to another one when they are gone
        self._trained: dict[int, weakref.ref[Any]] = {}  # a loss may be a module, too
        # looks of it that were in evaluation mode
        self._evaluated: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._n_evaluated = 0  # the most of one that is not frozen
        self._has_sure_look = False  # … because it trains itself
        # looked at with gradients on, and trains itself: an evaluation if nothing goes back before
        self._own_looks: dict[int, weakref.ref[Any]] = {}
        # elements of the input: the largest of the counted looks, and of what the step trains with
        self._look_size = 0.0
        self._train_size = 0
        #: Some evaluation is one by its many forward passes alone: it may be a policy that plays.
        self.guesses_evaluation = False
        self._frozen: dict[int, weakref.ref[Any]] = {}  # no parameter of it requires a gradient
        self._in_step = False  # a training forward pass has been, and not yet its backward pass
        self._n_calls = 0
        self._n_updates: Counter[int] = Counter()  # in the step, of each optimizer, by its id
        self._fetched = False  # a batch has come since something trained
        # what gave the last batch, and the last one that something trained with
        self._source: object = None
        self._trained_on: object = None
        self._fetched_elsewhere = False  # from another source, since something trained
        self._modules_on: Callable[[], None] = _nothing
        self._modules_off: Callable[[], bool] = _were_off
        self._open: Any = None  # where the hook is of the outermost module, while it runs
        self._sees_modules = True
        self.stops_at_modules = False
        self.calls_at_the_end = 0  # of modules, in the step at which it stopped
        self._is_told = False
        #: called with module and input before a module that no other one calls; must not raise
        self.on_forward: Callable[[Any, Any], None] | None = None

    @property
    def doubt(self) -> str:
        """Why forward passes are not told apart; empty where they are."""
        if not self.stops_at_modules:
            return ""
        return (
            "forward passes are not told apart: one step of this code called "
            f"{fmt_count(self.calls_at_the_end)} modules by themselves, and watching each would "
            "slow such steps; "
            "their time is in other, and in the optimizer where that calls them"
        )

    def told(self, ns: Sequence[int]) -> tuple[int, ...]:
        """Times of :data:`PHASES` of a whole run, as far as they are known."""
        found = list(ns)
        if self.stops_at_modules and found:
            # an evaluation that a trainer announces is known
            for unknown in (_FORWARD,) if self._is_told else (_FORWARD, _EVALUATION):
                found[_OTHER] += found[unknown]
                found[unknown] = 0
        return tuple(found)

    @property
    def failure(self) -> Failure | None:
        """Why it measures no more; None where it does."""
        return self._instrument.failure

    @property
    def is_on(self) -> bool:
        """Whether it measures."""
        return bool(self._undo)

    @property
    def current(self) -> str:
        """The phase that runs; may be asked for in any thread."""
        return PHASES[self._phase] if self._phase < len(PHASES) else "evaluation"

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
        self._phase, self._since = _OTHER, 0
        self._ns = [0] * _N
        self._waited = 0
        self._forget_looks()
        self._stack.clear()

    def _hook_all(self) -> None:
        import torch
        from torch.optim import optimizer

        # these run some times a step: what they need is looked up once
        self._is_compiling = torch.compiler.is_compiling
        self._is_tracing = torch_compat.jit_tracing_reader()
        self._grad_is_on = torch.is_grad_enabled
        self._graph_task = torch_compat.graph_task_id_reader()
        self._modules_on, self._modules_off = torch_compat.module_hook_switch(
            _before_module(weakref.ref(self))
        )
        self._put_end, self._take_end = torch_compat.forward_end_switch(_AtTheEnd(self))
        # one by one: where one fails, those before it are taken away
        self._undo.append(self._see_no_modules)
        self._undo.append(torch_compat.watch_loader_iterators(self._before_fetch))
        self._undo.append(torch_compat.watch_backward(self._before_backward))
        self._undo.append(torch_compat.watch_saves(self._before_save))
        self._undo.append(torch_compat.watch_compiled_modules(self._before_compiled))
        self._may_go = tuple(self._undo)  # at any time
        before = optimizer.register_optimizer_step_pre_hook(self._before_optimizer)
        self._undo.append(before.remove)
        after = optimizer.register_optimizer_step_post_hook(self._after_optimizer)
        self._undo.append(after.remove)
        self._see_modules()

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        with self._instrument.guard("ending"):
            if self._undo:
                self._advance()
                self._settle(evaluated=True)
        self._unhook()

    def rest(self) -> None:
        """Measure no more, from now on; called between two steps, also within one of torch's hooks.

        The hooks of optimizers stay until :meth:`stop`, and do nothing. Not called where
        torch.compile may be at work: it builds guards on the hook for modules, which goes.
        """
        self._silence()

    def _silence(self) -> None:
        """Maybe within torch's loop over the hooks of optimizers, which stay."""
        self._thread_id = 0  # and do nothing, as in a thread that is not watched
        for call in self._may_go:
            with suppress(Exception):  # the failure is known; the others go all the same
                call()

    def _failed(self, error: Exception, during: str) -> None:
        """A hook of ours raised: the program goes on without the phases."""
        self._instrument.fail(error, during)

    def _unhook(self) -> None:
        self._thread_id = 0
        with self._instrument.guard("ending"):
            surely(self._unhook_all)

    def _unhook_all(self) -> None:
        undo, self._undo, self._may_go = self._undo, [], ()
        for call in undo:
            with self._instrument.guard("ending"):
                call()
        self._modules_on, self._modules_off = _nothing, _were_off

    def take(self, until_ns: int | None = None) -> tuple[int, ...]:
        """Nanoseconds of each of :data:`PHASES` since the last call; a step is over.

        What an optimizer that raised had left open is closed.

        Args:
            until_ns: when the step ended, where that is not now.
        """
        self._advance(until_ns)
        if self._stack and self._phase != _EVALUATION:
            self._stack.clear()
            self._phase = _OTHER
        if self._phase == _AFTER_LOOK or (self._n_looks and self._phase == _OTHER):
            self._settle_by_count()
        self._in_step = False
        if self._n_calls > _MOST_CALLS and self._sees_modules and self._undo:
            self._stop_at_modules_that_are_dear()
        self._n_updates.clear()
        self._n_calls = self._waited = 0
        ns = self._ns
        taken = tuple(ns[: len(PHASES)])
        ns[: len(PHASES)] = _ZEROS
        return taken

    def _stop_at_modules_that_are_dear(self) -> None:
        # a network that trains several times in one step of another one: each is a step of its own
        n_calls = self._n_calls // max(self._n_updates.values(), default=1)
        dear = self._n_calls * _CALL_NS > _MOST_COST * sum(self._ns[: len(PHASES)])
        if n_calls > _MOST_CALLS and dear:
            self._sees_modules, self.stops_at_modules = False, True
            self.calls_at_the_end = n_calls
            self._see_no_modules()

    def skip(self, now_ns: int) -> None:
        """The time since the step ended, until now, belongs to no phase."""
        self._since = now_ns

    def begin(self, phase: str) -> None:
        """A phase begins here that no hook shows; :meth:`end` ends it."""
        if not self._undo:
            return
        number = PHASES.index(phase)
        self._is_told = True
        self._advance()
        if number == _EVALUATION:  # its loader has been started before
            waited = min(self._waited, self._ns[_DATA])
            self._ns[_DATA] -= waited
            self._ns[_EVALUATION] += waited
        self._waited = 0
        self._enter(number)

    def end(self) -> None:
        """The phase that :meth:`begin` began ends here."""
        if self._undo:
            self._leave()

    def fetch_begins(self, now_ns: int) -> None:
        """The loop asks for a batch, of whatever loader."""
        if self._undo:
            self._begin_fetch(_THE_LOOPS, now_ns)

    def fetch_ends(self, now_ns: int) -> None:
        """The batch has come."""
        if self._undo:
            self._end_fetch(now_ns)

    def was_evaluation(self) -> None:
        """All since the last :meth:`take` was evaluation, or a checkpoint."""
        if not self._undo:
            return
        self._is_told = True
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

    def _advance(self, until_ns: int | None = None) -> int:
        now = self._now() if until_ns is None else until_ns
        if not self._since:
            self._since = now  # the first event: what was before it is set-up
        passed = now - self._since
        if passed <= 0:
            return 0
        self._ns[self._phase] += passed
        self._since = now
        return passed

    def _enter(self, phase: int) -> None:
        self._advance()
        self._stack.append(self._phase)
        self._phase = phase

    def _leave(self) -> None:
        self._advance()
        self._phase = self._stack.pop() if self._stack else _OTHER

    def _settle(self, *, evaluated: bool) -> None:
        """Forward passes that might have been evaluation were, or belong to the step."""
        ns = self._ns
        if self._n_looks:
            if evaluated:
                waited = min(self._look_waited, ns[_DATA])
                ns[_DATA] -= waited
                ns[_EVALUATION] += ns[_LOOK] + ns[_AFTER_LOOK] + waited
            else:
                ns[_FORWARD] += ns[_LOOK]
                ns[_OTHER] += ns[_AFTER_LOOK]
            ns[_LOOK] = ns[_AFTER_LOOK] = 0
            self._forget_looks()
        self._look_waited = 0

    def _settle_by_count(self, *, nothing_went_back: bool = False) -> None:
        """Training goes on, and no batch of a loader says what the forward passes were."""
        looked = nothing_went_back or self._n_evaluated > _MOST_LOOKS
        evaluated = looked and _SMALL * self._look_size >= self._train_size
        if evaluated and not self._has_sure_look:
            self.guesses_evaluation = True
        self._settle(evaluated=evaluated)
        self._phase = _OTHER

    def _forget_looks(self) -> None:
        self._n_looks = self._n_evaluated = self._look_waited = 0
        self._look_size, self._has_sure_look = 0.0, False
        self._own_looks.clear()
        self._evaluated.clear()

    # --- DataLoaders ------------------------------------------------------------------------

    # These catch what is their own without a guard, which costs as much as all the rest of them.

    def _before_fetch(self, is_batch: bool, source: Any) -> CallEnd | None:
        if self._phase in _NO_FETCH or get_ident() != self._thread_id:
            return None
        try:
            self._begin_fetch(weakref.ref(source) if is_batch else None)
        except Exception as error:
            self._failed(error, "the begin of a fetch")
        return self._after_fetch

    def _after_fetch(self, _: Any) -> None:
        try:
            self._end_fetch()
        except Exception as error:
            self._failed(error, "the end of a fetch")

    def _begin_fetch(self, source: object, now_ns: int | None = None) -> None:
        if self._open is not None:
            self._close_forward()
        self._modules_off()  # transforms may be modules, some for each sample
        self._advance(now_ns)
        self._source = source
        if source is not self._trained_on:
            self._fetched_elsewhere = True
        if self._phase == _AFTER_LOOK:
            # modules in evaluation mode are counted in self._evaluated
            of_steps = self._trained_on is not None and not self._evaluated
            self._settle(evaluated=not of_steps or self._fetched_elsewhere)
            self._phase = _OTHER
        self._stack.append(self._phase)
        self._phase = _DATA

    def _end_fetch(self, now_ns: int | None = None) -> None:
        if self._open is None and self._sees_modules and self._thread_id:
            self._modules_on()
        if self._phase == _DATA:
            self._waited += self._advance(now_ns)
            self._fetched, self._in_step = True, False
            self._phase = self._stack.pop() if self._stack else _OTHER

    # --- modules ----------------------------------------------------------------------------

    def _see_modules(self) -> None:
        if self._sees_modules and self._thread_id:  # else it has ended, or failed
            self._modules_on()

    def _see_no_modules(self) -> None:
        self._modules_off()
        hooks, self._open = self._open, None
        if hooks is not None:
            self._take_end(hooks)

    def _before_compiled(self, module: Any) -> CallEnd | None:
        if get_ident() != self._thread_id:
            return None
        phase, hooked = self._phase, False
        try:
            hooked = self._modules_off()  # it warns of hooks
            self._begin_compiled(module)
        except Exception as error:
            self._failed(error, "the begin of a compiled module")

        def after(_: Any) -> None:
            try:
                self._end_compiled(phase, hooked)
            except Exception as error:
                self._failed(error, "the end of a compiled module")

        return after

    def _begin_compiled(self, module: Any) -> None:
        if self._sees_modules and self._phase not in _INSIDE and self._undo:
            self._opens(module)

    def _end_compiled(self, phase: int, hooked: bool) -> None:
        if phase not in _INSIDE:
            self._closes()
        if hooked:
            self._see_modules()

    def _forward_begins(self, module: Any, args: Any) -> None:
        if get_ident() != self._thread_id or self._phase in _INSIDE:
            return
        try:
            if self._is_tracing():
                return  # the size of its input is a part of what is traced
            if self._graph_task() >= 0:
                return  # a checkpointed part is computed again, in backward
            if self.on_forward is not None:
                self.on_forward(module, args)
            # a hook of this module alone, while it runs: those inside it run at full speed
            self._modules_off()
            self._open = self._put_end(module)
            self._opens(module, _size(args))
        except Exception as error:
            self._failed(error, "the begin of a forward pass")

    def _opens(self, module: Any, size: int = 0) -> None:
        """A forward pass begins, of an input of so many elements; 0 where that is not known."""
        looks = not module.training or not self._grad_is_on()
        self._advance()
        if not (looks or self._in_step):  # what a loss is called with may be larger
            self._train_size = size
        if self._phase == _AFTER_LOOK and not looks:
            trains_again = _is_in(self._own_looks, module)
            if trains_again or not self._own_looks:
                self._settle_by_count(nothing_went_back=trains_again)
            else:
                looks = True  # of what was looked at: a loss
        if looks:
            self._look_waited += self._waited
            self._n_looks += 1
            if not (module.training or self._in_step):
                # what trains, in evaluation mode and without gradients: that is no teacher
                own = not self._fetched and self._has_trained(module)
                sure = own and not self._grad_is_on()
                self._has_sure_look |= sure
                if own and not sure:
                    _note(self._own_looks, module)
                self._look_size = max(self._look_size, size or math.inf)
                self._count_evaluated(module, sure=sure)
        else:  # an evaluation calls its model often, and says nothing of the steps
            self._n_calls += 1
            self._in_step = True
            if not self._has_trained(module):
                self._note_trained(module)
        self._waited = 0
        self._stack.append(self._phase)
        self._phase = _LOOK if looks else _FORWARD

    def _count_evaluated(self, module: Any, *, sure: bool) -> None:
        one, n = self._evaluated.get(id(module), (None, 0))
        if one is None or one() is not module:
            one, n = weakref.ref(module), 0
        n += _MOST_LOOKS + 1 if sure else 1
        self._evaluated[id(module)] = one, n
        if n > _MOST_LOOKS >= self._n_evaluated and (sure or not self._is_frozen(module)):
            self._n_evaluated = n

    def _is_frozen(self, module: Any) -> bool:
        """Whether it is a fixed part of the steps; its parameters are looked at once a run."""
        if _is_in(self._frozen, module):
            return True
        parameters = iter(module.parameters())
        first = next(parameters, None)  # what has none may be anything
        if first is None or first.requires_grad or any(p.requires_grad for p in parameters):
            return False
        if self._has_trained(module):
            return False
        _note(self._frozen, module)
        return True

    def _has_trained(self, module: Any) -> bool:
        return _is_in(self._trained, module)

    def _note_trained(self, module: Any) -> None:
        _note(self._trained, module)
        self._frozen.pop(id(module), None)

    def _forward_ended(self, module: Any, args: Any, result: Any) -> None:
        if get_ident() != self._thread_id:
            return
        try:
            self._close_forward()
        except Exception as error:
            self._failed(error, "the end of a forward pass")

    def _close_forward(self) -> None:
        """The outermost module has ended, maybe by raising."""
        if self._open is None:
            return
        self._take_end(self._open)
        self._open = None
        self._closes()
        self._see_modules()

    def _closes(self) -> None:
        if self._phase in (_FORWARD, _LOOK):
            looked = self._phase == _LOOK
            self._leave()
            if looked and self._phase == _OTHER:
                self._phase = _AFTER_LOOK

    # --- backward, optimizer, checkpoint ------------------------------------------------------

    def _before_backward(self) -> CallEnd | None:
        if self._phase in _NO_BACKWARD or get_ident() != self._thread_id:
            return None
        try:
            self._trains(_BACKWARD)
        except Exception as error:
            self._failed(error, "the begin of a backward pass")
        return self._after_it

    def _after_it(self, _: Any) -> None:
        """A backward pass or a checkpoint has ended."""
        try:
            self._leave()
        except Exception as error:
            self._failed(error, f"the end of {self.current}")

    def _trains(self, phase: int) -> None:
        if self._open is not None:
            self._close_forward()
        self._advance()
        if self._phase == _AFTER_LOOK:
            self._settle_by_count()
        self._fetched = self._in_step = self._fetched_elsewhere = False
        self._trained_on = self._source
        self._stack.append(self._phase)
        self._phase = phase

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._phase == _EVALUATION or get_ident() != self._thread_id or self._is_compiling():
            return
        try:
            self._n_updates[id(optimizer)] += 1
            self._trains(_OPTIMIZER)
        except Exception as error:
            self._failed(error, "the begin of an optimizer's step")

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() != self._thread_id or self._is_compiling():
            return
        try:
            if self._open is not None:
                self._close_forward()
            if self._phase == _OPTIMIZER:
                self._leave()
        except Exception as error:
            self._failed(error, "the end of an optimizer's step")

    def _before_save(self) -> CallEnd | None:
        if self._phase == _CHECKPOINT or get_ident() != self._thread_id:
            return None
        try:
            if self._open is not None and not torch_compat.forward_runs(self._open):
                self._close_forward()  # it raised: the hook is to be in no file
            self._enter(_CHECKPOINT)
        except Exception as error:
            self._failed(error, "the begin of a checkpoint")
        return self._after_it


class _AtTheEnd:
    """The hook at the end of the outermost module's forward pass.

    Where that raised, the hook stays on the module until the next event. Whoever copies or saves
    the module meanwhile gets a function in its place that does nothing, and that needs no perfkit
    to be loaded.
    """

    __slots__ = ("_phases",)

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def __call__(self, module: Any, args: Any, result: Any) -> None:
        self._phases._forward_ended(module, args, result)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def _before_module(phases: weakref.ref[Phases]) -> Callable[[Any, Any], None]:
    """The hook before every module; a function that torch.compile can look through."""
    import torch

    def before(module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        one = phases()
        if one is not None:
            one._forward_begins(module, args)

    return before


def _size(args: Any) -> int:
    """Elements of the first tensor among a module's arguments; 0 where there is none."""
    for arg in args:
        one: Any = next(iter(arg.values()), None) if isinstance(arg, dict) else arg
        if hasattr(one, "numel"):
            return int(one.numel())
    return 0


def _is_in(modules: dict[int, weakref.ref[Any]], module: Any) -> bool:
    one = modules.get(id(module))
    return one is not None and one() is module


def _note(modules: dict[int, weakref.ref[Any]], module: Any) -> None:
    # No callback tells of its end: in there Python would ignore a Ctrl-C. Some make a new loss for
    # each step, and a run may have millions.
    if modules and len(modules) % _FORGET_EVERY == 0:
        for key in [key for key, one in modules.items() if one() is None]:
            del modules[key]
    modules[id(module)] = weakref.ref(module)


def _nothing() -> None:
    pass


def _were_off() -> bool:
    return False
