"""Against known figures: bytes of parameters, gradients and Adam."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perfkit.base.errors import UsageError
from perfkit.memory import survey
from perfkit.memory.account import Accountant, MemoryAccount, account
from perfkit.memory.categories import CATEGORIES
from perfkit.memory.leaks import find_leaks


class _Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).mean((2, 3)))
        return y


def _nbytes(tensors: Iterator[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _adds_up(result: MemoryAccount) -> None:
    for device in result.devices:
        assert tuple(device.at_peak_bytes) == CATEGORIES
        assert sum(device.at_start_bytes.values()) == device.start_bytes
        assert sum(device.at_peak_bytes.values()) == device.peak_bytes
        assert sum(device.at_end_bytes.values()) == device.end_bytes
        assert device.peak_bytes >= max(device.start_bytes, device.end_bytes)


def _training(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, target: Tensor
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch), target).backward()
        optimizer.step()

    return step


def _gained(result: MemoryAccount, category: str) -> int:
    # other tests' leftovers are in this process too: count what this region added
    return result.at_end_bytes[category] - result.at_start_bytes[category]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_parameters_gradients_and_adam_state_are_exact(foreach: bool, named: bool) -> None:
    made: list[object] = []

    def build_and_step() -> None:
        model = _Net()
        optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
        _training(model, optimizer, torch.randn(4, 3, 8, 8), torch.arange(4))()
        made.extend((model, optimizer))

    result = account(build_and_step)
    model = made[0]
    assert isinstance(model, nn.Module)
    parameters = _nbytes(model.parameters())
    n = len(list(model.parameters()))
    assert _gained(result, "parameters") == parameters
    assert _gained(result, "gradients") == parameters
    # two moments per parameter and a float32 step counter of 4 bytes
    assert _gained(result, "optimizer state") == 2 * parameters + 4 * n
    assert _gained(result, "buffers") == _nbytes(model.buffers())
    assert result.n_steps == 1
    _adds_up(result)

    # the second step has them all from the start, found or named
    step = _training(model, made[1], torch.randn(4, 3, 8, 8), torch.arange(4))  # type: ignore[arg-type]
    names = {"model": model, "optimizer": made[1]} if named else {}
    again = account(step, **names)  # type: ignore[arg-type]
    for category in ("parameters", "gradients", "optimizer state", "buffers"):
        assert again.at_start_bytes[category] == result.at_end_bytes[category]
        assert _gained(again, category) == 0
    _adds_up(again)


def test_sgd_without_momentum_has_no_state_and_clearing_gradients_frees_them() -> None:
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(2, 32)
    parameters = _nbytes(model.parameters())

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()

    result = account(step)
    assert _gained(result, "optimizer state") == 0
    assert _gained(result, "gradients") == parameters
    freed = account(optimizer.zero_grad)
    assert _gained(freed, "gradients") == -parameters
    assert freed.left_behind_bytes == -parameters


def test_gradients_are_known_even_if_no_operator_follows_the_backward() -> None:
    model = nn.Linear(64, 64)
    batch = torch.randn(2, 64)

    def step() -> None:
        model(batch).sum().backward()
        model.zero_grad()

    result = account(step)
    assert result.at_peak_bytes["gradients"] - result.at_start_bytes["gradients"] >= 64 * 64 * 4
    assert _gained(result, "gradients") == 0


def test_activations_are_what_the_graph_keeps() -> None:
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(5)])
    batch = torch.randn(128, 64)
    result = account(lambda: layers(batch).sum().backward())
    # each sigmoid saves its output, which is also what the next Linear saves; the backward
    # lets the last of them go before its temporaries make the peak
    saved = 128 * 64 * 4
    seen = result.at_peak_bytes["activations"] - result.at_start_bytes["activations"]
    # besides: the loss and the seed of its gradient
    assert seen == 4 * saved + 2 * 4
    assert result.at_peak_bytes["inputs"] == 128 * 64 * 4
    assert _gained(result, "activations") == 0
    # gradients of activations are temporary
    assert result.at_peak_bytes["temporary"] >= 128 * 64 * 4


def test_a_kept_graph_is_activations_left_behind_and_at_the_next_start() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid())
    batch = torch.randn(32, 64)
    kept: list[Tensor] = []
    result = account(lambda: kept.append(model(batch).sum()))
    saved = 2 * 32 * 64 * 4
    assert saved <= _gained(result, "activations") <= saved + 4
    assert result.left_behind_bytes == _gained(result, "activations")
    # only the graph holds them: no Python object does
    later = account(lambda: kept.clear())
    assert later.at_start_bytes["activations"] >= saved
    assert later.left_behind_bytes == -result.left_behind_bytes


def test_the_backward_alone_sees_the_activations_made_before_it() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid())
    loss = [model(torch.randn(32, 64)).sum()]

    def backward() -> None:
        loss.pop().backward()

    result = account(backward)
    assert result.at_start_bytes["activations"] >= 2 * 32 * 64 * 4
    assert _gained(result, "activations") <= -2 * 32 * 64 * 4
    assert _gained(result, "gradients") == _nbytes(model.parameters())


def test_inputs_by_position_by_keyword_from_numpy_and_as_targets() -> None:
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 8)

        def forward(self, *, ids: Tensor) -> Tensor:
            y: Tensor = self.table(ids)
            return y

    model = ByKeyword()
    numpy = pytest.importorskip("numpy")

    def step() -> None:
        ids = torch.randint(10, (32, 4))
        target = torch.from_numpy(numpy.ones((32, 4, 8), dtype=numpy.float32))
        loss = (model(ids=ids) * target).sum()
        loss.backward()

    result = account(step)
    ids_bytes, target_bytes = 32 * 4 * 8, 32 * 4 * 8 * 4
    assert result.at_peak_bytes["inputs"] == ids_bytes + target_bytes


def test_views_do_not_count_twice() -> None:
    base = torch.randn(1000)
    result = account(lambda: [base[i:] for i in range(10)] and base.view(10, 100).t())
    assert result.left_behind_bytes == 0
    assert result.peak_bytes == result.start_bytes


def test_what_a_region_keeps_is_left_behind_and_what_it_frees_is_not() -> None:
    kept: list[Tensor] = []

    def work() -> None:
        kept.append(torch.zeros(256))
        torch.zeros(4096).add_(1)

    result = account(work)
    assert result.left_behind_bytes == 1024
    assert _gained(result, "other") == 1024
    assert result.peak_bytes - result.start_bytes == 1024 + 4096 * 4
    assert result.at_peak_bytes["temporary"] == 4096 * 4
    assert account(kept.clear).left_behind_bytes == -1024


def test_checkpointing_trades_activations_away() -> None:
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.Sigmoid()) for _ in range(8)])
    batch = torch.randn(64, 128, requires_grad=True)

    def at_backward(run: Callable[[], Tensor]) -> int:
        with Accountant() as accountant:
            kept = run()
        seen = accountant.result
        del kept
        return _gained(seen, "activations")

    plain = at_backward(lambda: block(batch).sum())
    spared = at_backward(lambda: checkpoint(block, batch, use_reentrant=False).sum())
    assert spared < plain / 4
    whole = account(lambda: checkpoint(block, batch, use_reentrant=False).sum().backward())
    _adds_up(whole)
    batch.grad = None


def test_lbfgs_runs_forward_and_backward_inside_its_step() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    batch = torch.randn(4, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().sum()
        loss.backward()
        return loss

    result = account(lambda: optimizer.step(closure))
    assert result.n_steps == 1
    assert _gained(result, "optimizer state") > 0
    _adds_up(result)


def test_counting_ends_after_the_steps_asked_for() -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: list[Tensor] = []
    with Accountant(max_steps=2) as accountant:
        for _ in range(5):
            model(torch.randn(2, 16)).sum().backward()
            optimizer.step()
            kept.append(torch.zeros(100))
    result = accountant.result
    assert (result.n_steps, result.complete) == (2, False)
    # the second step's own comes after it, when nobody counts any more; the first was alive
    # when a backward began, as a target would be
    assert _gained(result, "other") + _gained(result, "inputs") == 400
    assert len(kept) == 5


def test_optimizers_that_step_in_a_backward_pass_make_one_step() -> None:
    """Counting ended within the pass, and as that ended torch gave the thread the mode back."""
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    with Accountant(max_steps=2) as accountant:
        for _ in range(5):
            model(torch.randn(2, 16)).sum().backward()
        assert not torch._C._len_torch_dispatch_stack()
    result = accountant.result
    assert (result.n_steps, result.complete) == (2, False)
    model(torch.randn(2, 16)).sum().backward()
    assert accountant.result.n_steps == 2


def test_an_account_that_is_left_in_a_hook_of_a_backward_pass_leaves_no_mode() -> None:
    model, accountant = nn.Linear(4, 1), Accountant()
    accountant.__enter__()
    model.weight.register_hook(lambda _: accountant.__exit__(None, None, None))
    model(torch.randn(2, 4)).sum().backward()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert accountant.result.warnings == ()


def test_nothing_done_is_said_so() -> None:
    result = account(lambda: sum(range(10)))
    assert result.did_nothing
    assert result.left_behind_bytes == 0
    assert result.n_operators == 0
    assert not account(lambda: torch.zeros(3)).did_nothing


def test_what_is_no_function_model_or_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="step is "):
        account(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="model is a int"):
        account(lambda: None, model=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="optimizer is a Linear"):
        account(lambda: None, optimizer=nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        Accountant(max_steps=0)
    with pytest.raises(UsageError, match="has not ended"):
        _ = Accountant().result


def test_several_models_are_taken_and_a_sequential_is_one() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assert account(lambda: None, model=models).did_nothing
    assert account(lambda: None, model=nn.Sequential(*models)).did_nothing


def test_a_graph_that_is_too_large_to_be_counted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.ones(1000, requires_grad=True)
    for _ in range(5):
        before = before * 2
    said = "too large to be counted in full"
    assert not any(said in warning for warning in account(lambda: torch.ones(9)).warnings)
    monkeypatch.setattr(survey, "MAX_NODES", 2)
    assert any(said in warning for warning in account(lambda: torch.ones(9)).warnings)


def test_nothing_refers_to_tensors_after_it_not_even_until_the_next_collection() -> None:
    # Python 3.11 ends the process where a collection begins as a storage is freed and takes away
    # one of several weak references to it: two accounts and a zero_grad() were enough
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def step() -> None:
        model.zero_grad()
        model(torch.randn(4, 8)).sum().backward()

    step()
    gc.collect()
    gc.disable()
    try:
        account(step)
        find_leaks(step)
        tensors = [*model.parameters(), *(x.grad for x in model.parameters() if x.grad is not None)]
        assert [weakref.getweakrefcount(x.untyped_storage()) for x in tensors] == [0] * 4
    finally:
        gc.enable()
