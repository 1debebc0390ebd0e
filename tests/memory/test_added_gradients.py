"""Gradients that a backward pass adds to a weight's gradient have its size, not the batch's."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from wrapper_tensors import Pair

from perfkit.base import torch_compat
from perfkit.memory import tracker as tracker_module
from perfkit.memory.account import MemoryAccount, account
from perfkit.memory.ledger import Totals
from perfkit.memory.tracker import Tracker

WIDE = 512  # a square weight has 1 MiB

Step = Callable[[], None]


def _wide() -> nn.Linear:
    return nn.Linear(WIDE, WIDE, bias=False)


def _batch(n: int) -> Tensor:
    return torch.randn(n, WIDE)


def _accumulates(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh())
    model(_batch(n)).sum().backward()
    return model, lambda: model(_batch(n)).sum().backward()


def _accumulates_in_the_region(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh())

    def step() -> None:
        model.zero_grad()
        for _ in range(3):
            model(_batch(n)).sum().backward()

    return model, step


def _tied(n: int, uses: int = 2) -> tuple[nn.Module, Step]:
    wide = _wide()
    model = nn.Sequential(*[wide, nn.Tanh()] * uses)
    return model, lambda: model(_batch(n)).sum().backward()


def _tied_three_times_and_accumulated(n: int) -> tuple[nn.Module, Step]:
    model, step = _tied(n, 3)
    step()
    return model, step


def _two_losses(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh())

    def step() -> None:
        model.zero_grad()
        y = model(_batch(n))
        y.sum().backward(retain_graph=True)
        y.mean().backward()

    return model, step


def _tied_around_a_checkpoint(n: int) -> tuple[nn.Module, Step]:
    wide, inner = _wide(), nn.Sequential(nn.Linear(WIDE, 8), nn.Tanh(), nn.Linear(8, WIDE))

    def step() -> None:
        x = _batch(n).requires_grad_()
        y = checkpoint(inner, wide(torch.tanh(wide(x))), use_reentrant=True)
        wide(y).sum().backward()

    return nn.ModuleList([wide, inner]), step


def _accumulates_beside_the_weight(n: int) -> tuple[nn.Module, Step]:
    """bfloat16 weights whose gradients go into float32 as they come, as Megatron keeps them."""
    model = nn.Sequential(_wide(), nn.Tanh()).bfloat16()
    sums = [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]

    def take(p: Tensor, total: Tensor) -> None:
        assert p.grad is not None
        total.add_(p.grad)
        p.grad = None

    for p, total in zip(model.parameters(), sums, strict=True):
        p.register_post_accumulate_grad_hook(lambda p, total=total: take(p, total))
    return model, lambda: model(_batch(n).bfloat16()).sum().backward()


def _steps_in_the_backward_pass(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh(), _wide(), nn.Tanh())

    def update(p: Tensor) -> None:
        with torch.no_grad():
            assert p.grad is not None
            p.add_(p.grad, alpha=-0.1)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return model, lambda: model(_batch(n)).sum().backward()


def _an_optimizer_steps_in_the_backward_pass(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Linear(4 * WIDE, WIDE, bias=False), nn.Tanh(), _wide(), nn.Tanh())
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return model, lambda: model(torch.randn(n, 4 * WIDE)).sum().backward()


def _many_optimizers_step_in_the_backward_pass(n: int) -> tuple[nn.Module, Step]:
    """The batch is needed until the last of them has stepped."""
    model = nn.Sequential(nn.Linear(WIDE, 8), *[nn.Linear(8, 8) for _ in range(5)])
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], 0.1)
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return model, lambda: model(_batch(n)).sum().backward()


def _gradients_in_one_bucket(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh(), _wide(), nn.Tanh())
    bucket = torch.zeros(2 * WIDE * WIDE)
    for p, part in zip(model.parameters(), bucket.chunk(2), strict=True):
        p.grad = part.view_as(p)

    def step() -> None:
        bucket.zero_()
        model(_batch(n)).sum().backward()

    return model, step


def _of_a_backward_with_a_graph(n: int) -> tuple[nn.Module, Step]:
    model = nn.Sequential(_wide(), nn.Tanh())

    def step() -> None:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the cycle that zero_grad breaks
                model(_batch(n)).sum().backward(create_graph=True)
        model.zero_grad()

    return model, step


def _leaves_without_a_module(n: int) -> tuple[nn.Module, Step]:
    weight = torch.randn(WIDE, WIDE, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)

    def step() -> None:
        for _ in range(2):
            torch.tanh(_batch(n) @ weight).sum().backward()
        optimizer.step()

    return nn.Linear(1, 1), step


def _look(make: Callable[[int], tuple[nn.Module, Step]], n: int) -> Totals:
    model, step = make(n)
    tracker = Tracker()
    tracker.start(modules=[model])
    try:
        step()
    finally:
        tracker.stop()
    assert tracker.instrument.failure is None
    return tracker.ledgers[torch.device("cpu")].totals()


@pytest.mark.parametrize(
    "make",
    [
        _accumulates,
        _accumulates_in_the_region,
        _tied,
        _tied_three_times_and_accumulated,
        _two_losses,
        _tied_around_a_checkpoint,
        _accumulates_beside_the_weight,
        _steps_in_the_backward_pass,
        _an_optimizer_steps_in_the_backward_pass,
        _many_optimizers_step_in_the_backward_pass,
        _gradients_in_one_bucket,
        _of_a_backward_with_a_graph,
        _leaves_without_a_module,
    ],
)
def test_half_the_batch_leaves_them_whole(
    make: Callable[[int], tuple[nn.Module, Step]],
) -> None:
    whole, half = _look(make, 128), _look(make, 64)
    predicted = whole.half_batch_bytes - whole.start_bytes
    assert predicted == pytest.approx(half.peak_bytes - half.start_bytes, rel=0.03)


def test_the_gradient_of_an_input_does_shrink() -> None:
    """An attack zeroes the gradient of its noise, and each backward pass adds to it."""

    def look(n: int) -> MemoryAccount:
        model, noise = nn.Linear(WIDE, 4), torch.zeros(n, WIDE, requires_grad=True)
        x = _batch(n)
        noise.grad = torch.zeros(n, WIDE)

        def step() -> None:
            model(torch.tanh(nn.Identity()(x) + noise)).sum().backward()

        found = account(step, model=model)
        gc.collect()
        return found

    whole, half = look(1024), look(512)
    # the noise and its gradient were there before, and are left as they were
    too_much = 2 * 512 * WIDE * 4
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes + too_much, rel=0.03)


def test_sums_of_activations_gradients_do_shrink() -> None:
    def look(n: int) -> MemoryAccount:
        model = nn.Linear(WIDE, WIDE, bias=False)

        def step() -> None:
            h = torch.tanh(model(_batch(n)))
            (h.sin() + h.cos() + h.exp()).sum().backward()  # h gets three gradients

        found = account(step, model=model)
        gc.collect()
        return found

    whole, half = look(1024), look(512)
    assert whole.half_batch_peak_bytes == pytest.approx(half.peak_bytes, rel=0.03)


# --- whatever the tensors are, the step is not disturbed, and counting goes on -------------------


def _sparse() -> Step:
    table = nn.Embedding(100, 16, sparse=True)
    ids = torch.tensor([3, 5, 3])
    return lambda: table(ids).sum().backward()


def _sparse_and_dense() -> Step:
    table = nn.Embedding(100, 16, sparse=True)
    ids = torch.tensor([3, 5, 3])
    return lambda: (table(ids).sum() + (table(ids) @ table.weight.T).sum()).backward()


def _sparse_twice() -> Step:
    table = nn.Embedding(100, 16, sparse=True)
    ids = torch.tensor([3, 5, 3])
    return lambda: (table(ids) * table(ids + 1)).sum().backward()


def _wrapped() -> Step:
    weight = Pair(torch.ones(64), torch.ones(64), requires_grad=True)
    return lambda: (weight * 2 + weight.sin()).backward(Pair(torch.ones(64), torch.ones(64)))


def _nested() -> Step:
    weight = nn.Parameter(torch.ones(4, 4))
    parts = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)

    def step() -> None:
        h = nn.functional.linear(parts, weight)
        (h.sin() + h.cos()).values().sum().backward()

    return step


def _fake() -> Step:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        weight = torch.ones(8, 8, requires_grad=True)
        x = torch.ones(2, 8)
    return lambda: ((x @ weight).sin() @ weight).backward(x)


def _named() -> Step:
    weight = nn.Parameter(torch.ones(8))

    def add(grad: Tensor) -> Tensor:
        return torch.add(input=grad, other=torch.add(grad, 1, alpha=2)).add_(other=grad).add_(1)

    def step() -> None:
        y = weight * 2
        y.register_hook(add)
        y.sum().backward()

    return step


@pytest.mark.parametrize(
    "make",
    [
        _sparse,
        _sparse_and_dense,
        _sparse_twice,
        _wrapped,
        _nested,
        _fake,
        _named,
    ],
)
def test_odd_gradients_end_neither_the_step_nor_the_counting(make: Callable[[], Step]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is a prototype says so
        step = make()
        step()
        found = account(lambda: [step() for _ in range(2)])
    assert not [one for one in found.warnings if "failed" in one]
    assert found.n_operators > 0


def test_what_a_pass_has_added_is_forgotten_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.eye(4, requires_grad=True)
    x = torch.ones(1, 4)
    counted: list[int] = []

    def fails(grad: Tensor) -> None:
        counted.append(len(tracker._sums))
        if len(counted) % 2:
            raise KeyError("mine")

    def step() -> None:
        h = x.clone().requires_grad_()
        h.register_hook(fails)
        y = h
        for _ in range(50):
            y = y @ weight
        try:
            y.sum().backward()
        except KeyError:
            return

    tracker = Tracker()
    tracker.start()
    try:
        for _ in range(4):
            step()
        torch.ones(1) + 1
        assert tracker._sums == []
        most = max(counted)
        assert 40 < most < 100  # of one pass, also where none has come to its end
        monkeypatch.setattr(tracker_module, "_SUMS_AT_MOST", 10)
        counted.clear()
        step()
        assert max(counted) <= 10
        # nothing of a tensor is kept by them
        assert all(part() is None or part().nbytes() for part, _ in tracker._sums)
    finally:
        tracker.stop()
    assert tracker._sums == []
    assert tracker.instrument.failure is None


@pytest.mark.parametrize(
    "make", [_accumulates_in_the_region, _tied, _an_optimizer_steps_in_the_backward_pass]
)
def test_the_first_backward_pass_of_a_process_has_the_number_zero(
    make: Callable[[int], tuple[nn.Module, Step]], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make(64)[1]
    step()
    usual = account(step)
    read = torch_compat.graph_task_id_reader()
    monkeypatch.setattr(torch_compat, "graph_task_id_reader", lambda: lambda: min(read(), 0))
    first = account(step)
    assert first.at_peak_bytes == usual.at_peak_bytes
    assert first.half_batch_peak_bytes == usual.half_batch_peak_bytes
