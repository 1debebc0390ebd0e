"""The objects of a run: its modules, optimizers, loaders and batches, and what it calls in steps.

They tell why a step is as it is, which a recording does not: that a flag is on, that a data set is
a list of dicts, that hooks multiply. ``perfkit.advice.state`` asks about them between two steps:
after steps 1, 2, 4, 8 … Steps that are not looked at cost a comparison; objects are held weakly.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.optimizer_use import OptimizerUse
from perfkit.base.stand_in import stand_in
from perfkit.base.uninterrupted import Uninterrupted
from perfkit.base.user_code import is_user_code, tells_something, user_place
from perfkit.measure.graph_looks import GraphLook, look_into
from perfkit.measure.memory_looks import MemoryLook, look, own_rise

if TYPE_CHECKING:
    from perfkit.base.padding import Padding
    from perfkit.measure.same_items import SameItems

#: Calls that are worth a word in a step: (module, attribute or class.attribute).
COUNTED = (
    ("torch.cuda", "empty_cache"),
    ("torch.cuda", "synchronize"),
    ("gc", "collect"),
    ("torch.nn", "Module.state_dict"),
    ("torch", "save"),
)
#: Switches that make steps slower, see :attr:`Live.flags`.
SLOW_FLAGS = ("anomaly", "deterministic", "cudnn_benchmark", "half_on_cpu")
# More distinct shapes than these say nothing new.
_MOST_SHAPES = 256
_MOST_OBJECTS = 64
# Of the first steps all are looked at, and then those that double their number.
_ALL_STEPS = 8
# Batches after the first two are looked into from here on: not in steps that are usually recorded.
_LOOKS_INTO_FROM = 31
# The workers are asked for their memory from this step on.
_ASKS_WORKERS = 8
# In so many steps in a row it is a teacher, or episodes to learn from.
_TEACHES = 3
# Within evaluations the rules are asked at most so often: looking at all objects takes long.
_MOST_ASKED = 12
# Malloc is asked within a step if its last answer took less.
_MOST_HEAP_MS = 0.2
# So many calls in a row, each with one position more than the last, generate a sequence.
_GENERATES = 16
# Of a step's backward passes so many are looked at.
_MOST_GRAPHS = 4
# A larger batch is not compared with the next one.
_MOST_COMPARED_BYTES = 2**24


@dataclass
class ModuleUse:
    """How a module was called from outside of any other.

    Attributes:
        n_calls, n_trained, n_eval_with_grad: in the steps that were looked at; the latter two of
            these, in training and evaluation mode with gradients on.
        called_at, evaluated_at: file and line of the user's that made the first of all calls, and
            of the latter.
        shapes: distinct shapes and numbers that it was given, at most 256.
        n_unsynced: backward passes after a forward pass that had prepared to exchange gradients
            with other ranks, although gradients were to stay here.
    """

    ref: weakref.ref[Any]
    n_calls: int = 0
    n_trained: int = 0
    n_eval_with_grad: int = 0
    called_at: tuple[str, int] | None = None
    evaluated_at: tuple[str, int] | None = None
    shapes: set[tuple[Any, ...]] = field(default_factory=set)
    n_unsynced: int = 0


@dataclass
class LoaderUse:
    """A DataLoader and what came of it.

    Attributes:
        start_s: seconds that starting them took, with the first batch of each.
        padding: of the batches that were looked into, the most padded part.
        equal_batches: whether the first two batches were the same.
        items: of its data set; None where workers make them.
    """

    ref: weakref.ref[Any]
    n_workers: int = 0
    n_starts: int = 0
    start_s: float = 0.0
    n_seen: int = 0
    padding: Padding | None = None
    equal_batches: bool = False
    n_tensors: int = 0
    first_batch: tuple[Any, ...] | None = None
    first_is_due: bool = False
    sampler_id: int = 0
    items: SameItems | None = None


_Use = TypeVar("_Use", ModuleUse, LoaderUse, OptimizerUse)


def _use_of(thing: Any, uses: dict[int, _Use], make: Callable[[Any], _Use]) -> _Use | None:
    """What is known of this object; None for one of very many."""
    use = uses.get(id(thing))
    if use is None or use.ref() is not thing:
        if len(uses) >= _MOST_OBJECTS:
            return None
        use = uses[id(thing)] = make(weakref.ref(thing))
    return use


def _safe(method: Callable[..., None]) -> Callable[..., None]:
    """A method of :class:`Live` that cannot raise, and does nothing once it has ended or failed."""

    @functools.wraps(method)
    def safe(self: Live, *args: Any) -> None:
        if self._thread_id:
            try:
                method(self, *args)
            except Exception as error:
                self._instrument.caught(error, method.__name__)

    return safe


class Live:
    """Meets the objects of the run in the thread that starts it, told by a :class:`Phases`.

    It cannot raise into the run.

    Attributes:
        looks: whether the step that runs is one of those that are looked at. In others, whoever
            tells it of objects does so only of iterators that a loader starts, and of forward
            passes in evaluation mode that keep a graph.
        calls: (function, file, line of the user's) → how often it was called after the first step,
            in how many steps, the last one's number, and the seconds that it took.
        flags: global switches as they were within a forward pass that trains, by name.
        wrapped: what has prepared to exchange gradients in the backward pass that comes next.
        with_graph_s: seconds of forward passes in evaluation mode with gradients on; inf
            where not all are told.
        evaluated: memory before forward passes of the evaluation that goes on, or was the last.
        in_evaluation: whether the rules are asked within it, because it seems to grow.
        looks_at_evaluation: whether to look at that: not where step after step has one.
        kept: what the rules keep from one look to the next.
        graphs: what those of the first step's backward passes show.
        generated: the line that calls a module with all positions so far, one more each time, and
            the most positions; None where none does.
        n_profiled: looks at which a profiler of the program's own was on.
        traces_until: the step at whose end the rules are asked once more; until then a rule traces,
            which slows steps: -1 where none may.

    Args:
        is_ours: whether the profiler that is on is perfkit's.
    """

    def __init__(self, is_ours: Callable[[], bool]) -> None:
        self._instrument = Instrument("the look at the run's objects", switch_off=self._silence)
        self._thread_id = 0
        self.undo: list[Callable[[], object]] = []
        self._asked: Callable[[Live], None] | None = None
        self.looks = False
        self._due = 1
        self._next = 1  # the step at whose end there is something to do
        self._in_call = False
        self.wrapped: ModuleUse | None = None
        self.n_steps = 0
        self.with_graph_s = 0.0
        self.began_s = self.ended_s = 0.0
        self.modules: dict[int, ModuleUse] = {}
        self.loaders: dict[int, LoaderUse] = {}
        self.optimizers: dict[int, OptimizerUse] = {}
        self._optimized_in = 0
        self.calls: dict[tuple[str, str, int], tuple[int, int, int, float]] = {}
        self.flags: dict[str, Any] = {}
        self.memory: list[MemoryLook] = []
        self.evaluated: list[MemoryLook] = []
        self.in_evaluation, self.looks_at_evaluation = False, True
        self._evaluation: tuple[int, tuple[int, ...]] = (-1, ())
        self._n_evaluated = self._in_a_row = self._n_asked = self._n_graphs = 0
        self.kept: dict[str, Any] = {}
        self.graphs: list[GraphLook] = []
        self.generated: tuple[str, int, int] | None = None
        self._n_longer = 0
        self._shorter: Any = None
        self._given_before: tuple[int, ...] = ()
        self.n_profiled, self.traces_until = 0, -1
        self._is_ours = is_ours
        self._first_looks: weakref.WeakKeyDictionary[Any, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def failure(self) -> Failure | None:
        return self._instrument.failure

    # --- begin and end ----------------------------------------------------------------------

    def start(self, ask: Callable[[Live], None]) -> None:
        """Begin, in this thread: ``ask`` after the first step and each doubling of their number."""
        if self.undo:
            return
        self._thread_id, self._asked = get_ident(), ask
        self.looks = True
        self.began_s = time.perf_counter()
        with self._instrument.guard("starting"), Uninterrupted():
            self.undo += self._count_calls()
        if self.failure is not None:
            self.stop()

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        if self._thread_id and (self.n_steps or self.generated):
            with self._instrument.guard("the last look"):
                self._look()
        self._silence()
        self._instrument.take_back(self.undo)
        # a cycle would keep this, and what it met, until the collector runs
        self._asked, self._is_ours, self._shorter = None, bool, None

    def step_ended(self) -> None:
        """A step is over; cannot raise. What it takes belongs to no step."""
        self.n_steps += 1
        if self.n_steps >= self._next:
            self._step_ended()

    def _silence(self) -> None:
        """Do nothing from now on; what is in place stays until :meth:`stop`."""
        self._thread_id, self.looks = 0, False

    @_safe
    def _step_ended(self) -> None:
        if self.n_steps >= self._due:
            self._due = 2 * self.n_steps
            asks = self.n_steps >= _ASKS_WORKERS and any(x.n_workers for x in self.loaders.values())
            self.memory.append(look(self.n_steps, workers=asks))
            self.n_profiled += torch_compat.profiler_is_on() and not self._is_ours()
            self._look()
        elif self.n_steps == self.traces_until:
            self._look()
        self.looks = self.n_steps < _ALL_STEPS or self.n_steps + 1 == self._due
        self._next = self._due - (not self.looks)
        if self.traces_until > self.n_steps:
            self._next = self.traces_until

    def _look(self) -> None:
        self.ended_s = time.perf_counter()
        if self._asked is not None:
            self._asked(self)

    def first_look(self, thing: Any, value: int) -> tuple[int, int]:
        """The value that was given for this object first, and after how many steps."""
        return self._first_looks.setdefault(thing, (value, self.n_steps))

    # --- what the phases tell of ----------------------------------------------------------------

    @_safe
    def fetched(self, is_batch: bool, source: Any, batch: Any, spent_s: float) -> None:
        """A loader has started an iterator, or an iterator has given a batch, maybe the end."""
        if not is_batch:
            self._started(source, spent_s)
        elif batch is not None:
            self._came(source, batch, spent_s)

    @_safe
    def forward_begins(self, module: Any, args: Any) -> None:
        """A module is called that no other one calls."""
        use = _use_of(module, self.modules, ModuleUse)
        if use is None:
            return
        import torch

        with_grad = torch.is_grad_enabled()
        if not (with_grad or module.training):
            self.evaluates(args)
        use.called_at = use.called_at or user_place()
        use.n_calls += 1
        use.n_trained += with_grad and module.training
        use.n_eval_with_grad += with_grad and not module.training
        if use.n_eval_with_grad and use.evaluated_at is None:
            use.evaluated_at = user_place()
        if len(use.shapes) < _MOST_SHAPES and isinstance(args, tuple):
            given: list[Any] = []
            for one in args[:4]:
                if isinstance(one, torch.Tensor):
                    given.append(tuple(one.shape))
                elif isinstance(one, int):
                    given.append(one)
            use.shapes.add(tuple(given))
        if not (with_grad and module.training):
            return
        exchanges = getattr(module, "require_backward_grad_sync", None)
        if exchanges is not None:
            self.wrapped = use if exchanges else None
        is_recorded = 2 <= self.n_steps < _ALL_STEPS  # usually
        if not self.flags or (self.n_steps + 1 >= self._due and not is_recorded):
            self.flags = _flags(module)

    @_safe
    def evaluates(self, args: Any) -> None:
        """A forward pass of an evaluation begins; memory is looked at after each doubling of them.

        This may be within a step, so it takes some µs unless memory grows.
        """
        if not self.looks_at_evaluation:
            return
        first = next(iter(args), None) if isinstance(args, tuple) else None
        now = self.n_steps, tuple(getattr(first, "shape", ()))
        self._generates(first, now[1])
        if now[0] != self._evaluation[0]:
            self._in_a_row = self._in_a_row + 1 if now[0] == self._evaluation[0] + 1 else 0
            self.looks_at_evaluation = self._in_a_row < _TEACHES
            self.evaluated, self._evaluation, self._n_evaluated = [], now, 0
        self._n_evaluated = n = self._n_evaluated + 1
        # text that is generated grows with each pass, or comes a word at a time beside a cache
        if n < 2 or n & (n - 1) or now != self._evaluation or now[1][1:] == (1,):
            return
        is_quick = all(one.heap_ms < _MOST_HEAP_MS for one in self.memory[-1:])
        self.evaluated.append(look(n, heap=is_quick))
        grows = own_rise(self.evaluated, intervals=2, first=2)[0] is not None
        if grows and self._n_asked < _MOST_ASKED:
            self._n_asked += 1
            self.in_evaluation = True
            try:
                self._look()
            finally:
                self.in_evaluation = False

    def _generates(self, given: Any, now: tuple[int, ...]) -> None:
        before, self._given_before = self._given_before, now
        is_longer = len(before) > 1 and now == (before[0], before[1] + 1, *before[2:])
        self._n_longer = n = self._n_longer + 1 if is_longer else 0
        shorter, self._shorter = self._shorter, given if n == _GENERATES - 1 else None
        if n == _GENERATES and not torch_compat.cuda_is_capturing():  # it waits for the device
            with torch_compat.without_modes():
                goes_on = bool((given[:, :-1] == shorter).all())
            if goes_on and (place := user_place()):
                self.generated = *place, now[1]
        elif n > _GENERATES and self.generated is not None:
            self.generated = *self.generated[:2], max(self.generated[2], now[1])

    @_safe
    def backward_begins(self, roots: Any) -> None:
        """A backward pass begins, maybe after a forward pass of what is :attr:`wrapped`."""
        use, self.wrapped = self.wrapped, None
        if use is not None and not getattr(use.ref(), "require_backward_grad_sync", True):
            use.n_unsynced += 1
        if self.n_steps or self._n_graphs >= _MOST_GRAPHS:
            return  # in the first step only: it waits for the device
        self._n_graphs += 1
        if not (torch_compat.compiles_now() or torch_compat.cuda_is_capturing()):
            with torch_compat.without_modes():
                self.graphs += look_into(roots)

    @_safe
    def optimizer_begins(self, optimizer: Any) -> None:
        use = _use_of(optimizer, self.optimizers, OptimizerUse)
        if use is None:
            return
        if self.n_steps > self._optimized_in + 1:  # what came to be in between was not seen
            for one in self.optimizers.values():
                one.stepped_with = one.left = None
        self._optimized_in = self.n_steps
        use.steps()
        at = user_place() if len(self.optimizers) > 1 else None
        for other in self.optimizers.values():
            if other is not use:
                other.another_steps(at)

    # --- DataLoaders ------------------------------------------------------------------------

    def _started(self, loader: Any, spent_s: float) -> None:
        use = _use_of(loader, self.loaders, LoaderUse)
        if use is None:
            return
        use.n_workers, use.sampler_id = loader.num_workers, id(loader._index_sampler)
        use.n_starts += 1
        use.start_s += spent_s
        use.first_is_due = True
        self.looks, self._next = True, self.n_steps + 1  # to see the first batch

    def _came(self, iterator: Any, batch: Any, spent_s: float) -> None:
        # `for x in DataLoader(…)`: the loader is gone while its iterator runs; both have a sampler
        sampler_id = id(getattr(iterator, "_index_sampler", None))
        use = next((one for one in self.loaders.values() if one.sampler_id == sampler_id), None)
        if use is None:
            return
        use.n_seen += 1
        if use.first_is_due:
            use.first_is_due = False
            use.start_s += spent_s
            if not use.n_workers:
                self._watch_items(use, iterator)
        if not self.looks or (use.n_seen > 2 and self.n_steps < _LOOKS_INTO_FROM):
            return
        from perfkit.measure.batch import most_padded, n_tensors, parts_of

        parts = parts_of(batch)
        if use.n_seen <= 2:
            self._compare(use, parts)
            use.n_tensors = n_tensors(batch)
        use.padding = most_padded(batch) or use.padding

    def _watch_items(self, use: LoaderUse, iterator: Any) -> None:
        from perfkit.measure.same_items import SameItems

        if use.items is None:
            use.items = SameItems(self._instrument)
            self.undo.append(use.items.stop)
        ref = weakref.ref(self)
        use.items.watch(iterator, lambda: 0 if (live := ref()) is None else live.n_steps)

    @staticmethod
    def _compare(use: LoaderUse, parts: list[Any]) -> None:
        """Whether the second batch is the first one again."""
        from perfkit.base.checksum import checksum, is_plain

        one = checksum(parts[:1], most_bytes=_MOST_COMPARED_BYTES) if parts else None
        if use.n_seen == 1:
            use.first_batch = one
        elif one is not None and use.first_batch is not None:
            # a batch of one value says nothing
            use.equal_batches = one[0] == use.first_batch[0] and not is_plain(parts[0])

    # --- calls ------------------------------------------------------------------------------

    def _count_calls(self) -> Iterator[Callable[[], None]]:
        for module_name, path in COUNTED:
            owner: Any = sys.modules.get(module_name)
            *classes, name = path.split(".")
            for one in classes:
                owner = getattr(owner, one, None)
            if (original := getattr(owner, name, None)) is not None:
                yield stand_in(owner, name, self._counted(f"{module_name}.{path}", original))

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._in_call or not self.n_steps or get_ident() != self._thread_id:
                return original(*args, **kwargs)
            self._in_call, began_s = True, time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._in_call = False
                self._note(name, sys._getframe(1), time.perf_counter() - began_s)

        return call

    @_safe
    def _note(self, name: str, frame: Any, spent_s: float) -> None:
        by = frame.f_code.co_filename
        while by == stand_in.__code__.co_filename:  # who else listens to the call
            frame = frame.f_back
            by = frame.f_code.co_filename
        if not (is_user_code(by) or tells_something(by)):
            return  # torch's own, or perfkit's
        place = user_place(frame)
        if place is None:
            return
        key = name, *place
        if key in self.calls or len(self.calls) < _MOST_OBJECTS:
            n, in_steps, last, before_s = self.calls.get(key, (0, 0, 0, 0.0))
            in_steps += last != self.n_steps
            self.calls[key] = n + 1, in_steps, self.n_steps, before_s + spent_s


def _flags(module: Any) -> dict[str, Any]:
    import torch

    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else getattr(parameter, "dtype", None)
    name = str(dtype).removeprefix("torch.")
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fills": getattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
        "cudnn_benchmark": torch.backends.cudnn.benchmark
        and parameter is not None
        and torch.backends.cudnn.is_acceptable(parameter),  # type: ignore[no-untyped-call]
        "autocast": autocast,
        "half_on_cpu": name if device == "cpu" and name in ("bfloat16", "float16") else "",
    }
