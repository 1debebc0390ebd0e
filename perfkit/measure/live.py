"""The objects of a run: its modules, optimizers, loaders and batches, and what it calls in steps.

A recording of six steps shows what happens, and not why: that a flag is on, that a data set is a
list of dicts, that hooks multiply. These are facts that need no sample. :class:`Live` meets the
objects through hooks of torch's, and whoever asks about them (``perfkit.advice.state``) does so
between two steps, after the first one and then after each doubling of their number.

Per step this costs some dictionary look-ups. Objects are held weakly.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base import torch_compat
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.resident import resident_bytes
from perfkit.base.stand_in import CallEnd, stand_in
from perfkit.base.uninterrupted import Uninterrupted, surely
from perfkit.base.user_code import is_user_code, tells_something
from perfkit.measure.outer_calls import OuterCalls

if TYPE_CHECKING:
    from perfkit.measure.padding import Padding

#: Calls that are worth a word in a step: (module, attribute or class.attribute).
COUNTED = (
    ("torch.cuda", "empty_cache"),
    ("torch.cuda", "synchronize"),
    ("gc", "collect"),
    ("torch.nn", "Module.state_dict"),
    ("torch.nn", "Module.load_state_dict"),
    ("copy", "deepcopy"),
)
#: Switches that make steps slower, see :attr:`Live.flags`.
SLOW_FLAGS = ("anomaly", "deterministic", "cudnn_benchmark")
# More distinct shapes than these say nothing new.
_MOST_SHAPES = 256
_MOST_OBJECTS = 64
#: Steps of a long run are told apart within so many: enough to know now and then from always.
STEPS_TOLD = 1024
# Frames to look through for the user's line.
_DEEPEST = 40
# Batches that are looked into: never in steps that are usually recorded.
_LOOKS_INTO = frozenset((1, 2, *(2**k for k in range(5, 24))))
# Bytes of a batch that are kept to compare it with the next one.
_COMPARED = 4096


@dataclass
class ModuleUse:
    """How a module was called from outside of any other.

    Attributes:
        ref: the module.
        n_calls: how often.
        n_training: of these, in training mode.
        n_without_grad: of these, with gradients off.
        n_eval_with_grad: of these, in evaluation mode with gradients on.
        shapes: distinct shapes and numbers that it was given, at most 256.
        is_frozen: none of its parameters required a gradient when it was first called.
        n_unsynced: backward passes after a forward pass that had prepared to exchange gradients
            with other ranks, although gradients were to stay here.
    """

    ref: weakref.ref[Any]
    n_calls: int = 0
    n_training: int = 0
    n_without_grad: int = 0
    n_eval_with_grad: int = 0
    shapes: set[tuple[Any, ...]] = field(default_factory=set)
    n_unsynced: int = 0
    is_frozen: bool = False
    exchanges: bool | None = None


@dataclass
class LoaderUse:
    """A DataLoader and what came of it.

    Attributes:
        ref: the loader.
        n_starts: iterators started, one an epoch.
        start_s: seconds that starting them took, with the first batch of each.
        n_batches: batches handed out.
        wait_s: seconds in which they were waited for, without the first of each epoch.
        padding: of the batches that were looked into, the most padded part.
        equal_batches: whether the first two batches were the same.
    """

    ref: weakref.ref[Any]
    n_starts: int = 0
    start_s: float = 0.0
    n_batches: int = 0
    wait_s: float = 0.0
    padding: Padding | None = None
    equal_batches: bool = False
    first_batch: list[Any] = field(default_factory=list)
    first_is_due: bool = False
    sampler: weakref.ref[Any] | None = None
    iterator: weakref.ref[Any] | None = None


class Live:
    """Meets the objects of the run in the thread that starts it. It cannot raise into the run.

    Attributes:
        n_steps: steps that have ended.
        modules, loaders: by id.
        optimizers: by id, weakly.
        calls: (function, file, line of the user's) → how often it was called after the first step.
        called_in: the same → numbers of steps in which it was called, modulo :data:`STEPS_TOLD`.
        flags: global switches as they were within a forward pass that trains, by name.
        worker_bytes: (steps, private bytes of the loader's workers) at each look.
        resident: (steps, resident bytes of this process) at each look.
        n_profiled: looks at which a profiler of the program's own was on.
        evaluated_s: of each step, seconds in forward passes, in evaluation mode, of modules that
            have trained; until :meth:`rest`, and where it watches them itself.

    Args:
        is_ours: whether the profiler that is on is perfkit's.
        modules: watch them; else whoever does calls :meth:`forward_begins`.
    """

    def __init__(self, is_ours: Callable[[], bool], *, modules: bool = True) -> None:
        self._instrument = Instrument("the look at the run's objects", switch_off=self._silence)
        self._on_forward: Callable[..., object] = _nothing
        self._on_step: Callable[..., object] = _nothing
        self._fetch_ended: Callable[..., None] = _nothing
        self._calls: Callable[..., object] = _nothing
        self._thread_id = 0
        self._undo: list[Callable[[], None]] = []
        self._watches_modules = modules
        self._outer: OuterCalls | None = None
        self._evaluates_from_s = self._evaluated_s = 0.0
        self.evaluated_s: list[float] = []
        self._asked: Callable[[Live], None] | None = None
        self._due = 1
        self._in_call = False
        self._wrapped: ModuleUse | None = None
        self.n_steps = 0
        self.began_s = self.ended_s = 0.0
        self.modules: dict[int, ModuleUse] = {}
        self.loaders: dict[int, LoaderUse] = {}
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        self.calls: Counter[tuple[str, str, int]] = Counter()
        self.called_in: dict[tuple[str, str, int], set[int]] = {}
        self.flags: dict[str, Any] = {}
        self.worker_bytes: list[tuple[int, int]] = []
        self.resident: list[tuple[int, int]] = []
        self.n_profiled = 0
        self._is_ours = is_ours
        self.look_s = 0.0
        self._first_looks: weakref.WeakKeyDictionary[Any, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def failure(self) -> Failure | None:
        """Why it looks no more; None where it does."""
        return self._instrument.failure

    @property
    def has_frozen(self) -> bool:
        """Whether a module was called of whose parameters none trains."""
        return any(use.is_frozen for use in self.modules.values())

    # --- begin and end ----------------------------------------------------------------------

    def start(self, ask: Callable[[Live], None]) -> None:
        """Begin, in this thread.

        Args:
            ask: called between two steps, after the first one and each doubling of their number.
        """
        if self._undo:
            return
        self._thread_id, self._asked = get_ident(), ask
        hook = self._instrument.hook
        self._on_forward, self._on_step = hook(self._forward), hook(self._step_ended)
        self._fetch_ended, self._calls = hook(self._after_fetch), hook(self._note)
        self.began_s = time.perf_counter()
        with self._instrument.guard("starting"), Uninterrupted():
            from torch.optim import optimizer

            self._undo.append(torch_compat.watch_loader_iterators(hook(self._before_fetch)))
            self._undo.append(torch_compat.watch_backward(hook(self._before_backward)))
            after = optimizer.register_optimizer_step_post_hook(hook(self._after_optimizer))
            self._undo.append(after.remove)
            self._undo += self._count_calls()
            if self._watches_modules:
                self._outer = OuterCalls(self._instrument, self._forward, self._forward_ended)
                self._undo.append(self._outer.stop)
        if self.failure is not None:
            self.stop()

    def stop(self) -> None:
        """End: leave no hook. Does not raise."""
        if self._thread_id and self.n_steps:
            with self._instrument.guard("the last look"):
                self._look()
        self._silence()
        undo, self._undo = self._undo, []

        def all_of_it() -> None:
            for call in undo:
                with self._instrument.guard("ending"):
                    call()

        surely(all_of_it)
        # a cycle would keep this, and what it met, until the collector runs
        self._on_forward = self._on_step = self._fetch_ended = self._calls = _nothing
        self._asked, self._is_ours, self._outer = None, bool, None

    def rest(self) -> None:
        """Nothing more is recorded: watch modules no more; called between two steps."""
        if self._outer is not None:
            with self._instrument.guard("watching modules"):
                self._outer.stop()
                self._outer = None

    def forward_begins(self, module: Any, args: Any) -> None:
        """A module is called that no other one calls; cannot raise."""
        self._on_forward(module, args)

    def step_ended(self, *_: float) -> None:
        """A step is over; cannot raise. What it takes belongs to no step."""
        self._on_step()

    def _silence(self) -> None:
        """Do nothing from now on; what is in place stays until :meth:`stop`."""
        self._thread_id = 0

    def _step_ended(self) -> None:
        """What this takes belongs to no step."""
        if not self._thread_id:
            return
        self.n_steps += 1
        if self._outer is not None:
            self._outer.close()
            self.evaluated_s.append(self._evaluated_s)
            self._evaluated_s = 0.0
        if self.n_steps >= self._due:
            self._due = 2 * self.n_steps
            self._look()

    def _look(self) -> None:
        began_s = self.ended_s = time.perf_counter()
        if any(_n_workers(use) for use in self.loaders.values()) and self.n_steps > 8:
            from perfkit.base.machine.worker_memory import private_bytes_of_workers

            self.worker_bytes.append((self.n_steps, private_bytes_of_workers()))
        self.resident.append((self.n_steps, resident_bytes()))
        self.n_profiled += torch_compat.profiler_is_on() and not self._is_ours()
        if self._asked is not None:
            self._asked(self)
        self.look_s += time.perf_counter() - began_s

    def first_look(self, thing: Any, value: int) -> tuple[int, int]:
        """The value that was given for this object first, and after how many steps."""
        return self._first_looks.setdefault(thing, (value, self.n_steps))

    # --- DataLoaders ------------------------------------------------------------------------

    def _before_fetch(self, is_batch: bool, source: Any) -> CallEnd | None:
        if get_ident() != self._thread_id:
            return None
        if self._outer is not None:
            self._outer.close()
            self._outer.pause()
        began_s = time.perf_counter()
        return partial(self._fetch_ended, is_batch, source, began_s)

    def _after_fetch(self, is_batch: bool, source: Any, began_s: float, batch: Any) -> None:
        spent_s = time.perf_counter() - began_s
        if self._outer is not None:
            self._outer.go_on()
        if not is_batch:
            self._started(source, spent_s)
        elif batch is not None:
            self._came(source, batch, spent_s)

    def _started(self, loader: Any, spent_s: float) -> None:
        use = self.loaders.get(id(loader))
        if use is None or use.ref() is not loader:
            if len(self.loaders) >= _MOST_OBJECTS:
                return
            use = self.loaders[id(loader)] = LoaderUse(weakref.ref(loader))
            # `for x in DataLoader(…)`: the loader is gone while its iterator runs
            use.sampler = weakref.ref(loader._index_sampler)
        use.n_starts += 1
        use.start_s += spent_s
        use.first_is_due = True

    def _came(self, iterator: Any, batch: Any, spent_s: float) -> None:
        use = self._use_of(iterator)
        if use is None:
            return
        use.n_batches += 1
        if use.first_is_due:
            use.first_is_due = False
            use.start_s += spent_s
        else:
            use.wait_s += spent_s
        if use.n_batches not in _LOOKS_INTO:
            return
        from perfkit.measure.batch import parts_of
        from perfkit.measure.padding import padding

        parts = parts_of(batch)
        if use.n_batches <= 2:
            self._compare(use, parts)
        found = [one for part in parts if (one := padding(part)) is not None]
        if found:
            use.padding = max(found, key=lambda one: one.share)

    def _use_of(self, iterator: Any) -> LoaderUse | None:
        """The loader of an iterator is known by what both hold."""
        for use in self.loaders.values():
            if use.iterator is not None and use.iterator() is iterator:
                return use
        sampler = getattr(iterator, "_index_sampler", None)
        for use in self.loaders.values():
            if sampler is not None and use.sampler is not None and use.sampler() is sampler:
                use.iterator = weakref.ref(iterator)
                return use
        return None

    @staticmethod
    def _compare(use: LoaderUse, parts: list[Any]) -> None:
        """Whether the second batch is the first one again."""
        kept = [np.array(part.numpy() if hasattr(part, "numpy") else part) for part in parts[:1]
                if getattr(part, "nbytes", 0) and part.nbytes < _COMPARED * 4096
                and getattr(getattr(part, "device", None), "type", "cpu") == "cpu"]  # fmt: skip
        if use.n_batches == 1:
            use.first_batch = kept
        elif kept and use.first_batch:
            one, two = use.first_batch[0], kept[0]
            # a batch of one value says nothing
            use.equal_batches = bool(
                one.shape == two.shape and np.array_equal(one, two) and (one != one.flat[0]).any()
            )
            use.first_batch = []

    # --- modules, backward passes, optimizers ---------------------------------------------------

    def _forward(self, module: Any, args: Any) -> None:
        if not self._thread_id:
            return
        use = self.modules.get(id(module))
        if use is None or use.ref() is not module:
            if len(self.modules) >= _MOST_OBJECTS:
                return
            use = self.modules[id(module)] = ModuleUse(weakref.ref(module))
            trains = [parameter.requires_grad for parameter in module.parameters()]
            use.is_frozen = bool(trains) and not any(trains)
        import torch

        with_grad = torch.is_grad_enabled()
        if not module.training and use.n_calls > use.n_without_grad + use.n_eval_with_grad:
            self._evaluates_from_s = time.perf_counter()
        use.n_calls += 1
        use.n_training += module.training
        use.n_without_grad += not with_grad
        use.n_eval_with_grad += with_grad and not module.training
        if len(use.shapes) < _MOST_SHAPES and isinstance(args, tuple):
            use.shapes.add(
                tuple(
                    tuple(one.shape) if isinstance(one, torch.Tensor) else one
                    for one in args[:4]
                    if isinstance(one, (torch.Tensor, int))
                )
            )
        if not (with_grad and module.training):
            return
        use.exchanges = getattr(module, "require_backward_grad_sync", None)
        if use.exchanges is not None:
            self._wrapped = use
        if not self.flags or self.n_steps + 1 >= self._due:
            self.flags = _flags(module)

    def _forward_ended(self) -> None:
        if self._evaluates_from_s:
            self._evaluated_s += time.perf_counter() - self._evaluates_from_s
            self._evaluates_from_s = 0.0

    def _before_backward(self) -> CallEnd | None:
        if get_ident() == self._thread_id and self._wrapped is not None:
            use, self._wrapped = self._wrapped, None
            module = use.ref()
            if use.exchanges and not getattr(module, "require_backward_grad_sync", True):
                use.n_unsynced += 1
        return None

    def _after_optimizer(self, optimizer: Any, *args: Any) -> None:
        if get_ident() == self._thread_id and len(self.optimizers) < _MOST_OBJECTS:
            self.optimizers.setdefault(id(optimizer), weakref.ref(optimizer))

    # --- calls ------------------------------------------------------------------------------

    def _count_calls(self) -> Iterator[Callable[[], None]]:
        for module_name, path in COUNTED:
            owner: Any = sys.modules.get(module_name)
            *classes, name = path.split(".")
            for one in classes:
                owner = getattr(owner, one, None)
            original = getattr(owner, name, None)
            if original is None:
                continue
            yield stand_in(owner, name, self._counted(f"{module_name}.{path}", original))

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._in_call or not self.n_steps or get_ident() != self._thread_id:
                return original(*args, **kwargs)
            self._in_call = True
            try:
                self._calls(name, sys._getframe(1))
                return original(*args, **kwargs)
            finally:
                self._in_call = False

        return call

    def _note(self, name: str, frame: Any) -> None:
        by = frame.f_code.co_filename
        if not (is_user_code(by) or tells_something(by)):
            return  # torch's own, or perfkit's
        for _ in range(_DEEPEST):
            if frame is None:
                return
            if is_user_code(frame.f_code.co_filename):
                key = name, frame.f_code.co_filename, frame.f_lineno
                if key in self.calls or len(self.calls) < _MOST_OBJECTS:
                    self.calls[key] += 1
                    self.called_in.setdefault(key, set()).add(self.n_steps % STEPS_TOLD)
                return
            frame = frame.f_back


def _nothing(*args: object) -> None:
    return None


def _flags(module: Any) -> dict[str, Any]:
    """The global switches of torch, as they are now."""
    import torch

    parameter = next(module.parameters(), None)
    device = "cpu" if parameter is None else parameter.device.type
    return {
        "device": device,
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fills": getattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
        "cudnn_benchmark": torch.backends.cudnn.benchmark
        and parameter is not None
        and torch.backends.cudnn.is_acceptable(parameter),  # type: ignore[no-untyped-call]
        "autocast": torch.is_autocast_enabled(device),
        "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
    }


def _n_workers(use: LoaderUse) -> int:
    return getattr(use.ref(), "num_workers", 0) or 0
