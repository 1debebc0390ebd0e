"""All private names of torch that perfkit uses, wrapped in functions.

Each function says which private name it hides; ``tests/base/test_torch_compat.py`` says what the
installed torch lacks. torch is imported inside the functions: importing this module costs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

from perfkit.base.stand_in import Calls, Listeners, stand_in
from perfkit.base.when_imported import when_imported

# --- memory -------------------------------------------------------------------------------


def dispatch_mode_class() -> Any:
    """``torch.utils._python_dispatch.TorchDispatchMode``, told to leave compiled code alone.

    ``ignore_compile_internals`` (see :func:`modes_spare_compiled_code`): without it dynamo runs
    the user's compiled functions uncompiled under the mode, and keeps doing so afterwards (seen
    in torch 2.13, for functions compiled before as well). ``_should_skip_dynamo``
    would wrap the handler, which imports dynamo (a second) and costs a microsecond an operator.

    Other modes may begin and end around it in any order: see :func:`leave_dispatch_mode`.

    Attributes:
        was_lost: it had gone before it was left: another mode's end took it away, or the end of
            the backward pass in which it began.
        began_in_pass: it began within a backward pass.
        below: the modes that were on when it began.
    """
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    task = graph_task_id_reader()

    class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        was_lost = False

        def __enter__(self) -> Any:
            self.began_in_pass = task() >= 0
            self.below = _get_current_dispatch_mode_stack()
            return super().__enter__()  # type: ignore[no-untyped-call]

        def __exit__(self, *error: object) -> None:
            leave_dispatch_mode(self)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    return DispatchMode


def fake_group_store() -> Any:
    """A store for ``init_process_group("fake", store=…)``; importing it registers that backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def group_of_name(name: str) -> Any:
    """The process group that functional collectives call so; None if there is none."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]
    except (LookupError, RuntimeError):
        return None


def lengths_as_lists() -> Callable[[], None]:
    """Let ``F.ctc_loss`` take lengths on the CPU while a dispatch mode is on; returns the undoing.

    It reads lengths that are tensors into lists and goes on with these. Under any dispatch mode it
    goes on with the tensors, which fails on a GPU where the lengths are on the CPU, as most people
    have them (torch 2.11, ``areAnyTensorSubclassLike`` in LossCTC.cpp). So they are lists before.
    """
    import torch

    original = torch.ctc_loss

    @functools.wraps(original)
    def ctc_loss(log_probs: Any, targets: Any, *lengths: Any, **options: Any) -> Any:
        if log_probs.is_cpu:
            return original(log_probs, targets, *lengths, **options)
        listed = (_listed(one) for one in lengths[:2])
        for name in ("input_lengths", "target_lengths"):
            if name in options:
                options[name] = _listed(options[name])
        return original(log_probs, targets, *listed, *lengths[2:], **options)

    return stand_in(torch, "ctc_loss", ctc_loss)


def _listed(lengths: Any) -> Any:
    import torch

    is_host = isinstance(lengths, torch.Tensor) and lengths.is_cpu
    return lengths.tolist() if is_host else lengths  # of a CPU tensor: nobody waits


def modes_spare_compiled_code() -> bool:
    """Whether ``TorchDispatchMode.ignore_compile_internals`` exists (torch 2.13 has it)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """``torch.utils._python_dispatch._disable_current_modes``.

    For perfkit's own operators, which must not reach the user's modes.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


def without_modes() -> AbstractContextManager[Any]:
    """No dispatch or function mode sees what is called within; costs next to nothing without one.

    Hides ``torch._C._len_torch_dispatch_stack`` and ``DisableTorchFunction``.
    """
    import torch

    without: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    if torch._C._len_torch_dispatch_stack():
        stack = contextlib.ExitStack()
        stack.enter_context(without)
        stack.enter_context(without_dispatch_modes())
        return stack
    return without


def leave_dispatch_mode(mode: Any) -> None:
    """Exit ``mode`` even if user code left another mode above it, which then stays active.

    Does nothing where it has been left. torch takes the mode on top away, whichever ends: if that
    was this one, the one meant goes now. It also keeps three flags that each mode puts back as they
    were before it: they stay right. Hides ``_pop_mode``, ``_push_mode``,
    ``_get_current_dispatch_mode`` and its stack, of ``torch.utils._python_dispatch``.
    """
    from torch.utils import _python_dispatch

    modes: Any = _python_dispatch

    def leave(above: list[Any]) -> None:
        if above:  # the flags are those of that mode, which puts back at its end what we found
            lowest = above[-1]
            for kept, flag in _MODE_FLAGS.items():
                ours, theirs = getattr(mode, kept, None), getattr(lowest, kept, None)
                if ours and theirs:
                    theirs[-above.count(lowest)], ours[-1] = ours[-1], getattr(modes, flag)
        modes.TorchDispatchMode.__exit__(mode, None, None, None)

    if not mode.old_dispatch_mode_flags:
        return
    if not _leave(mode, leave, modes._get_current_dispatch_mode, modes._pop_mode, modes._push_mode):
        mode.was_lost = True
        for kept, flag in _MODE_FLAGS.items():
            if hasattr(mode, kept):
                found = getattr(mode, kept).pop()
                if mode.began_in_pass:
                    setattr(modes, flag, found)
        if not mode.began_in_pass:
            _end_the_one_meant(modes._get_current_dispatch_mode_stack(), mode.below, modes)
    mode.below = []


#: Of a mode that was lost.
WAS_LOST = (
    "not all operators were seen: this code ended a dispatch mode of torch (such as a "
    "FlopCounterMode) that began before perfkit's, or perfkit's began within a backward pass and "
    "outlived it"
)

#: In a mode: the flags of ``torch.utils._python_dispatch`` as they were before it.
_MODE_FLAGS = {
    "old_dispatch_mode_flags": "_is_in_torch_dispatch_mode",
    "old_non_infra_dispatch_mode_flags": "_is_in_non_infra_torch_dispatch_mode",
    "old_without_ignore_compile_internals_dispatch_mode_flags": (
        "_is_in_any_mode_without_ignore_compile_internals"
    ),
}


def _leave(
    mode: Any,
    leave: Callable[[list[Any]], None],
    current: Callable[[], Any],
    pop: Callable[[], Any],
    push: Callable[[Any], None],
) -> bool:
    """Whether it was there."""
    above: list[Any] = []
    while (top := current()) not in {mode, None}:
        above.append(pop())
    try:
        if top is mode:  # and not None: someone else has already removed it
            leave(above)
    finally:
        for other in reversed(above):
            push(other)
    return top is mode


def _end_the_one_meant(now: list[Any], below: list[Any], modes: Any) -> None:
    """Another mode's end took ours, which was above it: nothing but that one has changed."""
    if below and now == below:
        modes._pop_mode()


def dispatch_mode_is_active(mode: Any) -> bool:
    """Whether ``mode`` sees the operators of this thread.

    Hides ``torch.utils._python_dispatch._get_current_dispatch_mode_stack``.
    """
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return any(active is mode for active in _get_current_dispatch_mode_stack())


def jit_tracing_reader() -> Callable[[], bool]:
    """``torch.jit.is_tracing``: sizes of tensors are tensors then, and a look at one is traced."""
    import torch

    reader: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
    return reader


def graph_task_id_reader() -> Callable[[], int]:
    """``torch._C._current_graph_task_id``: -1 outside a backward pass."""
    import torch

    reader: Callable[[], int] = torch._C._current_graph_task_id
    return reader


def has_made_an_optimizer() -> bool:
    """Whether this process has made a ``torch.optim.Optimizer`` of whatever class.

    Hides that its ``__init__`` marks the ``step`` of its class (``_patch_step_function``).
    """
    from torch.optim import Optimizer

    classes: list[type[Optimizer]] = [Optimizer]
    for made in classes:
        classes += made.__subclasses__()
    return any(getattr(made.step, "hooked", False) for made in classes)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Run ``callback`` at the end of the current backward pass.

    Hides ``torch.autograd.Variable._execution_engine.queue_callback``, which DDP and FSDP
    are built on. Must be called from inside a backward pass.
    """
    from torch.autograd import Variable

    Variable._execution_engine.queue_callback(callback)


def makes_storage(func: Any) -> int:
    """What an operator can do to storages, read from its schema.

    0: nothing, it only returns arguments or views of them; 1: its results may be new; 2: it may
    resize an existing storage (``resize_``, ``set_``, ``out=``). Hides ``OpOverload._schema``.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return 1
    if any(argument.is_out for argument in schema.arguments):
        return 2
    if schema.name.rpartition("::")[2] in {"resize_", "resize_as_", "resize", "set_", "set"}:
        return 2
    return int(any(result.alias_info is None for result in schema.returns))


def inner_tensors(tensor: Any) -> list[Any] | None:
    """The tensors that a composed tensor consists of; None for one with its own storage.

    Covers sparse layouts (``_indices``/``_values``, which also take uncoalesced tensors) and
    wrapper subclasses with ``__tensor_flatten__``.
    """
    import torch

    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [getattr(tensor, name) for name in names]
    names = _SPARSE_PARTS.get(str(tensor.layout))
    if names is None:
        return None
    with without_dispatch_modes(), torch.no_grad():
        return [getattr(tensor, name)() for name in names]


_SPARSE_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def is_fake(tensor: Any) -> bool:
    """Whether this is a ``torch._subclasses.fake_tensor.FakeTensor``."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and isinstance(tensor, fake.FakeTensor)


def fake_mode() -> Any:
    """A ``torch._subclasses.fake_tensor.FakeTensorMode``.

    ``allow_non_fake_inputs`` lets a model's plain constants take part.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_copy(mode: Any, obj: Any) -> Any:
    """A deep copy of ``obj`` whose tensors are fake ones of ``mode``.

    Hides ``torch._subclasses.fake_tensor.FakeCopyMode``: ``Module.to`` fails
    under a FakeTensorMode.
    """
    import copy

    from torch._subclasses.fake_tensor import FakeCopyMode

    with FakeCopyMode(mode):
        return copy.deepcopy(obj)


def start_allocator_history(max_entries: int) -> None:
    """``torch.cuda.memory._record_memory_history``, without stack traces.

    Entries of an earlier recording by someone else would count towards the region, so they are
    cleared (``clear_history``).
    """
    import torch

    torch.cuda.memory._record_memory_history(
        context=None, stacks="python", max_entries=max_entries, clear_history=True
    )


def stop_allocator_history() -> None:
    """``torch.cuda.memory._record_memory_history(enabled=None)``."""
    import torch

    torch.cuda.memory._record_memory_history(enabled=None)


def allocator_snapshot() -> dict[str, Any]:
    """``torch.cuda.memory._snapshot``: segments and traces as plain values."""
    import torch

    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    return snapshot


def has_expandable_segments() -> bool:
    """Whether the allocators of devices were told ``expandable_segments:True``.

    As the process began, or since: ``torch._C._accelerator_getAllocatorSettings`` says what they
    were told last (seen in torch 2.13); without it the environment says what was told first.
    """
    import os

    import torch

    told = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    settings = told() if told else next(filter(None, map(os.environ.get, names)), "")
    return re.search(r"\bexpandable_segments\s*:\s*True\b", settings) is not None


def saved_tensors(node: Any) -> list[Any]:
    """The tensors that a node of the autograd graph keeps for its backward.

    Hides the attributes ``_raw_saved_*`` and ``SavedTensor.data`` with
    ``unpack_hook`` (seen in torch 2.11, not in 2.9; without them nothing is found). Tensors packed
    by a hook are skipped: unpacking could run code, such as a checkpoint's recomputation.
    """
    import torch

    found = []
    node_type: Any = type(node)
    for name in _saved_names(node_type):
        try:
            raw = getattr(node, name)
        except RuntimeError:  # freed by an earlier backward pass
            continue
        for saved in raw if isinstance(raw, (list, tuple)) else (raw,):
            data = getattr(saved, "data", None)
            if isinstance(data, torch.Tensor) and getattr(saved, "unpack_hook", None) is None:
                found.append(data)
    return found


@functools.cache
def _saved_names(node_type: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))


def compiled_code_types() -> tuple[type, ...]:
    """The types that ``torch.compile`` creates; empty if nothing was compiled.

    Hides ``torch._dynamo.eval_frame.OptimizedModule`` and ``OptimizeContext``.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    names = ("OptimizedModule", "OptimizeContext")
    return tuple(getattr(frames, name) for name in names if hasattr(frames, name))


def compile_has_patched_torch() -> bool:
    """Whether ``torch.compile`` has changed torch for this process, as its first use does.

    Hides ``torch._dynamo.eval_frame.TorchPatcher.patch``.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    patch: Any = getattr(getattr(frames, "TorchPatcher", None), "patch", None)
    return hasattr(patch, "cache_info") and bool(patch.cache_info().currsize)


@dataclass(frozen=True)
class Compilation:
    """One compilation of a piece of code, as torch logs it.

    Attributes:
        key: which code, and which attempt at it, such as ``"0/1"``.
        filename, line: where the code begins; ``""`` and 0 of a backward pass.
        why_again: which check failed so that it was compiled again; empty the first time.
        start_us, end_us: on the wall clock.
        gave_up: it was one attempt too many: this code is never compiled again.
        is_static: with ``dynamic=False``, a graph for each size and number.
    """

    key: str
    filename: str
    line: int
    why_again: str
    start_us: int
    end_us: int
    gave_up: bool = False
    is_static: bool = False

    @property
    def frame(self) -> str:
        """Which code, as in ``Torch-Compiled Region: 0/1`` before the stroke."""
        return self.key.rpartition("/")[0]


@dataclass(frozen=True)
class Break:
    """A place at which ``torch.compile`` ended a graph."""

    filename: str
    line: int
    reason: str


def compile_log() -> tuple[list[Compilation], list[Break], int]:
    """What ``torch.compile`` has done in this process; its last 64 compilations at most.

    Hides ``torch._dynamo.utils.get_compilation_metrics``, ``graph_break_reasons`` and ``counters``.

    Returns:
        Compilations, breaks and the number of graphs.
    """
    log: Any = sys.modules.get("torch._dynamo.utils")
    # a program may end while another thread of it imports this
    if log is None or getattr(log.__spec__, "_initializing", False):
        return [], [], 0
    compilations = [
        Compilation(
            str(getattr(one, "compile_id", "") or ""),
            one.co_filename or "",
            one.co_firstlineno or 0,
            getattr(one, "recompile_reason", "") or "",
            getattr(one, "start_time_us", 0) or 0,
            getattr(one, "end_time_us", 0) or 0,
            _hit_the_limit(one),
            '"automatic_dynamic_shapes": false' in (getattr(one, "dynamo_config", "") or ""),
        )
        for one in log.get_compilation_metrics()
    ]
    breaks = [
        Break(one.user_stack[-1].filename, one.user_stack[-1].lineno or 0, one.reason)
        for one in log.graph_break_reasons
        if one.graph_break and one.user_stack
    ]
    return compilations, breaks, int(log.counters["stats"]["unique_graphs"])


def _hit_the_limit(one: Any) -> bool:
    """Whether this attempt failed only because there had been too many before.

    torch says so in ``fail_reason``; of ``accumulated_recompile_limit`` too.
    """
    told = f"{getattr(one, 'fail_type', '')} {getattr(one, 'fail_reason', '')}".lower()
    return bool(re.search(r"recompile.?limit|cache.?size.?limit", told))


def cuda_contexts() -> list[int]:
    """The CUDA devices on which this process has a context; creates none.

    Hides ``torch._C._cuda_hasPrimaryContext`` (without it, and on ROCm, where waiting
    creates no context, all visible devices are returned). CUDA must be initialised here.
    """
    import torch

    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if torch.version.hip:
        has_context = None
    devices = range(torch.cuda.device_count())
    return [device for device in devices if has_context is None or has_context(device)]


def cuda_is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream, so that waiting is forbidden.

    Does not initialise CUDA.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def forget_forward_hook(handle: Any) -> None:
    """Remove a global forward hook completely.

    ``RemovableHandle.remove`` leaves the hook's entry in
    ``torch.nn.modules.module._global_forward_hooks_with_kwargs`` (seen in torch 2.13).
    """
    from torch.nn.modules import module

    handle.remove()
    getattr(module, "_global_forward_hooks_with_kwargs", {}).pop(handle.id, None)


class _AtTheEnd:
    """The hook at the end of a module's forward pass.

    Where that raised, the hook stays on the module until it is taken off. Whoever copies or saves
    the module meanwhile gets a function in its place that does nothing, and that needs no perfkit
    to be loaded.
    """

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __call__(self, module: Any, args: Any, result: Any) -> None:
        self._ended()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def forward_end_switch(
    ended: Callable[[], None],
) -> tuple[Callable[[Any], Any], Callable[[Any], object]]:
    """Call ``ended`` at the end of one module's forward pass; cheap to put on and take off.

    Returns how to put it on a module, which returns where it is then; and how to take it from
    there. ``register_forward_hook`` does the same in ten times the time. Hides
    ``torch.nn.Module._forward_hooks``.
    """
    from torch.utils.hooks import RemovableHandle

    number, hook = RemovableHandle(OrderedDict()).id, _AtTheEnd(ended)

    def put(module: Any) -> Any:
        hooks = module._forward_hooks
        hooks[number] = hook
        return hooks

    return put, operator.methodcaller("pop", number, None)


def forward_runs(hooks: Any) -> bool:
    """Whether the module with these ``_forward_hooks`` is in its forward pass, in this thread.

    Looks for ``torch.nn.Module._call_impl`` among the callers.
    """
    from torch.nn import Module

    code = getattr(Module._call_impl, "__code__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            module = frame.f_locals.get("self")
            if getattr(module, "_forward_hooks", None) is hooks:
                return True
        frame = frame.f_back
    return False


_module_hooks: dict[int, weakref.ref[Callable[[Any, Any], None]]] = {}


def module_hook_switch(
    hook: Callable[[Any, Any], None],
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A hook before the forward pass of every module, that is cheap to turn on and off.

    Returns how to turn it on, and off, which gives it if it was on; it is off at first. Code that
    torch.compile has made is made again, eight times and then no more, if the hooks' numbers are
    others than before: so the number stays, and is that of an earlier hook that is gone. Hides
    ``torch.nn.modules.module._global_forward_pre_hooks``.
    """
    from torch.nn.modules import module

    hooks: Any = module._global_forward_pre_hooks
    number = next((one for one, its in _module_hooks.items() if its() is None), None)
    if number is None:
        handle = module.register_module_forward_pre_hook(hook)
        number = handle.id
        handle.remove()
    _module_hooks[number] = weakref.ref(hook)
    return (
        functools.partial(hooks.__setitem__, number, hook),
        functools.partial(hooks.pop, number, None),
    )


def _install_compiled_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``begins(module)`` before what ``torch.compile(module)`` returned runs.

    What it returns is called at the end; neither may raise. Returns how to stop. Such a module
    warns of global hooks: ``begins`` turns them off. Hides
    ``torch._dynamo.eval_frame.OptimizedModule.__call__``.
    """
    undo: list[Callable[[], None]] = []

    def install() -> None:
        kind: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
        original: Any = vars(kind).get("__call__") if kind is not None else None
        if original is None:
            return

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            end = calls.begin(self)
            if end is None:
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                end(None)

        undo.append(stand_in(kind, "__call__", __call__))

    undo.append(when_imported("torch._dynamo", install))
    return functools.partial(_undo_all, undo)


def _undo_all(undo: list[Callable[[], None]]) -> None:
    while undo:
        undo.pop()()


def _install_resize_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``listener(storage)`` after each ``UntypedStorage.resize_``; returns how to stop.

    That method (with which FSDP frees and refills its shards) is not an operator, so no mode sees
    it. ``torch.UntypedStorage`` inherits it from ``torch._C.StorageBase``: while
    there is a listener, the class has its own method in front of it.
    """
    import torch

    def resize_(storage: Any, size: int) -> Any:
        result = torch._C.StorageBase.resize_(storage, size)  # type: ignore[attr-defined]
        calls.begin(storage)
        return result

    return stand_in(torch.UntypedStorage, "resize_", resize_)


def _install_swap_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``begins(a, b)`` before each ``torch.utils.swap_tensors``; returns how to stop.

    ``Module.to`` swaps the parameters of some kinds of tensors (DTensor, quantized ones), of all
    where ``torch.__future__`` says so. It refuses tensors to which there are weak references.
    """
    import torch

    original: Any = torch.utils.swap_tensors

    @functools.wraps(original)
    def swap_tensors(t1: Any, t2: Any) -> Any:
        end = calls.begin(t1, t2)
        try:
            return original(t1, t2)
        finally:
            if end is not None:
                end(None)

    return stand_in(torch.utils, "swap_tensors", swap_tensors)


def never_compile(functions: Iterable[FunctionType]) -> None:
    """As ``torch.compiler.disable`` does, but in place: for whoever has these functions already.

    A call of one ends the graph, and it runs uncompiled with all that it calls; what is defined in
    it, such as a hook, too, but a graph may look through that. Hides ``_torchdynamo_disable``,
    and ``set_code_exec_strategy`` of ``torch._dynamo.eval_frame``. A torch without them looks in.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    kinds: Any = sys.modules.get("torch._dynamo.types")
    with suppress(AttributeError):
        skip = kinds.FrameExecStrategy(kinds.FrameAction.SKIP, kinds.FrameAction.SKIP)
        for function in functions:
            vars(function)["_torchdynamo_disable"] = True
            codes = [inspect.unwrap(function).__code__]
            for code in codes:
                frames.set_code_exec_strategy(code, skip)
                codes.extend(one for one in code.co_consts if isinstance(one, CodeType))


# --- the profiler -------------------------------------------------------------------------


def profiler_is_on() -> bool:
    """Whether any of torch's profilers is recording in this thread or process.

    Hides ``torch._C._autograd._profiler_enabled``
    and ``torch.autograd.profiler._is_profiler_enabled``, which also covers
    profilers started by other threads.
    """
    import torch

    return bool(
        torch._C._autograd._profiler_enabled()
        or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    )


def profiler_is_prepared() -> bool:
    """Whether a ``torch.profiler.profile`` with a schedule is in its warm-up.

    It is prepared in torch, which does not report a profiler yet. If another one starts now, it
    replaces the first, whose own start then crashes the process (seen in torch 2.13). Found among
    all objects, because torch keeps no list; reads their ``current_action``,
    ``profiler`` and ``kineto_results``.
    """
    import gc

    from torch.profiler import ProfilerAction, profile

    for found in gc.get_objects():
        if issubclass(type(found), profile):
            inner = getattr(found, "profiler", None)
            if (
                getattr(found, "current_action", None) is ProfilerAction.WARMUP
                and inner is not None
                and getattr(inner, "kineto_results", None) is None
            ):
                return True
    return False


def compiles_now() -> bool:
    """Whether torch.compile is at work on a function, in whatever thread.

    Reads the count of ``torch._dynamo.callback.callback_handler`` (seen in torch 2.13): its
    callbacks would be called in the step.
    """
    module = sys.modules.get("torch._dynamo.callback")
    handler = getattr(module, "callback_handler", None)
    return bool(getattr(handler, "_CompilationCallbackHandler__pending_callbacks_counter", 0))


def profiler_label(name: str) -> AbstractContextManager[Any]:
    """A label for the profiler around operators that is not an operator itself.

    ``torch.profiler.record_function`` calls its own operators, which modes would see. Hides
    ``torch._C._profiler._RecordFunctionFast``.
    """
    import torch

    label: AbstractContextManager[Any] = torch._C._profiler._RecordFunctionFast(name)
    return label


def profiler_runs_here() -> bool:
    """``torch._C._autograd._profiler_enabled``: whether this thread's profiler is actually running.

    Unlike :func:`profiler_is_on`, it asks only torch's core.
    """
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def forget_running_profiler() -> None:
    """Reset ``torch.autograd.profiler._is_profiler_enabled`` after a profiler was
    ended without its knowledge.
    """
    import torch

    if hasattr(torch.autograd.profiler, "_is_profiler_enabled"):
        torch.autograd.profiler._is_profiler_enabled = False


def forget_events(profile: Any) -> None:
    """Free the events of a ``torch.profiler.profile`` that has ended and has been read.

    It refers to itself (``action_map``): without this they stay until Python's collector comes by,
    some hundred profiles later (pytorch/pytorch#193348).
    """
    profile.profiler = None


def recorded_lists(
    profile: Any, names: Mapping[str, int]
) -> list[tuple[str, int, list[list[tuple[tuple[int, ...], str]] | None]]]:
    """The lists of tensors that recorded operators were given, with the shape and dtype of each.

    What a profiler exports has no shapes of a list of more than 30 tensors, and dtypes of none.

    Hides ``kineto_results.experimental_event_tree()`` and the ``extra_fields.inputs`` of its nodes;
    a list of tensors there is one of ``_TensorMetadata``.

    Args:
        profile: a ``torch.profiler.profile`` with ``record_shapes=True`` that has ended.
        names: operators, and how many calls of each there are: the search ends with the last.

    Returns:
        Of each call its name, when it began in ns, and per argument (shape, dtype such as
        ``"float32"``) of the tensors in a list; None for what is no list of tensors.
    """
    left = dict(names)
    found = []
    nodes = list(profile.profiler.kineto_results.experimental_event_tree())
    while nodes and left:
        node = nodes.pop()
        nodes.extend(node.children)  # aten::stack calls aten::cat
        name = node.name
        if name not in left:
            continue
        left[name] -= 1
        if not left[name]:
            del left[name]
        lists = [_list_of_tensors(one) for one in node.extra_fields.inputs]
        found.append((name, int(node.start_time_ns), lists))
    return found


def _list_of_tensors(value: Any) -> list[tuple[tuple[int, ...], str]] | None:
    if not isinstance(value, list) or not all(hasattr(one, "sizes") for one in value):
        return None
    return [(tuple(one.sizes), str(one.dtype).removeprefix("torch.")) for one in value]


def _install_profiler_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``listener()`` just before any of torch's profilers starts; returns how to stop.

    If it raises, that profiler does not start. Hides ``_prepare_profiler``
    and ``_enable_profiler`` of ``torch.autograd.profiler``, through which
    ``torch.profiler`` goes as well, and ``_enable_profiler_legacy`` of
    ``torch.autograd.profiler_legacy``: these names are replaced in their modules while
    there is a listener.
    """
    import importlib

    undo: list[Callable[[], None]] = []
    for module_name, name in (
        ("torch.autograd.profiler", "_prepare_profiler"),
        ("torch.autograd.profiler", "_enable_profiler"),
        ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"),
    ):
        try:
            module: Any = importlib.import_module(module_name)
            original: Any = getattr(module, name)
        except (ImportError, AttributeError):  # a torch without it cannot start one there
            continue
        undo.append(stand_in(module, name, calls.around(original)))
    return functools.partial(_undo_all, undo)


# --- experiment ---------------------------------------------------------------------------


def _install_loader_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``begins(is_batch, source)`` before every fetch of a DataLoader.

    What it returns is called at the end, with what was fetched. A fetch is a batch (``__next__``,
    whose source is the iterator) or the start of an iterator, which starts its workers (its source
    is the loader). Neither may raise. Returns how to stop.
    Hides ``torch.utils.data.dataloader._BaseDataLoaderIter``.
    """
    from torch.utils.data import dataloader

    iterator: Any = dataloader._BaseDataLoaderIter
    loader: Any = dataloader.DataLoader
    original_next, original_iter = iterator.__next__, loader.__iter__

    def __next__(self: Any) -> Any:  # noqa: N807 - replaces the method
        end = calls.begin(True, self)
        if end is None:
            return original_next(self)
        batch = None
        try:
            batch = original_next(self)
            return batch
        finally:
            end(batch)

    def __iter__(self: Any) -> Any:  # noqa: N807
        end = calls.begin(False, self)
        if end is None:
            return original_iter(self)
        try:
            return original_iter(self)
        finally:
            end(None)

    undo = [stand_in(iterator, "__next__", __next__), stand_in(loader, "__iter__", __iter__)]
    return functools.partial(_undo_all, undo)


def watch_items(
    iterator: Any, begins: Callable[[Any], Callable[[Any], object] | None]
) -> Callable[[], None] | None:
    """Call ``begins(indices)`` before this iterator of a loader asks its data set for a batch.

    What it returns is called with the items, before they are collated. Neither may raise. Returns
    how to stop; None where workers ask for them, or no batch is made of items.
    Hides ``_MapDatasetFetcher``.
    """
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    kind: Any = _MapDatasetFetcher
    fetcher: Any = getattr(iterator, "_dataset_fetcher", None)
    if type(fetcher) is not kind or not fetcher.auto_collation:
        return None
    # a cycle would keep the data set until the collector runs
    ref, collate = weakref.ref(fetcher), fetcher.collate_fn
    end: Callable[[Any], object] | None = None

    def fetch(indices: Any) -> Any:
        nonlocal end
        end = begins(indices)
        return kind.fetch(ref(), indices)

    def collate_fn(items: Any) -> Any:
        if end is not None:
            end(items)
        return collate(items)

    def stop() -> None:
        known: Any = ref()
        if known is not None:
            vars(known).pop("fetch", None)
            known.collate_fn = collate

    fetcher.fetch, fetcher.collate_fn = fetch, collate_fn
    return stop


_SAVES = {
    "torch": ("save",),
    "torch.distributed.checkpoint": ("save", "async_save"),
    "safetensors.torch": ("serialize_file",),
}


def _install_save_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``begins()`` before a checkpoint is written, and what it returns at the end.

    Returns how to stop. Seen are ``torch.save``; ``save`` and ``async_save`` of
    ``torch.distributed.checkpoint`` (of the latter what its caller waits for); and
    ``safetensors.torch.serialize_file``, through which its ``save_file`` goes; the last two as soon
    as they are imported. A name bound before (``from torch import save``) is not seen.
    """
    undo: list[Callable[[], None]] = []

    def install(module_name: str) -> None:
        module = sys.modules.get(module_name)
        for name in _SAVES[module_name]:
            original: Any = getattr(module, name, None)
            if original is not None:
                undo.append(stand_in(module, name, calls.around(original)))

    try:
        for module_name in _SAVES:
            undo.append(when_imported(module_name, functools.partial(install, module_name)))
    except BaseException:
        _undo_all(undo)
        raise
    return functools.partial(_undo_all, undo)


#: The name of a DataLoader's worker process: ``_worker_loop`` sets it.
LOADER_WORKER_NAME = "pt_data_worker"


def loader_position(iterator: Any) -> tuple[int, int] | None:
    """Batches handed out by a DataLoader's iterator, and how many it has; None if unknown.

    Hides ``_BaseDataLoaderIter._num_yielded``.
    """
    try:
        done, total = int(iterator._num_yielded), len(iterator)
    except Exception:  # a sampler without a length, or one that raises
        return None
    return (done, total) if 0 < done <= total else None


def tf32_allowed() -> tuple[bool, bool]:
    """Whether float32 matrix products, and float32 convolutions, may use TF32 on a CUDA device.

    Reads ``fp32_precision``, which both ways of setting it change; the older
    getters raise if the newer way was used.
    """
    import torch

    backends: Any = torch.backends
    products, convolutions = backends.cuda.matmul, backends.cudnn.conv
    return products.fp32_precision == "tf32", convolutions.fp32_precision == "tf32"


@contextlib.contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Compute float32 products of a CUDA device in ``"ieee"`` or ``"tf32"``; put back at the end.

    Sets ``fp32_precision``, as :func:`tf32_allowed` reads it.
    """
    import torch

    backends: Any = torch.backends
    before = backends.cuda.matmul.fp32_precision
    backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        backends.cuda.matmul.fp32_precision = before


def float8_product(size: int, place: str) -> Callable[[], Any]:
    """A product of two square float8 matrices with bfloat16 result, to be called.

    Hides ``torch._scaled_mm``, which wants the second matrix stored by columns.
    """
    import torch

    a, b = (torch.randn(size, size, device=place).to(torch.float8_e4m3fn) for _ in range(2))
    b, one = b.t(), torch.ones((), device=place)
    scaled: Any = torch._scaled_mm
    return lambda: scaled(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


# --- sync lint ----------------------------------------------------------------------------


def autograd_node_reader() -> Callable[[], Any]:
    """``torch._C._current_autograd_node``: None outside a backward pass."""
    import torch

    reader: Callable[[], Any] = torch._C._current_autograd_node
    return reader


def sequence_number_reader() -> Callable[[], int]:
    """``torch._C._autograd._get_sequence_nr``: of the next autograd node."""
    import torch

    reader: Callable[[], int] = torch._C._autograd._get_sequence_nr
    return reader


def around_backward(context: Callable[[], Any]) -> Callable[[], None]:
    """Run every backward pass within ``context()``; returns how to stop.

    As :func:`watch_backward` does, with one frame of Python: passes may nest deeply.
    """
    from torch import autograd as _autograd

    autograd: Any = _autograd
    original: Any = autograd._engine_run_backward
    is_on = True

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_on:
            return original(*args, **kwargs)
        with context():
            return original(*args, **kwargs)

    def stop() -> None:
        nonlocal is_on
        is_on = False
        put_back()

    put_back = stand_in(autograd, "_engine_run_backward", run)
    return stop


def _install_backward_listeners(calls: Calls) -> Callable[[], None]:
    """Call ``begins(roots)``, nodes of graphs, before a backward pass, and what it returns after.

    Neither may raise. Returns how to stop. Hides ``torch.autograd._engine_run_backward``,
    through which ``Tensor.backward`` and ``torch.autograd.grad`` go.
    """
    from torch import autograd

    name = "_engine_run_backward"
    return stand_in(autograd, name, calls.around(getattr(autograd, name), told="grad_fn"))


# How to listen; what a listener is told says the docstring of what installs it.
_resize_listeners = Listeners(_install_resize_listeners)
watch_storage_resize = _resize_listeners.add
_swap_listeners = Listeners(_install_swap_listeners)
watch_swapped_tensors = _swap_listeners.add
_profiler_listeners = Listeners(_install_profiler_listeners)
watch_profiler_starts = _profiler_listeners.add
_loader_listeners = Listeners(_install_loader_listeners)
watch_loader_iterators = _loader_listeners.add
_save_listeners = Listeners(_install_save_listeners)
watch_saves = _save_listeners.add
_compiled_listeners = Listeners(_install_compiled_listeners)
watch_compiled_modules = _compiled_listeners.add
_backward_listeners = Listeners(_install_backward_listeners)
watch_backward = _backward_listeners.add


def without_torch_function() -> AbstractContextManager[Any]:
    """No function mode, and no tensor's ``__torch_function__``, sees what is called within.

    Hides ``torch._C.DisableTorchFunction``.
    """
    import torch

    disabled: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return disabled


def enter_function_mode(mode: Any) -> Callable[[], None]:
    """Enter ``mode``; returns how to exit it, which is called once.

    User code may leave another function mode above it, which then stays. Where another mode's end
    took it away, the one meant goes then. Hides ``_pop_mode``, ``_push_mode``,
    ``_get_current_function_mode`` and its stack, of ``torch.overrides``.
    """
    from torch import overrides

    modes: Any = overrides
    in_a_pass = graph_task_id_reader()() >= 0
    below = [] if in_a_pass else modes._get_current_function_mode_stack()
    mode.__enter__()

    def leave() -> None:
        current, pop, push = modes._get_current_function_mode, modes._pop_mode, modes._push_mode
        if not _leave(mode, lambda above: pop(), current, pop, push):
            _end_the_one_meant(modes._get_current_function_mode_stack(), below, modes)

    return leave


def within_a_device() -> bool:
    """Whether ``with torch.device(…)`` or ``set_default_device`` says where tensors are made.

    ``torch.overrides._get_current_function_mode_stack`` and
    ``torch.utils._device.DeviceContext``.
    """
    from torch import overrides
    from torch.utils._device import DeviceContext

    modes = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(isinstance(mode, DeviceContext) for mode in modes)
