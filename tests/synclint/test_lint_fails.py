"""A lint that fails stops watching; the step continues, and the result says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from perfkit.synclint import watch as watch_module
from perfkit.synclint.find import find_syncs
from perfkit.synclint.watch import SyncWatch


def _breaks(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("ours")


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.losses: list[float] = []
        self.calls = 0

    def counted(self, grad: torch.Tensor) -> None:
        self.calls += 1

    def step(self) -> None:
        y = self.net(torch.ones(4, 3))
        y.register_hook(self.counted)
        loss = y[y > 0].sum() + y.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        torch.nn.functional.one_hot(torch.tensor([1, 2]))
        y.to("cpu").tolist()
        self.losses.append(loss.item())


@pytest.mark.parametrize(
    "part",
    [
        "_before_module",
        "_moved",
        "_spot",
        "_relate",
        "begin_call",
        "hit",
        "line_of",
        "note_call",
        "note_operator",
        "remember_line",
    ],
)
def test_whatever_of_the_lint_fails_the_step_trains_on(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    plain, mine = Training(), Training()
    plain.step()
    monkeypatch.setattr(SyncWatch, part, _breaks)
    syncs = find_syncs(mine.step)
    assert mine.losses == plain.losses
    assert mine.calls == 1
    assert any("the sync lint failed and was switched off" in w for w in syncs.warnings)
    monkeypatch.undo()
    assert SyncWatch._active is None


def test_a_line_that_cannot_be_found_does_not_end_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "site_of", _breaks)
    mine = Training()
    syncs = find_syncs(mine.step)
    assert len(mine.losses) == 1
    assert any("failed and was switched off" in w for w in syncs.warnings)


def test_a_call_of_the_users_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure comes afterwards: its result is passed on, and it is not called again."""
    net, rows = nn.Linear(3, 2), []
    monkeypatch.setattr(SyncWatch, "remember_line", _breaks)

    def step() -> None:
        y = net(torch.ones(4, 3))
        rows.append(y.mul_(2.0)[0, 0])

    find_syncs(step)
    assert torch.equal(rows[0], net(torch.ones(4, 3)).mul(2.0)[0, 0])


def test_what_the_user_raises_is_no_fault_of_ours() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        find_syncs(lambda: net(torch.ones(4, 5)))
