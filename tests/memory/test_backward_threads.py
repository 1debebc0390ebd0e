"""Memory of a backward pass that runs in a thread of autograd's own, as CUDA's do.

On a CPU the engine takes other threads only for backward passes within backward passes, from some
depth on; it carries the caller's modes there in the same way.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfkit.memory.account import Accountant, MemoryAccount

# The engine's limit: the innermost backward pass is the first in a thread of its own, which has no
# line of Python then, as CUDA's have none.
_DEEP = 60


class _Deep(torch.autograd.Function):
    """Its backward runs that of another, and so on; the innermost that of ``inner()``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int, inner: Any) -> Tensor:
        ctx.depth, ctx.inner = depth, inner
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            if ctx.depth:
                start = torch.ones((), requires_grad=True)
                value = _Deep.apply(start, ctx.depth - 1, ctx.inner)
            else:
                value = ctx.inner()
            value.backward()
        return grad, None, None


def _counted(inner: Any, **options: Any) -> MemoryAccount:
    loss: Any = _Deep.apply(torch.ones((), requires_grad=True), _DEEP, inner)  # type: ignore[no-untyped-call]
    with Accountant(**options) as accountant:
        _run(loss)
    return accountant.result


def _run(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.fixture
def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(300_000))


def _is_elsewhere(weight: Tensor) -> list[bool]:
    here, elsewhere = threading.get_ident(), []

    weight.register_hook(lambda grad: elsewhere.append(threading.get_ident() != here))
    return elsewhere


def test_it_has_the_line_that_called_the_backward_pass(weight: nn.Parameter) -> None:
    elsewhere = _is_elsewhere(weight)
    result = _counted(weight.sum)
    assert elsewhere == [True]
    # the gradient is the only tensor of that size that is made
    (line,) = [x for x in result.by_line if x.by_category["gradients"] >= weight.nbytes]
    assert (line.file, line.text) == (__file__, "value.backward()")


def test_a_watched_function_has_it_too(weight: nn.Parameter) -> None:
    _is_elsewhere(weight)
    lines = _counted(weight.sum, watch=[_run]).function_lines
    assert [x.function for x in lines] == ["_run"]
    assert lines[0].made_bytes >= weight.nbytes


def test_what_is_recomputed_there_belongs_to_its_module() -> None:
    net = nn.Sequential(nn.Linear(16, 2000), nn.Tanh(), nn.Linear(2000, 1))
    x = torch.ones(100, 16)
    elsewhere = _is_elsewhere(net[0].weight)
    result = _counted(lambda: checkpoint(net, x, use_reentrant=False).sum(), model=net)
    assert elsewhere == [True]
    activations = {m.path: m.by_category["activations"] for m in result.by_module}
    assert activations.get("Sequential.1") == 100 * 2000 * 4
    assert not activations.get("(backward pass)")


def test_an_optimizer_that_steps_there_is_one_of_the_region(weight: nn.Parameter) -> None:
    elsewhere = _is_elsewhere(weight)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    hook = weight.register_post_accumulate_grad_hook(lambda p: optimizer.step())
    result = _counted(weight.sum)
    hook.remove()  # the collector does not see the circle through it, and the weight would stay
    assert elsewhere == [True]
    assert result.n_steps == 1
    assert result.at_end_bytes["optimizer state"] == weight.nbytes


def test_hooks_in_a_thread_without_the_mode_are_not_this_regions() -> None:
    model = nn.Linear(8, 8)
    with Accountant() as accountant:
        thread = threading.Thread(target=lambda: model(torch.zeros(2, 8)))
        thread.start()
        thread.join()
    assert accountant.result.n_operators == 0


def test_a_step_that_a_cuda_graph_captures_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(10)
    captures = [True]
    kept = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures[-1])
    with Accountant(max_steps=1) as accountant:
        optimizer.step()
        kept.append(torch.zeros(1000))
        captures.append(False)
        optimizer.step()
        kept.append(torch.zeros(9000))
    assert accountant.result.n_steps == 1
    assert not accountant.result.complete
    # the first step did not end the counting
    assert accountant.result.devices[0].kept_bytes == kept[0].nbytes
