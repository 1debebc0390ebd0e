"""Counts the memory behind tensors while some code runs, by what it is for.

A dispatch mode sees the results of every operator; a weak reference on each storage tells when
its memory goes. Views do not count twice, and a storage that is resized counts with its new
size from then on.

How the category of a storage is decided, the first that applies:

parameters
    of any ``nn.Module`` that was made in the region, was called, or is alive at its start, its
    first backward pass or its end; any ``nn.Parameter`` alive then, unless only an optimizer
    holds it; and what an optimizer was given.
gradients
    seen as the ``.grad`` of a parameter (or of another leaf that requires one) at the end of a
    backward pass, when an optimizer steps, or at the region's start or end.
optimizer state
    seen in ``optimizer.state`` after a step, or at the region's start, first backward pass or
    end; then also an ``nn.Parameter`` of no module that another package's optimizer holds.
buffers
    of any ``nn.Module``, as its parameters.
inputs
    handed to a module that was not called by another module, and not computed by autograd or
    by a module; or first seen as an operator's argument (it came from numpy, a DataLoader's
    worker or another thread); or made outside of modules, untouched by autograd, not from
    weights alone, and alive when a backward pass began (targets, masks, a batch on its device).
activations
    made in a forward pass (by an operator that autograd records, or inside a module) and
    alive when a backward pass began; recomputed during it (checkpointing); recorded by autograd
    and alive at the region's end; or in an autograd graph (its result, or kept by it) at the
    region's start.
temporary
    made in the region, none of the above, and freed in it: gradients of activations,
    workspaces, intermediate results and copies of weights.
other
    none of the above and alive at the region's end, or there before it.

What it does not see: memory that an operator takes and returns inside itself (workspaces of
convolutions), tensors of other threads until an operator of this one touches them, and what a
replayed CUDA graph does. Backward passes are seen: on a CPU they run in the calling thread; on
CUDA they run in one thread per device, to which autograd carries the caller's modes (part of
``at::ThreadLocalState``). What they make there has the line that called the backward pass, where
no line of the user's runs in that thread. Of code compiled by ``torch.compile`` only what it takes
and returns is seen; its inner tensors, and what its forward keeps for its backward, are not.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, UntypedStorage, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perfkit.base import torch_compat
from perfkit.base.backward_passes import BackwardPasses
from perfkit.base.device import is_capturing
from perfkit.base.ignored_warnings import ignore_warnings
from perfkit.base.instrument import Instrument
from perfkit.base.stack import looking
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.user_code import is_user_code
from perfkit.memory.categories import (
    ACTIVATIONS,
    BUFFERS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    UNDECIDED,
)
from perfkit.memory.ledger import BEFORE, Block, Ledger, Place
from perfkit.memory.paths import module_paths
from perfkit.memory.storages import shown_bytes, storages_of
from perfkit.memory.survey import Survey, module_tensors, optimizer_tensors, survey, tensors_in

if TYPE_CHECKING:

    class _DispatchMode:
        """What torch's class does not tell a type checker."""

        def __init__(self) -> None: ...
        def __enter__(self) -> Self: ...

        was_lost: bool

else:
    _DispatchMode = torch_compat.dispatch_mode_class()

# Phases: where a block was made. BEFORE is 0, in ledger.py.
_ARRIVED, _DATA, _NO_GRAD, _MODULE, _RECORDED, _BACKWARD, _RECOMPUTED, _OPTIMIZER = range(1, 9)
# … outside of modules, from weights alone: an average of them, a snapshot, their norms
_OF_WEIGHTS = 9
_MAY_BE_INPUT = frozenset({BEFORE, _ARRIVED, _DATA, _NO_GRAD, _OF_WEIGHTS})
_COMPUTED = frozenset({_MODULE, _RECORDED})
_FORWARD = _COMPUTED | {_DATA}
_IN_BACKWARD = frozenset({_BACKWARD, _RECOMPUTED})
# What has a size of its own, whatever the batch is.
_WEIGHTS = frozenset({PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS})
_FIXED = frozenset({_OPTIMIZER, _OF_WEIGHTS})

# What is taken for a part of the batch, and outlives more steps of optimizers than this, is none:
# several losses, and several steps of one, may share a batch.
_MOST_STEPS = 8

# Of what one line made in several steps and nobody has let go, so many may belong to the batch: a
# line of a library stands for all that is made below it, for two losses of a GAN, say.
_MOST_BATCHES = 2

# What stands for a module, and for a line, where there is none.
_NO_MODULE = {
    BEFORE: "(there before)",
    _ARRIVED: "(made elsewhere)",
    _BACKWARD: "(backward pass)",
    _OPTIMIZER: "(optimizer step)",
}
_OUTSIDE = "(outside of modules)"
# One storage may be of several modules: a flat buffer of gradients, an optimizer's flat history.
_SHARED = "(shared by modules)"
_OF_ALL = "(of all parameters)"
_UNOWNED = frozenset({*_NO_MODULE.values(), _OUTSIDE})
_NO_LINE: dict[int, Place] = {
    BEFORE: ("", 0, "(there before)"),
    _ARRIVED: ("", 0, "(made elsewhere)"),
}
_NO_USER_LINE: Place = ("", 0, "(no line of yours)")

#: Phases by the name under which a curve shows them.
PHASES = {
    BEFORE: "before",
    _ARRIVED: "forward",
    _DATA: "forward",
    _NO_GRAD: "no grad",
    _MODULE: "forward",
    _RECORDED: "forward",
    _BACKWARD: "backward",
    _RECOMPUTED: "backward",
    _OPTIMIZER: "optimizer",
    _OF_WEIGHTS: "no grad",
}

# Kinds of argument and result types.
_NO_TENSOR, _PLAIN, _SEQUENCE, _ODD = range(4)

# What an operator can do to storages (torch_compat.makes_storage), or it fills one, or adds to one.
_NOTHING, _NEW, _RESIZE, _COPY, _ADD = range(5)

# What a backward pass adds two gradients with where it may change neither of them.
_SUM = torch.ops.aten.add.Tensor

# Forward blocks that wait for a backward pass, before the freed among them are dropped: a loop
# without backward must not collect them for ever.
_PENDING_AT_MOST = 20_000

# Sums of one backward pass that wait for its end, which says what they were for. A recurrent net
# makes one a step.
_SUMS_AT_MOST = 20_000


class Tracker(_DispatchMode):
    """Counts between :meth:`start` and :meth:`stop`, in the thread that started it.

    Attributes:
        ledgers: one book per device, filled while it runs.
        n_operators: operators seen that could have made a tensor.
        n_steps: optimizer steps seen; those within one backward pass count as one.
        n_unreadable: tensors met whose storage cannot be seen, with repetitions.
        unseen_bytes: storages alive at the end that no operator has touched since they were
            made elsewhere; they are not counted.
        compiled: compiled code exists, so it may have run uncompiled here.
        cuda_graphs: a CUDA graph exists, and its replays are not seen.
        cut_short: existing autograd graphs were too large to be counted in full.
        instrument: its guard: a fault of the tracker's own ends the counting, never the step.
    """

    # exceptions of ours that are meant for the user
    _let_pass: tuple[type[Exception], ...] = ()
    # a function of ours beyond which no line of the user's has made anything
    _outermost: CodeType | None = None

    # torch would refuse flex_attention, cond and the like under a mode that is silent on them
    supports_higher_order_operators = True

    def __init__(self, *, max_steps: int | None = None, watch: Iterable[CodeType] = ()) -> None:
        """Nothing happens before :meth:`start`.

        Args:
            max_steps: stop counting after so many optimizer steps; the code runs on.
            watch: functions by whose lines is counted, too; the whole stack is then looked at.
        """
        super().__init__()
        self.ledgers: dict[torch.device, Ledger] = {}
        self.n_operators = 0
        self.n_steps = 0
        self.n_unreadable = 0
        self.unseen_bytes = 0
        self.compiled = False
        self.cuda_graphs = False
        self.cut_short = False
        self.instrument = Instrument(
            "the memory tracker", switch_off=self._switch_off, let_pass=self._let_pass
        )
        self._max_steps = max_steps
        self._running = False
        self._ended = False
        self._counting = False
        self._thread = 0
        self._on_last_step: Callable[[], None] | None = None
        self._on_backward: Callable[[list[Block]], None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._live: dict[int, Block] = {}
        self._pending: list[Block] = []
        self._kinds: dict[type, int] = {Tensor: _PLAIN, nn.Parameter: _PLAIN}
        self._makes: dict[int, int] = {}
        self._functions: list[Any] = []  # keeps the ids of _makes valid
        self._task_id = torch_compat.graph_task_id_reader()
        self._is_tracing = torch_compat.jit_tracing_reader()
        self._task = -1
        self._stack: list[int] = []
        self._modules: set[int] = set()
        self._paths: dict[int, str] = {}
        self._path_of_parameter: dict[int, str] = {}
        self._roots: dict[int, str] = {}
        self._known_optimizers: list[weakref.ref[Optimizer]] = []
        self._watch = {id(code): code for code in watch}
        # instruction -> line; the code objects are kept, so that their ids stay valid
        self._places: dict[tuple[int, int], Place] = {}
        self._codes: dict[int, CodeType] = {}
        self._parameters: dict[int, weakref.ref[Tensor]] = {}
        self._weights: set[int] = set()  # those of them that no batch goes through
        self._optimizers: dict[int, int] = {}
        self._in_step = False
        self._passes: BackwardPasses | None = None
        self._stepped_in_pass = False
        self._step_made: list[Block] = []
        self._guessed: list[tuple[int, Block]] = []  # inputs, as it seems, since which step
        self._sums: list[tuple[Block, Block]] = []  # of a backward pass: a part, what it went into
        self._gradients_known = False
        self._has_looked = False  # around, at the first backward pass
        # Blocks whose storage has died, until the next look. What a weak reference calls must not
        # be Python code: a signal's handler would run in it, and Python ignores what that raises.
        self._dead: deque[Block] = deque()

    # --- the region ---------------------------------------------------------------------

    def start(
        self,
        *,
        modules: Iterable[nn.Module] = (),
        optimizers: Iterable[Optimizer] = (),
        names: Mapping[str, nn.Module] | None = None,
        on_last_step: Callable[[], None] | None = None,
        on_backward: Callable[[list[Block]], None] | None = None,
    ) -> None:
        """Take stock of all tensors, modules and optimizers (20 to 100 ms) and begin to count.

        Args:
            modules: models that are known; their children count too.
            optimizers: optimizers that are known.
            names: modules by the names under which the user knows them.
            on_last_step: called once counting has ended because of ``max_steps``.
            on_backward: called when a backward pass begins, with what is alive of the forward pass.
        """
        self._on_last_step = on_last_step
        self._on_backward = on_backward
        try:
            with Uninterrupted():
                self._start(modules, optimizers, names or {})
        except BaseException:  # Ctrl-C meanwhile
            self.stop()
            raise

    def _start(
        self,
        modules: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        names: Mapping[str, nn.Module],
    ) -> None:
        self._thread = threading.get_ident()
        self._running = self._counting = True
        self._ended = False
        self._roots = {id(module): name for name, module in names.items()}
        self._take_stock(self._survey())
        for module in modules:
            self._know_paths(module.modules())
            for child in module.modules():
                self._label_all(module_tensors(child), before=True)
        for optimizer in optimizers:
            self._know_optimizer(optimizer, before=True)
        self._label_gradients(before=True)
        try:
            self._hook()
            self.__enter__()
        except BaseException:
            self._unhook()
            self._counting = self._running = False
            raise

    def stop(self) -> None:
        """End counting, label what can be labelled now, and leave no mode or hook behind."""
        surely(self._stop)

    def _stop(self) -> None:
        if not self._running:
            return
        self._running = False
        try:
            self.end()
        finally:
            self._unhook()
            self._on_last_step = self._on_backward = None  # they lead back here
            self._live.clear()
            self._dead.clear()
            self._pending.clear()
            self._step_made.clear()
            self._guessed.clear()
            self._sums.clear()
            self._parameters.clear()
            self._weights.clear()

    def end(self) -> None:
        """End counting and evaluate, leaving the hooks to :meth:`stop`."""
        if self._ended:
            return
        with Uninterrupted():
            self._ended, self._counting = True, False
            if self._passes is None:
                torch_compat.leave_dispatch_mode(self)
            else:
                self._passes.after(partial(torch_compat.leave_dispatch_mode, self))
            with self.instrument.guard("end"):
                self._evaluate()

    def _switch_off(self) -> None:
        self._counting = False

    def _evaluate(self) -> None:
        self.bury_dead()
        for block in self._pending:
            if block.alive and block.phase == _RECORDED:
                _label(block, ACTIVATIONS)
        for block in list(self._live.values()):
            storage = block()
            if storage is None:  # Ctrl-C came as it was to be booked
                self._bury(block)
            elif storage.nbytes() != block.nbytes:
                self._resized(storage)
        seen = self._survey()
        self._know_paths(seen.modules)
        self._label_gradients()
        for ref in self._known_optimizers:
            optimizer = ref()
            if optimizer is not None:
                self._own_state(optimizer)
        self._take_leave(seen)

    def fold(self) -> None:
        """Evaluate the books so far, which lets go of the entries of what has been freed."""
        self.bury_dead()
        for ledger in self.ledgers.values():
            ledger.fold()

    def living(self) -> list[Block]:
        """The blocks made in the region so far that are alive."""
        self.bury_dead()
        return [block for block in list(self._live.values()) if block.phase != BEFORE]

    def _hook(self) -> None:
        guarded = self.instrument.hook
        handles = (
            register_module_parameter_registration_hook(guarded(self._before_parameter)),
            register_module_buffer_registration_hook(guarded(self._before_buffer)),
            register_module_forward_pre_hook(guarded(self._before_forward)),
            register_optimizer_step_pre_hook(guarded(self._before_step)),
            register_optimizer_step_post_hook(guarded(self._after_step)),
        )
        self._undo.extend(handle.remove for handle in handles)
        self._passes = BackwardPasses(self.instrument)
        self._undo.append(self._passes.close)
        self._undo.append(torch_compat.lengths_as_lists())
        # always_call: the stack must come back when a forward raises
        after = register_module_forward_hook(
            guarded(self._after_forward), with_kwargs=True, always_call=True
        )
        self._undo.append(lambda: torch_compat.forget_forward_hook(after))
        self._undo.append(torch_compat.watch_storage_resize(guarded(self._grown_or_shrunk)))
        self._undo.append(torch_compat.watch_swapped_tensors(guarded(self._before_swap)))
        # a compiled module warns about global hooks; these do not ask the user for anything
        self._undo.append(ignore_warnings(r"Using `torch.compile\(module\)` when there are"))

    def _unhook(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _survey(self, *, graphs: bool = True) -> Survey:
        return survey(graphs=graphs)

    def _find(self, tensor: Tensor) -> tuple[UntypedStorage, ...] | None:
        return storages_of(tensor)

    def _book(self, device: torch.device) -> Ledger | None:
        if device.type == "meta":
            return None
        return Ledger(fixed_phases=_FIXED, unsure_phase=_DATA)

    def _take_stock(self, seen: Survey) -> None:
        for tensor, category in seen.tensors:
            self._label(tensor, UNDECIDED if category is None else category, before=True)
        weights = {id(tensor) for tensor, category in seen.tensors if category == PARAMETERS}
        for parameter in seen.parameters:
            self._know_parameter(parameter, is_weight=id(parameter) in weights)
        self._know_paths(seen.modules)
        self._remember(seen)

    def _look_around(self) -> None:
        """What was made in the region so far may be gone at its end, and is known now."""
        self._has_looked = True
        seen = self._survey(graphs=False)
        self._label_seen(seen)
        self._know_paths(seen.modules)

    def _take_leave(self, seen: Survey) -> None:
        self.unseen_bytes = sum(self._label_seen(seen).values())
        self._remember(seen)

    def _label_seen(self, seen: Survey) -> dict[int, int]:
        """Label what has a block; the sizes of the other storages, by their ids."""
        unseen: dict[int, int] = {}
        for tensor, category in seen.tensors:
            storages = self._find(tensor) or ()
            self.bury_dead()
            for storage in storages:
                block = self._live.get(id(storage))
                if block is None:
                    unseen[id(storage)] = storage.nbytes()
                elif category is not None and category != ACTIVATIONS:
                    # what a graph still holds was labelled by phase, which knows inputs
                    _label(block, category)
        return unseen

    def _remember(self, seen: Survey) -> None:
        self.compiled |= seen.compiled
        self.cuda_graphs |= seen.cuda_graphs
        self.cut_short |= seen.cut_short

    # --- operators ----------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # A training step comes through here some hundred times: a view or an in-place operator
        # costs one look-up, any other about 100 ns a tensor.
        # The user's call stands outside of what may fail here.
        try:
            makes = self._makes.get(id(func))
            if makes is None:
                makes = self._learn(func)
            if makes >= _COPY:
                if self._counting:
                    if makes == _COPY:
                        self._copied(*args[:2])
                    elif self._task_id() >= 0:
                        self._added(*args[:2])
                makes = _NOTHING
            if makes != _NOTHING and self._counting:
                self.n_operators += 1
                live, kinds, dead = self._live, self._kinds, self._dead
                if dead:
                    self.bury_dead()
                task = self._task_id()
                if task != self._task:
                    self._turn(task)
                for value in args:
                    kind = kinds.get(type(value))
                    if kind == _PLAIN:
                        try:
                            storage = value.untyped_storage()
                            if dead:  # perhaps what had its address
                                self.bury_dead()
                            if id(storage) not in live:
                                self._meet(value)
                        except NotImplementedError:  # a sparse or opaque layout
                            self._meet(value)
                    elif kind != _NO_TENSOR:
                        self._meet_any(value)
                storage = None  # it must not live longer than the operator lets it
        except self._let_pass:
            raise
        except Exception as error:
            self.instrument.fail(error, "looking at an operator's arguments")
            makes = _NOTHING
        result = func(*args, **kwargs) if kwargs else func(*args)
        if makes == _NOTHING or not self._counting:
            return result
        try:
            kind = kinds.get(type(result))
            if kind == _PLAIN and makes == _NEW:
                try:
                    storage = result.untyped_storage()
                    if dead:
                        self.bury_dead()
                    if id(storage) not in live:
                        self._made(storage, args)
                        if task >= 0 and func is _SUM:
                            self._added(result, *args[:2])
                except NotImplementedError:
                    self._made_any(result, args)
            elif kind != _NO_TENSOR or makes == _RESIZE:
                self._made_any(result, args)
        except self._let_pass:
            raise
        except Exception as error:
            self.instrument.fail(error, "looking at an operator's result")
        return result

    def _learn(self, func: Any) -> int:
        aten = torch.ops.aten
        fills = {aten.copy_.default: _COPY, aten.add_.Tensor: _ADD}
        makes = fills.get(func)
        if makes is None:
            makes = torch_compat.makes_storage(func)
        self._functions.append(func)
        self._makes[id(func)] = makes
        return makes

    def _kind(self, value: Any) -> int:
        cls = type(value)
        kind = self._kinds.get(cls)
        if kind is None:
            if issubclass(cls, Tensor):
                kind = _ODD
            else:
                kind = _SEQUENCE if issubclass(cls, (list, tuple)) else _NO_TENSOR
            self._kinds[cls] = kind
        return kind

    def _meet_any(self, value: Any) -> None:
        kind = self._kind(value)
        if kind == _SEQUENCE:
            for item in value:
                self._meet_any(item)
        elif kind != _NO_TENSOR:
            self._meet(value)

    def _meet(self, tensor: Tensor) -> None:
        """An argument that nobody has seen being made: it came from elsewhere."""
        for storage in self._storages(tensor):
            if id(storage) in self._live:
                continue
            if tensor.grad_fn is not None:  # the result of compiled code
                block = self._admit(storage, _RECORDED)
                if block is not None:
                    self._pending.append(block)
            else:
                self._admit(storage, _ARRIVED, INPUTS if self._task < 0 else UNDECIDED)

    def _made_any(self, value: Any, args: tuple[Any, ...]) -> None:
        kind = self._kind(value)
        if kind == _SEQUENCE:
            for item in value:
                self._made_any(item, args)
        elif kind != _NO_TENSOR:
            for storage in self._storages(value):
                if id(storage) not in self._live:
                    self._made(storage, args)
                else:
                    self._resized(storage)

    def _storages(self, tensor: Tensor) -> tuple[UntypedStorage, ...]:
        found = self._find(tensor)
        if self._dead:
            self.bury_dead()
        if found is None:
            self.n_unreadable += 1
            return ()
        return found

    def _made(self, storage: UntypedStorage, args: tuple[Any, ...]) -> None:
        """The result of an operator: a new block, with the phase that it was made in."""
        category = UNDECIDED
        grad = torch.is_grad_enabled()
        if self._task >= 0:
            phase = _BACKWARD
            if grad:  # a checkpoint recomputes, or a graph of the backward is built
                phase, category = _RECOMPUTED, ACTIVATIONS
        elif self._in_step and not grad:
            phase = _OPTIMIZER
        elif grad and self._any_requires_grad(args):
            phase = _RECORDED
        elif self._stack:
            phase = _MODULE
        elif self._is_of_weights(args):
            phase = _OF_WEIGHTS
        else:
            phase = _DATA if grad else _NO_GRAD
        block = self._admit(storage, phase, category)
        if block is None:
            return
        self._place(block)
        if self._stack:
            block.owner = self._paths.get(self._stack[-1], _OUTSIDE)
        if phase in _FORWARD:
            self._pending.append(block)
            if len(self._pending) > _PENDING_AT_MOST:
                self._pending = [b for b in self._pending if b.alive]
        elif phase == _OPTIMIZER:
            self._step_made.append(block)

    def _any_requires_grad(self, args: Iterable[Any]) -> bool:
        for value in args:
            kind = self._kind(value)
            if kind == _SEQUENCE:
                if self._any_requires_grad(value):
                    return True
            elif kind != _NO_TENSOR and value.requires_grad:
                return True
        return False

    def _copied(self, target: Tensor, source: Tensor) -> None:
        """An empty tensor may become a copy of weights; copy.deepcopy copies tensors so."""
        for storage in self._storages(target):
            block = self._live.get(id(storage))
            if (
                block is not None
                and block.phase in (_DATA, _NO_GRAD)
                and block.category == UNDECIDED
                and shown_bytes(target) == block.nbytes
                and self._is_of_weights((source,))
            ):
                block.phase = _OF_WEIGHTS

    def _added(self, total: Any, *parts: Any) -> None:
        """In a backward pass: what goes into a weight's gradient has its size, whatever the batch.

        A pass that accumulates makes each gradient anew, and adds it to the one that is there; of
        a weight that is used several times it adds one for each use.
        """
        into = self._block(total)
        if into is None:
            return
        has_own_size = _has_own_size(into)
        for value in parts:
            block = self._block(value)
            if block is None or block is into or block.phase not in _IN_BACKWARD:
                continue
            if shown_bytes(value) != block.nbytes:  # a part of something larger
                continue
            if has_own_size:
                block.lasting = True
            elif into.phase in _IN_BACKWARD:
                self._sums.append((block, into))
        if len(self._sums) > _SUMS_AT_MOST:
            del self._sums[: _SUMS_AT_MOST // 2]

    def _block(self, value: Any) -> Block | None:
        """The block behind a tensor with a storage of its own."""
        if self._kinds.get(type(value)) != _PLAIN:
            return None
        try:
            storage = value.untyped_storage()
        except RuntimeError:  # a sparse or opaque layout
            return None
        if self._dead:  # perhaps what had its address
            self.bury_dead()
        return self._live.get(id(storage))

    def _settle_sums(self) -> None:
        """Now that the gradients are known: which sums became one, or went into one."""
        for part, total in reversed(self._sums):
            part.lasting |= total.lasting

    def _tensors(self, args: Iterable[Any]) -> Iterator[Tensor]:
        for value in args:
            kind = self._kind(value)
            if kind == _SEQUENCE:
                yield from self._tensors(value)
            elif kind != _NO_TENSOR:
                yield value

    def _is_of_weights(self, args: Iterable[Any]) -> bool:
        """Whether these are parameters, their like, and what was made from them; numbers aside."""
        found = False
        for tensor in self._tensors(args):
            blocks = [self._live.get(id(storage)) for storage in self._storages(tensor)]
            if blocks and all(
                block is not None and (block.category in _WEIGHTS or block.phase == _OF_WEIGHTS)
                for block in blocks
            ):
                found = True
            elif tensor.numel() > 1:  # else a learning rate, a decay
                return False
        return found

    # --- blocks -------------------------------------------------------------------------

    def _admit(
        self, storage: UntypedStorage, phase: int, category: int = UNDECIDED
    ) -> Block | None:
        nbytes = storage.nbytes()
        if not nbytes:
            # it holds nothing yet; if it grows, it is noticed then
            return None
        device = storage.device
        ledger = self.ledgers.get(device)
        if ledger is None:
            ledger = self._book(device)
            if ledger is None:
                return None
            self.ledgers[device] = ledger
        block = Block(storage, self._dead.append)
        block.key = id(storage)
        block.nbytes = nbytes
        block.phase = phase
        block.category = category
        block.alive = True
        block.lasting = False
        block.device = device
        block.line = _NO_LINE.get(phase, _NO_USER_LINE)
        block.watched = None
        block.owner = _NO_MODULE.get(phase, _OUTSIDE)
        self._live[block.key] = block
        if phase == BEFORE:
            ledger.add_before(block)
        else:
            ledger.add(block)
        return block

    def _place(self, block: Block) -> None:
        """The innermost line of user code, and of a watched function, that is running now."""
        found = self._place_from(sys._getframe(2), block, found=False)
        if (self._watch or not found) and threading.get_ident() != self._thread:
            # CUDA's backward runs in a thread without a line of the user's: the region's own
            # thread waits meanwhile in the line that called it
            with looking():
                frame = sys._current_frames().get(self._thread)
                self._place_from(frame, block, found=found)

    def _place_from(self, frame: FrameType | None, block: Block, *, found: bool) -> bool:
        """Look from this frame outwards; whether the line of user code is known."""
        while frame is not None and frame.f_code is not self._outermost:
            code = frame.f_code
            if not found and is_user_code(code.co_filename):
                block.line = self._line(frame)
                found = True
                if not self._watch:
                    return True
            if self._watch and id(code) in self._watch and block.watched is None:
                block.watched = self._line(frame)
                if found:
                    return True
            frame = frame.f_back
        return found

    def _line(self, frame: FrameType) -> Place:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = (code.co_filename, frame.f_lineno or 0, code.co_qualname)
            self._codes[id(code)] = code
        return place

    def bury_dead(self) -> None:
        """Book the blocks whose storage has died since the last look, in their order."""
        dead = self._dead
        while dead:
            try:
                block = dead.popleft()
            except IndexError:  # a thread of the backward pass was faster
                return
            self._bury(block)

    def _bury(self, block: Block) -> None:
        # a storage that was resized has another block by now
        if self._live.get(block.key) is block:
            del self._live[block.key]
            block.alive = False
            self.ledgers[block.device].remove(block)

    def _grown_or_shrunk(self, storage: UntypedStorage) -> None:
        """After ``UntypedStorage.resize_``, which is no operator."""
        if self._here():
            if id(storage) in self._live:
                self._resized(storage)
            else:  # it was empty until now
                self._admit(storage, _ARRIVED)

    def _resized(self, storage: UntypedStorage) -> None:
        """A storage that may have another size than when it was last seen."""
        old = self._live.get(id(storage))
        if old is None or old.nbytes == storage.nbytes():
            return
        del self._live[old.key]
        old.alive = False
        self.ledgers[old.device].remove(old)
        # not BEFORE: the new size is an event of this region
        new = self._admit(storage, old.phase or _ARRIVED, old.category)
        if new is not None:
            new.line, new.watched, new.owner = old.line, old.watched, old.owner
            new.lasting = old.lasting

    # --- labels -------------------------------------------------------------------------

    def _label(
        self, tensor: Tensor, category: int, *, before: bool = False, lasting: bool = False
    ) -> None:
        for storage in self._storages(tensor):
            block = self._live.get(id(storage))
            if block is None:
                block = self._admit(storage, BEFORE if before else _ARRIVED, category)
            else:
                _label(block, category)
            if lasting and block is not None:
                block.lasting = True

    def _label_all(self, labelled: Iterable[tuple[Tensor, int]], *, before: bool = False) -> None:
        for tensor, category in labelled:
            self._label(tensor, category, before=before)
            if category == PARAMETERS:
                self._know_parameter(tensor)

    def _own(self, tensor: Tensor, path: str) -> None:
        for storage in self._storages(tensor):
            block = self._live.get(id(storage))
            if block is None:
                continue
            is_part = shown_bytes(tensor) < block.nbytes
            is_shared = is_part and block.owner != path and block.owner not in _UNOWNED
            block.owner = _SHARED if is_shared else path

    def _own_state(self, optimizer: Optimizer) -> None:
        for parameter, value in list(optimizer.state.items()):
            path = self._path_of_parameter.get(id(parameter))
            if path is None:
                continue
            tensors = list(tensors_in(value))
            if any(tensor.numel() > parameter.numel() for tensor in tensors):
                self._own_large_state(optimizer, path, tensors)
            else:
                for tensor in tensors:
                    self._own(tensor, path)

    def _own_large_state(self, optimizer: Optimizer, path: str, tensors: list[Tensor]) -> None:
        """State larger than its parameter: a preconditioner of it, or of all parameters.

        LBFGS keeps its history, flat vectors of all parameters, as the state of the first one.
        """
        trained = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        n_all = sum(p.numel() for g in optimizer.param_groups for p in g["params"])
        if len(optimizer.state) >= len(trained):  # each has its own
            for tensor in tensors:
                self._own(tensor, path)
            return
        for tensor in tensors:
            if tensor.numel() == n_all:
                self._own(tensor, _OF_ALL)

    def _know_paths(self, modules: Iterable[nn.Module]) -> None:
        """Name these modules, and say that what they hold is theirs."""
        modules = [module for module in modules if id(module) not in self._paths]
        for module, path in module_paths(modules, self._roots):
            if id(module) in self._paths:
                continue
            self._paths[id(module)] = path
            for tensor, category in module_tensors(module):
                self._own(tensor, path)
                if category == PARAMETERS:
                    self._path_of_parameter.setdefault(id(tensor), path)

    def _know_parameter(self, parameter: Tensor, *, is_weight: bool = True) -> None:
        """What may have a ``.grad``: a weight, or another leaf, such as an input."""
        known = self._parameters.get(id(parameter))
        if known is None or known() is not parameter:
            self._parameters[id(parameter)] = weakref.ref(parameter)
            self._weights.discard(id(parameter))  # of one that died
            self._gradients_known = False
        if is_weight:
            self._weights.add(id(parameter))

    def _before_swap(self, a: Tensor, b: Tensor) -> Callable[[Any], None] | None:
        """Give our weak references up meanwhile: torch swaps no tensor that has one."""
        known = [
            (one, id(one) in self._weights)
            for one in (a, b)
            if self._parameters.pop(id(one), None) is not None
        ]

        def swapped(_: object) -> None:
            while known:
                one, is_weight = known.pop()
                self._know_parameter(one, is_weight=is_weight)

        return self.instrument.hook(swapped, even_off=True) if known else None

    def _know_optimizer(self, optimizer: Optimizer, *, before: bool = False) -> None:
        self._label_all(optimizer_tensors(optimizer), before=before)
        self._own_state(optimizer)
        if id(optimizer) not in self._optimizers:
            self._known_optimizers.append(weakref.ref(optimizer))
        self._optimizers[id(optimizer)] = len(optimizer.param_groups)

    def _label_gradients(self, *, before: bool = False) -> None:
        for ref in list(self._parameters.values()):
            parameter = ref()
            if parameter is not None:
                self._label_gradient(parameter, before=before)
        self._gradients_known = True

    def _label_gradient(self, parameter: Tensor, *, before: bool = False) -> None:
        # of a tensor that is no leaf, .grad is a warning and never a gradient
        if not parameter.is_leaf or parameter.grad is None:
            return
        lasting = id(parameter) in self._weights
        self._label(parameter.grad, GRADIENTS, before=before, lasting=lasting)
        path = self._path_of_parameter.get(id(parameter))
        if path is not None:
            self._own(parameter.grad, path)

    # --- forward, backward, optimizer ---------------------------------------------------

    def _here(self) -> bool:
        """Hooks are global: those of other threads are not this region's.

        But those of its backward pass are, which CUDA runs in threads of its own with this mode:
        modules are called there to recompute, and optimizers may step.
        """
        if not self._counting:
            return False
        here = threading.get_ident() == self._thread
        here = here or torch_compat.dispatch_mode_is_active(self)
        # of what torch.jit traces, sizes are tensors, and a look at one would be traced, too
        here = here and not self._is_tracing()
        if here:
            self.bury_dead()
        return here

    def _before_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        self._registered(parameter, PARAMETERS)

    def _before_buffer(self, module: nn.Module, name: str, buffer: Any) -> None:
        self._registered(buffer, BUFFERS)

    def _registered(self, tensor: Any, category: int) -> None:
        """A module gets it; what is copied from it from now on is a copy of weights."""
        if isinstance(tensor, Tensor) and not nn.parameter.is_lazy(tensor) and self._here():
            self._label_all([(tensor, category)])

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if not self._here():
            return
        # by id: a second module at the address of one that died is found at the region's end
        if id(module) not in self._modules:
            self._modules.add(id(module))
            self._label_all(module_tensors(module))
            if id(module) not in self._paths:
                self._know_paths(module.modules())
        self._stack.append(id(module))

    def _after_forward(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not self._here():
            return
        if self._stack:
            self._stack.pop()
        if not self._stack:
            self._label_inputs(args)
            # (kwargs, output); torch leaves the kwargs out when the forward has raised
            if len(rest) == 2:
                self._label_inputs(rest[0])

    def _label_inputs(self, value: Any, depth: int = 3) -> None:
        if isinstance(value, Tensor):
            for storage in self._storages(value):
                block = self._live.get(id(storage))
                if block is None:
                    self._admit(storage, _ARRIVED, INPUTS)
                elif block.phase in _MAY_BE_INPUT:
                    _label(block, INPUTS)
                    # half of it or less: not a batch with a little cut off
                    block.lasting |= 2 * shown_bytes(value) <= block.nbytes
        elif depth and isinstance(value, dict):
            for item in value.values():
                self._label_inputs(item, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for item in value:
                self._label_inputs(item, depth - 1)

    def _turn(self, task: int) -> None:
        """A backward pass has begun, or ended, since the last operator."""
        self._task = task
        if task < 0:
            self._sums.clear()  # of passes that have ended, one way or another
            return
        if not self._has_looked:
            self._look_around()
        for block in self._pending:
            if not block.alive or block.phase == _OF_WEIGHTS:
                continue
            _label(block, INPUTS if block.phase == _DATA else ACTIVATIONS)
            if block.category == INPUTS:
                self._guessed.append((self.n_steps, block))
        if self._on_backward is not None:
            self._on_backward([b for b in self._pending if b.alive and b.phase in _COMPUTED])
        self._pending.clear()
        self._gradients_known = False
        torch_compat.at_end_of_backward(self.instrument.hook(self._after_backward))

    def _after_backward(self) -> None:
        if self._counting:
            self._label_gradients()
            self._settle_sums()

    def _find_lasting(self) -> None:
        """A data set, a mask or what is kept from step to step: no part of a single batch."""
        made: dict[Place, set[int]] = {}
        for since, block in self._guessed:
            if block.alive:
                made.setdefault(block.line, set()).add(since)
        # a batch is made anew by the same line, and only the newest ones are used
        newest = {line: sorted(steps)[-_MOST_BATCHES:][0] for line, steps in made.items()}
        waiting = []
        for since, block in self._guessed:
            if not block.alive:
                continue
            if since < newest[block.line] or self.n_steps - since > _MOST_STEPS:
                block.lasting = True
            else:
                waiting.append((since, block))
        self._guessed = waiting

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._here():
            return
        # a forward that was interrupted and caught has not emptied it
        self._stack.clear()
        if self._optimizers.get(id(optimizer)) != len(optimizer.param_groups):
            self._know_optimizer(optimizer)
        if not self._gradients_known:
            self._label_gradients()
        elif self._task_id() >= 0:  # one for each weight, which steps as its gradient comes
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._label_gradient(parameter)
        self._in_step = True

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._here():
            return
        self._in_step = False
        if any(block.alive for block in self._step_made):
            self._label_all(optimizer_tensors(optimizer))
            self._own_state(optimizer)
        self._step_made.clear()
        if is_capturing():
            return  # into a CUDA graph: it was not run, and nothing may be waited for meanwhile
        if self._passes is None or not self._passes.inside:
            self._step_ended()
        elif not self._stepped_in_pass:
            # one optimizer for each weight: the step ends with the pass. Counting cannot end within
            # it: torch gives the thread its modes back as a pass ends.
            self._stepped_in_pass = True
            self._passes.after(self._pass_ended)

    def _pass_ended(self) -> None:
        self._stepped_in_pass = False
        if self._counting:
            self._step_ended()

    def _step_ended(self) -> None:
        self.n_steps += 1
        self._find_lasting()
        if self.n_steps == self._max_steps:
            # the hooks stay until stop(): torch is iterating over them right now
            self.end()
            if self._on_last_step is not None:
                self._on_last_step()


def _label(block: Block, category: int) -> None:
    if category < block.category:
        block.category = category


def _has_own_size(block: Block) -> bool:
    """Whether this is of a weight, or was there before without being a part of the batch."""
    if block.category == UNDECIDED:
        return block.phase in {BEFORE, _OF_WEIGHTS} or block.lasting
    return block.category in _WEIGHTS and (block.category != GRADIENTS or block.lasting)
