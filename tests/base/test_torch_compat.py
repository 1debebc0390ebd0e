"""Which private names of torch are missing here: uses each function that hides one."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.base import torch_compat as compat


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._C", "DisableTorchFunction"),
        ("torch._C", "_accelerator_getAllocatorSettings"),
        ("torch._C", "_current_graph_task_id"),
        ("torch._C", "_current_autograd_node"),
        ("torch._C._autograd", "_get_sequence_nr"),
        ("torch._C._autograd", "_profiler_enabled"),
        ("torch._dynamo.eval_frame", "TorchPatcher"),
        ("torch._dynamo.eval_frame", "_callback_from_stance"),
        ("torch._dynamo.eval_frame", "set_code_exec_strategy"),
        ("torch._dynamo.types", "FrameExecStrategy"),
        ("torch._dynamo.utils", "counters"),
        ("torch._dynamo.utils", "get_compilation_metrics"),
        ("torch._dynamo.utils", "graph_break_reasons"),
        ("torch.autograd", "_engine_run_backward"),
        ("torch.autograd.profiler", "_enable_profiler"),
        ("torch.autograd.profiler", "_is_profiler_enabled"),
        ("torch.autograd.profiler", "_prepare_profiler"),
        ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"),
        ("torch.autograd.Variable._execution_engine", "queue_callback"),
        ("torch.distributed.distributed_c10d", "_resolve_process_group"),
        ("torch.nn.Module", "_call_impl"),
        ("torch.nn.modules.module", "_global_forward_hooks"),
        ("torch.nn.modules.module", "_global_forward_pre_hooks"),
        ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
        ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
        ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
        ("torch.utils._python_dispatch", "TorchDispatchMode"),
        ("torch.utils._python_dispatch", "_disable_current_modes"),
        ("torch.utils._python_dispatch", "_get_current_dispatch_mode"),
        ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
        ("torch.utils._python_dispatch", "_pop_mode"),
        ("torch.utils._python_dispatch", "_push_mode"),
        ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ],
)
def test_torch_has_the_private_name(module: str, name: str) -> None:
    try:
        here = importlib.import_module(module)
    except ModuleNotFoundError:  # a class, or a module that only exists in memory
        here = functools.reduce(getattr, module.split(".")[1:], torch)
    assert hasattr(here, name), f"torch {torch.__version__} has no {module}.{name}"


def private_names(source: str) -> Iterator[str]:
    """Private parts of torch that this source imports or uses, but for type checkers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            # torch.ops has operators, not parts of torch; _pytree is taken as if it were public
            if re.match(r"torch\.(?!ops\b)(\w+\.)*_[A-Za-z]", name) and "._pytree" not in name:
                yield name


def test_no_other_file_uses_private_parts_of_torch() -> None:
    package = Path(compat.__file__).parents[1]
    found = {
        (path.name, name)
        for path in package.rglob("*.py")
        if path.name != "torch_compat.py"
        for name in private_names(path.read_text(encoding="utf-8"))
    }
    # what a program of a lesson warms up, before it forks
    assert found == {("_first_steps_program.py", "torch._dynamo")}


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "torch.autograd._engine_run_backward()",
        "torch._scaled_mm(a, b)",
        "torch._C.DisableTorchFunction()",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert list(private_names(line))


@pytest.mark.parametrize(
    "line",
    [
        "torch.ops.aten._local_scalar_dense.default",
        "from torch.utils._pytree import tree_leaves",
        "self._torch.cuda.synchronize()",
        "if TYPE_CHECKING:\n    from torch.utils._python_dispatch import TorchDispatchMode",
    ],
)
def test_what_is_not_private_is_not(line: str) -> None:
    assert not list(private_names(line))


def test_saved_tensors_of_a_node_are_found() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.full((3,), 2.0)
    found = compat.saved_tensors((x * y).grad_fn)
    assert any(t.data_ptr() == y.data_ptr() for t in found)


def test_what_an_operator_does_to_storages() -> None:
    aten = torch.ops.aten
    assert compat.makes_storage(aten.view.default) == 0
    assert compat.makes_storage(aten.add.Tensor) == 1
    assert compat.makes_storage(aten.resize_.default) == 2
    assert compat.makes_storage(aten.add.out) == 2


def test_to_ask_for_a_capture_begins_nothing() -> None:
    before = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    assert not compat.cuda_is_capturing()
    assert torch.cuda.is_initialized() is before  # type: ignore[no-untyped-call]


def test_a_mode_is_active_in_its_own_thread_alone() -> None:
    mode = compat.dispatch_mode_class()()
    elsewhere: list[bool] = []
    with mode:
        assert compat.dispatch_mode_is_active(mode)
        thread = threading.Thread(
            target=lambda: elsewhere.append(compat.dispatch_mode_is_active(mode))
        )
        thread.start()
        thread.join()
    assert elsewhere == [False]
    assert not compat.dispatch_mode_is_active(mode)


def test_graph_task_id_tells_a_backward_pass() -> None:
    read = compat.graph_task_id_reader()
    inside: list[int] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda grad: inside.append(read()))
    (x * 2).sum().backward()
    assert read() == -1
    assert inside[0] != -1


def test_a_mode_is_left_even_under_a_foreign_one() -> None:
    ours, theirs = compat.dispatch_mode_class()(), compat.dispatch_mode_class()()
    ours.__enter__()
    theirs.__enter__()
    compat.leave_dispatch_mode(ours)
    assert torch._C._len_torch_dispatch_stack() == 1
    theirs.__exit__(None, None, None)


class _Theirs(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _TheirFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _OurFunctions:
    """Ours, entered and left as perfkit does it."""

    def __enter__(self) -> None:
        self.leave = compat.enter_function_mode(_TheirFunctions())

    def __exit__(self, *error: object) -> None:
        self.leave()


_KINDS = [
    (compat.dispatch_mode_class(), _Theirs, torch._C._len_torch_dispatch_stack),
    (_OurFunctions, _TheirFunctions, torch._C._len_torch_function_stack),
]


def _flags() -> tuple[bool, ...]:
    from torch.utils import _python_dispatch as modes

    return tuple(getattr(modes, name) for name in compat._MODE_FLAGS.values())


@pytest.mark.parametrize("kind", _KINDS, ids=["dispatch", "function"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_modes_that_cross_end_each_for_itself(kind: Any, first: str) -> None:
    """torch takes the mode on top away, whichever ends, and its flags stayed on."""
    make, other, count = kind
    ours, theirs = make(), other()
    before = _flags()
    a, b = (ours, theirs) if first == "ours" else (theirs, ours)
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    assert count() == 0
    assert _flags() == before
    assert getattr(ours, "was_lost", first == "theirs") is (first == "theirs")


def test_while_a_mode_above_is_on_the_flags_are() -> None:
    ours, theirs = compat.dispatch_mode_class()(), _Theirs()
    with ours:
        theirs.__enter__()
        on = _flags()
    assert _flags() == on
    theirs.__exit__(None, None, None)


def test_a_mode_that_begins_within_a_backward_pass_is_lost_with_it() -> None:
    class Ours(compat.dispatch_mode_class()):  # type: ignore[misc]
        __torch_dispatch__ = _Theirs.__torch_dispatch__

    ours, before = Ours(), _flags()
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: ours.__enter__() and None)
    with _Theirs():
        (x * 2).sum().backward()
        ours.__exit__()
        assert torch._C._len_torch_dispatch_stack() == 1
    assert ours.was_lost
    assert _flags() == before


def test_loader_fetches_are_seen_until_stopped() -> None:
    seen, came = [], []

    def begins(is_batch, source):
        seen.append(is_batch)
        return came.append

    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
    stop = compat.watch_loader_iterators(begins)
    try:
        assert len(list(loader)) == 2
    finally:
        stop()
    assert seen == [False, True, True, True]  # the start, two batches, the end
    assert [None if batch is None else batch.tolist() for batch in came] == [
        None,
        [0, 1],
        [2, 3],
        None,
    ]
    n = len(seen)
    list(loader)
    assert len(seen) == n


def test_whoever_replaced_a_method_after_us_keeps_his(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours ended, and put torch's own in his method's place."""
    kind: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2)
    monkeypatch.setattr(kind, "__next__", kind.__next__)  # put back at the end
    seen, his = [], []
    stop = compat.watch_loader_iterators(lambda is_batch, source: seen.append(is_batch))
    ours = kind.__next__

    def theirs(self: Any) -> Any:
        his.append(self)
        return ours(self)

    kind.__next__ = theirs
    stop()
    assert kind.__next__ is theirs
    assert len(list(loader)) == 2
    assert len(his) == 3
    assert seen == []
    # a second watcher, on top of his: each fetch is told once
    stop = compat.watch_loader_iterators(lambda is_batch, source: seen.append(is_batch))
    list(loader)
    stop()
    assert seen == [False, True, True, True]
    assert kind.__next__ is theirs


def test_whoever_replaced_the_call_of_compiled_modules_keeps_his(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OptimizedModule:
        def __call__(self) -> str:
            return "torch's"

    made = SimpleNamespace(OptimizedModule=OptimizedModule)
    monkeypatch.setitem(sys.modules, "torch._dynamo", made)  # imported, as far as we can see
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", made)
    kind: Any = OptimizedModule
    original = kind.__call__
    seen: list[Any] = []
    stop = compat.watch_compiled_modules(seen.append)
    ours = kind.__call__
    assert kind()() == "torch's"
    assert len(seen) == 1
    kind.__call__ = lambda self: f"{ours(self)}, and his"
    stop()
    assert kind()() == "torch's, and his"
    assert len(seen) == 1
    kind.__call__ = original
    compat.watch_compiled_modules(seen.append)()
    assert kind.__call__ is original


def test_listeners_nest_and_leave_in_any_order() -> None:
    told: list[str] = []

    def listener(name: str) -> Any:
        def begins(roots: Any) -> Any:
            told.append(f"{name} begins")
            return lambda result: told.append(f"{name} ends")

        return begins

    original = torch.autograd._engine_run_backward
    stops = [compat.watch_backward(listener(name)) for name in "abc"]
    silent = compat.watch_backward(lambda roots: None)
    x = torch.ones((), requires_grad=True)
    (x * 2).backward()
    assert told == ["c begins", "b begins", "a begins", "a ends", "b ends", "c ends"]
    told.clear()
    stops[1]()
    stops[1]()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    assert told == ["c begins", "a begins", "a ends", "c ends"]
    told.clear()
    kept = torch.autograd._engine_run_backward  # as somebody who replaces it himself keeps it
    for stop in (stops[2], silent, stops[0]):
        stop()
    assert torch.autograd._engine_run_backward is original
    kept((x * 2,), (torch.ones(()),), False, False, (), accumulate_grad=True)
    assert told == []


def test_starts_of_profilers_are_told_until_stopped() -> None:
    from torch.autograd import profiler

    before = profiler._prepare_profiler, profiler._enable_profiler
    told: list[str] = []
    stops = [compat.watch_profiler_starts(lambda n=n: told.append(n)) for n in "ab"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert set(told) == {"a", "b"}
    stops[0]()
    told.clear()
    with profiler.profile():
        assert set(told) == {"b"}
    stops[1]()
    assert (profiler._prepare_profiler, profiler._enable_profiler) == before


def test_only_lengths_of_another_device_become_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[Any, Any]] = []
    monkeypatch.setattr(torch, "ctc_loss", lambda *args, **options: got.append((args[2:], options)))
    undo = compat.lengths_as_lists()
    try:
        here, there = torch.zeros(6, 2, 5), torch.zeros(6, 2, 5, device="meta")
        labels, lengths = torch.ones(2, 2), (torch.tensor([6, 6]), torch.tensor([2, 2]))
        torch.ctc_loss(here, labels, *lengths)
        torch.ctc_loss(there, labels, *lengths, 1)  # type: ignore[arg-type]
        torch.ctc_loss(there, labels, input_lengths=lengths[0], target_lengths=[2, 2])
    finally:
        undo()
    plain, positional, named = got
    assert plain[0][0] is lengths[0]
    assert positional == (([6, 6], [2, 2], 1), {})
    assert named == ((), {"input_lengths": [6, 6], "target_lengths": [2, 2]})
