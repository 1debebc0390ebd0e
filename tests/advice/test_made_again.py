"""What steps make anew although it is the same, or run twice: and not what only looks like it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from perfkit.advice.findings import Finding
from perfkit.script.options import Options
from perfkit.script.run_watch import RunWatch

_STEPS = 36


@pytest.fixture(autouse=True)
def _as_before_any_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch.compile has run in this process, by an earlier test, nothing is looked at."""
    monkeypatch.setattr("perfkit.base.torch_compat.compile_has_patched_torch", lambda: False)


def _train(
    model: nn.Module,
    loss_of: Callable[[nn.Module, Tensor], Tensor] | None = None,
    n_steps: int = _STEPS,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(n_steps):
        x = torch.randn(8 + (step == 20), 48)
        loss = model(x).square().mean() if loss_of is None else loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _found(train: Callable[[], None], *rules: str) -> list[Finding]:
    """What was found of these rules: before it is asked how many samples fall on the lines."""
    torch.manual_seed(0)
    watch = RunWatch("train.py", Options(steps=2, warmup=1))
    watch.start()
    try:
        train()
    finally:
        watch.stop()
    assert watch.seen is not None
    assert watch.seen.failures == ()
    return [f for f in watch.seen.state.findings if f.rule in (rules or ("made-again",))]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 48)
        self.register_buffer("covariance", torch.eye(300) * 3 + torch.rand(300, 300) / 100)
        self.scores = nn.Parameter(torch.randn(200_000))


class _Inverse(_Net):
    def forward(self, x: Tensor) -> Tensor:
        precision = torch.linalg.inv(self.covariance)
        return self.layer(x) * precision.diagonal().mean()


class _Table(_Net):
    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(x.size(1), 48)
        for row in range(x.size(1)):
            for i in range(48):
                table[row, i] = np.sin(row / 10000 ** (i / 48))
        return self.layer(x) @ table


class _Mask(_Net):
    def mask(self, n: int) -> Tensor:
        allowed = torch.zeros(n, n, dtype=torch.bool)
        for i in range(n):
            for j in range(i + 1):
                allowed[i, j] = True
        return allowed

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.mask(x.size(1)).float()


def _class_weights(targets: Any) -> Tensor:
    _, counts = np.unique(targets, return_counts=True)
    return torch.tensor(counts.sum() / counts)


def _by_class() -> None:
    targets = [n * n % 7 for n in range(60_000)]
    _train(nn.Linear(48, 4), lambda model, x: (model(x) * _class_weights(targets)).square().mean())


def _by_loop() -> None:
    table, model = torch.randn(60_000, 48), nn.Linear(48, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(_STEPS):
        rows = torch.randint(60_000, (8,))
        scaled = (table - table.mean(0)) / table.std(0)
        loss = model(scaled[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("train", "what", "cure"),
    [
        (lambda: _train(_Inverse()), "precision", "self._precision = torch.linalg.inv(self.cov"),
        (lambda: _train(_Table()), "table", "table = self._table"),
        (lambda: _train(_Mask()), "mask()", "@functools.cache"),
        (_by_class, "_class_weights", "result = _class_weights(targets)  # once, before the loop"),
        (_by_loop, "scaled", "scaled = (table - table.mean(0)) / table.std(0)"),
    ],
)
def test_what_is_made_of_nothing_that_changes_is_found_with_what_makes_it_once(
    train: Callable[[], None], what: str, cure: str
) -> None:
    found = [f for f in _found(train) if what in f.title]
    assert [cure in f.what_to_do for f in found] == [True]


class _OfScores(_Net):
    """What is kept of trained scores is the same for a while."""

    def forward(self, x: Tensor) -> Tensor:
        kept = (self.scores.sort().values > 0).float()
        return self.layer(x) * (kept * self.scores).mean()


class _OfTokens(_Net):
    """Rows without an entry below -9 are all of them; so is the order of what is clipped."""

    def forward(self, x: Tensor) -> Tensor:
        inside = (x.repeat(400, 1).sort(0).values.sign().mean(0) > -9).long().cumsum(0)
        return self.layer(x) * inside


class _Random(_Net):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(300_000).sort().values
        return self.layer(x) * noise[:48]


class _Made(_Net):
    """Made at first use."""

    made: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.made is None:
            self.made = torch.linalg.inv(self.covariance)
        return self.layer(x) * torch.randn(300_000).sort().values[:48] * self.made.mean()


@pytest.mark.parametrize("kind", [_OfScores, _OfTokens, _Random, _Made])
def test_what_may_change_is_not_found(kind: Callable[[], nn.Module]) -> None:
    assert _found(lambda: _train(kind()), "made-again", "called-twice") == []


def _twice(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    return loss + 0 * model(x).detach().mean()


def test_a_model_that_runs_twice_on_a_batch_is_found_with_both_lines_rewritten() -> None:
    model = nn.Sequential(nn.Linear(48, 2000), nn.Linear(2000, 2000))
    (found,) = _found(lambda: _train(model, _twice), "called-twice")
    assert found.what_to_do == (
        "output = model(x)  # once, before its first use\n"
        "loss = output.square().mean()\n"
        "return loss + 0 * output.detach().mean()"
    )


def _other_view(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean() + model(x + 1).mean()


def _other_weights(model: Any, x: Tensor) -> Tensor:
    first = model(x).square().mean()
    with torch.no_grad():
        model[0].bias.add_(1e-3)
    return first + model(x).mean()


def _in_parts(model: Any, x: Tensor) -> Tensor:
    hidden: Tensor = checkpoint(model, x.requires_grad_(), use_reentrant=False)
    return hidden.square().mean()


@pytest.mark.parametrize("loss_of", [_other_view, _other_weights, _in_parts, _twice])
def test_two_results_that_differ_or_a_pass_that_is_run_again_are_not_found(
    loss_of: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    dropout = nn.Dropout(0.1 * (loss_of is _twice))  # two masks: SimCSE, R-Drop
    model = nn.Sequential(nn.Linear(48, 2000), dropout, nn.Linear(2000, 2000))
    assert _found(lambda: _train(model, loss_of), "made-again", "called-twice") == []


def test_a_run_that_ends_as_a_look_is_due_fails_in_nothing() -> None:
    model = nn.Linear(48, 4)
    assert _found(lambda: _train(model, n_steps=32)) == []  # and no failure


def test_a_profile_function_of_the_programs_own_stays_and_none_is_left() -> None:
    def mine(*_: object) -> None:
        pass

    _found(lambda: _train(_Inverse()))
    assert sys.getprofile() is None
    sys.setprofile(mine)
    try:
        assert _found(lambda: _train(_Inverse())) == []
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)


def test_variables_of_what_runs_on_are_let_go() -> None:
    def train() -> None:
        weight = nn.Parameter(torch.ones(48))
        optimizer = torch.optim.SGD([weight], lr=1e-4)
        batches = (torch.randn(8, 48) for _ in range(_STEPS))
        for x in batches:
            loss = nn.functional.relu(x * weight).mean()
            loss.backward()
            optimizer.step()
            alive.append(sys.getrefcount(x))

    alive: list[int] = []
    _found(train)
    # 8 is the last step before the first look; after a look nothing holds more than before
    assert alive[-1] == alive[4]
