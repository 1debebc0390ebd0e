"""Whatever happens in the step, its exception is unchanged and nothing stays enabled."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import dataloader

from perfkit.base.errors import UsageError
from perfkit.synclint.find import find_syncs, no_syncs
from perfkit.synclint.watch import SyncWatch


def _state() -> tuple[object, ...]:
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        len(nn.modules.module._global_forward_pre_hooks),
        torch.autograd._engine_run_backward,
        torch.cuda.synchronize,
        torch.cuda.empty_cache,
        dataloader._BaseDataLoaderIter.__next__,
        dataloader.DataLoader.__iter__,
        SyncWatch._active,
    )


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
@pytest.mark.parametrize("where", ["forward", "backward", "handler"])
def test_what_the_step_raises_comes_through(kind: type[BaseException], where: str) -> None:
    before = _state()
    error = kind("mine")
    net = nn.Linear(2, 2)

    def boom(*_: object) -> None:
        raise error

    def step() -> None:
        y = net(torch.randn(1, 2))
        if where == "backward":
            y.register_hook(boom)
            y.sum().backward()
        elif where == "handler":
            y.detach().apply_(boom)
        boom()

    with pytest.raises(kind) as caught:
        find_syncs(step)
    assert caught.value is error
    assert _state() == before
    assert find_syncs(lambda: net(torch.randn(1, 2)).sum().item())


def test_a_failing_torch_call_fails_as_it_would() -> None:
    with pytest.raises(RuntimeError, match="elements"):
        find_syncs(lambda: nn.Linear(2, 2)(torch.randn(3, 2)).item())


@pytest.mark.parametrize("outer", ["find_syncs", "no_syncs"])
@pytest.mark.parametrize("inner", ["find_syncs", "no_syncs"])
def test_nested_use_is_refused_and_the_outer_goes_on(outer: str, inner: str) -> None:
    net = nn.Linear(2, 2)
    use = {"find_syncs": lambda f: find_syncs(f), "no_syncs": lambda f: no_syncs()(f)()}
    seen = []

    def step() -> None:
        with pytest.raises(UsageError, match="cannot be nested"):
            use[inner](lambda: None)
        seen.append(SyncWatch._active)
        net(torch.randn(1, 2))

    before = _state()
    use[outer](step)
    assert seen[0] is not None
    assert _state() == before


def test_modes_of_the_users_work_inside_and_outside() -> None:
    calls = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    class Api(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    net = nn.Linear(2, 2)

    def step() -> None:
        with Ops(), Api():
            net(torch.randn(1, 2)).sum().item()

    assert len(find_syncs(step)) == 1
    with Ops(), Api():
        assert len(find_syncs(lambda: net(torch.randn(1, 2)).sum().item())) == 1
    assert calls


def test_a_mode_left_on_by_the_step_stays() -> None:
    class Left(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    left = Left()
    find_syncs(left.__enter__)
    assert torch._C._len_torch_function_stack() == 1
    left.__exit__(None, None, None)


def test_what_the_step_says_of_warnings_stays() -> None:
    importlib.import_module("torch._dynamo")  # only then we filter, too
    with warnings.catch_warnings():
        before = len(warnings.filters)
        find_syncs(lambda: warnings.filterwarnings("ignore", message="of the step"))
        assert len(warnings.filters) == before + 1


def test_a_compiled_module_is_watched_as_it_is_written() -> None:
    import torch._dynamo

    net = torch.compile(nn.Linear(2, 2), backend="eager")

    def step() -> None:
        y = net(torch.randn(1, 2))
        y.sum().item()

    assert [s.code for s in find_syncs(step)] == ["y.sum().item()"]


def test_memory_of_the_watched_tensors_is_given_back() -> None:
    import gc
    import weakref

    net = nn.Linear(2, 2)
    refs = []

    def step() -> None:
        y = net(torch.randn(64, 2))
        y[y > 0].sum().backward()
        refs.append(weakref.ref(y.untyped_storage()))

    syncs = find_syncs(step)
    gc.collect()
    assert syncs
    assert refs[0]() is None
