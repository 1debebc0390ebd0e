"""A tracker that fails ends its counting, never the step, and the result says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from perfkit.memory import crossings as crossings_module
from perfkit.memory.account import account
from perfkit.memory.crossings import crossings
from perfkit.memory.leaks import find_leaks
from perfkit.memory.tracker import Tracker


def _breaks(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("ours")


def _training() -> tuple[Callable[[], None], list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    x = numpy.ones((4, 8), numpy.float32)
    losses: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.from_numpy(x)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    return step, losses


@pytest.mark.parametrize(
    "part",
    [
        "_learn",
        "_meet",
        "_made",
        "_turn",
        "_before_forward",
        "_after_forward",
        "_before_step",
        "_after_step",
        "_after_backward",
        "_settle_sums",
        "_take_leave",
    ],
)
def test_whatever_of_the_tracker_fails_the_step_trains_on(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, expected = _training()
    plain()
    plain()
    step, losses = _training()
    step()
    monkeypatch.setattr(Tracker, part, _breaks)
    result = account(step)
    assert losses == expected
    (told,) = [warning for warning in result.warnings if "ZeroDivisionError: ours" in warning]
    assert told.startswith("the memory tracker failed and was switched off")
    monkeypatch.undo()
    again = account(step)
    assert not [warning for warning in again.warnings if "failed" in warning]
    assert again.n_operators > 0


def test_what_the_user_raises_is_no_fault_of_ours() -> None:
    def step() -> None:
        torch.zeros(3) + torch.zeros(4)

    with pytest.raises(RuntimeError, match="size of tensor"):
        account(step)


def test_a_resize_that_cannot_be_followed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(10)
    monkeypatch.setattr(Tracker, "_resized", _breaks)
    result = account(lambda: tensor.untyped_storage().resize_(400))
    assert any("failed and was switched off" in warning for warning in result.warnings)


def test_leaks_are_not_denied_when_the_tracker_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    step, losses = _training()
    monkeypatch.setattr(Tracker, "_made", _breaks)
    report = find_leaks(step, steps=8)
    assert len(losses) == 11
    assert "the memory tracker failed" in " ".join(report.to_text().split())


@pytest.mark.parametrize("part", ["_place", "cell_names"])
def test_copies_that_cannot_be_counted_do_not_end_the_step(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def step() -> None:
        torch.ones(3).to("meta")
        torch.tensor([1.0], device="meta")
        torch.ones(3, device="meta")[[0, 1]]
        done.append(True)

    if part == "cell_names":
        assert crossings(step).n_to_device == 3
        return
    monkeypatch.setattr(crossings_module, part, _breaks)
    found = crossings(step)
    assert done
    assert found.n_to_device == 0
    assert "the count of copies failed and was switched off" in " ".join(found.to_text().split())
