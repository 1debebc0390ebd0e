"""Regions end cleanly, whatever ends them. (The autouse fixture checks hooks and modes.)"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.base.errors import UsageError
from perfkit.memory.account import Accountant, account


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exceptions_come_through_and_the_account_tells_until_when(
    kind: type[BaseException],
) -> None:
    raised = kind("mine")
    kept: list[Tensor] = []

    def work() -> None:
        kept.append(torch.zeros(256))
        raise raised

    accountant = Accountant()
    with pytest.raises(kind) as caught, accountant:
        work()
    assert caught.value is raised
    result = accountant.result
    assert result.ended_by == kind.__name__
    assert result.left_behind_bytes == 1024
    assert any(kind.__name__ in warning for warning in result.warnings)


def test_an_exception_in_a_forward_leaves_no_depth_behind() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    model, batch = nn.Linear(4, 4), torch.randn(2, 4)
    with Accountant() as accountant:
        with pytest.raises(RuntimeError, match="broken"):
            Broken()(batch)
        model(batch).sum().backward()
    assert accountant.result.at_end_bytes["inputs"] == batch.nbytes


def test_an_exception_in_a_backward_leaves_the_next_one_right() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            raise RuntimeError("broken")

    model, batch = nn.Linear(16, 16), torch.randn(2, 16)
    with Accountant() as accountant:
        with pytest.raises(RuntimeError, match="broken"):
            Broken.apply(model(batch)).sum().backward()  # type: ignore[no-untyped-call]
        model(batch).sum().backward()
    result = accountant.result
    gained = result.at_end_bytes["gradients"] - result.at_start_bytes["gradients"]
    assert gained == (16 * 16 + 16) * 4


def test_regions_nest_and_each_counts_its_own() -> None:
    kept: list[Tensor] = []
    with Accountant() as outer:
        kept.append(torch.zeros(256))
        with Accountant() as inner:
            kept.append(torch.zeros(512))
            torch.zeros(4096)
        kept.append(torch.zeros(1024))
    assert inner.result.left_behind_bytes == 2048
    assert outer.result.left_behind_bytes == 1024 + 2048 + 4096
    assert outer.result.peak_bytes - outer.result.start_bytes == 1024 + 2048 + 4096 * 4
    peak = inner.result.resident.peak_bytes
    if peak is not None:
        assert outer.result.resident.peak_bytes is not None
        assert outer.result.resident.peak_bytes >= peak


def test_a_mode_that_the_user_leaves_active_stays_and_ours_goes() -> None:
    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    mode = Silent()
    with Accountant() as accountant:
        mode.__enter__()
        torch.zeros(3)
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    assert _get_current_dispatch_mode() is mode
    mode.__exit__(None, None, None)
    assert accountant.result.n_operators > 0


def test_an_accountant_counts_one_region() -> None:
    accountant = Accountant()
    with accountant:
        pass
    with pytest.raises(UsageError, match="one region"), accountant:
        pass


def test_counting_keeps_no_tensor_alive() -> None:
    model = nn.Linear(64, 64)
    with Accountant() as accountant:
        out = model(torch.randn(8, 64))
    ref = weakref.ref(out)
    del out
    gc.collect()
    assert ref() is None
    assert accountant.result.peak_bytes > 0


def test_what_dies_after_the_region_changes_no_result() -> None:
    kept = [torch.zeros(1024)]
    result = account(lambda: kept.append(torch.zeros(512)))
    before = result.to_dict()
    kept.clear()
    gc.collect()
    assert result.to_dict() == before


def test_hooks_of_other_threads_are_not_this_regions() -> None:
    model, batch = nn.Linear(8, 8), torch.randn(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        model(batch).sum().backward()
        optimizer.step()

    kept: list[Tensor] = []
    with Accountant() as accountant:
        for target in (train, lambda: kept.append(torch.zeros(1000))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    result = accountant.result
    assert result.n_steps == 0
    assert result.n_operators == 0
    # what hangs on a parameter is found at the end all the same; what hangs nowhere is told
    gained = result.at_end_bytes["gradients"] - result.at_start_bytes["gradients"]
    assert gained == (8 * 8 + 8) * 4
    assert any("another thread" in warning for warning in result.warnings)


# where there is a GPU, reset() imports what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_compiled_code_stays_compiled_and_is_warned_about() -> None:
    compiled: list[int] = []
    ran: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> object:
        compiled.append(1)

        def run(*args: Tensor) -> object:
            ran.append(1)
            return graph.forward(*args)

        return run

    model = torch.compile(nn.Linear(64, 64), backend=backend)
    batch = torch.randn(4, 64)
    model(batch)
    assert len(compiled) == len(ran) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own about our hooks must not reach the user
        filters = list(warnings.filters)
        result = account(lambda: model(batch).sum().backward())
        assert warnings.filters == filters
    assert len(ran) == 2
    assert any("torch.compile" in warning for warning in result.warnings)
    gained = result.at_end_bytes["gradients"] - result.at_start_bytes["gradients"]
    assert gained == (64 * 64 + 64) * 4
    # and it goes on as it was: under a careless mode dynamo gives such code up for good
    model(batch)
    assert len(ran) == 3
    torch._dynamo.reset()
