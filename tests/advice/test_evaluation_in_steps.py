"""``%%torchprof`` counts an evaluation inside recorded steps as forward: so it says that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import perfkit
from perfkit import show
from tests.left_running import assert_nothing_runs


def _loop(between: Callable[[nn.Module, torch.Tensor], None], n: int = 16) -> Callable[[], None]:
    net = nn.Linear(200, 200)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(400, 200)

    def train() -> None:
        for _ in range(n):
            net.train()
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            between(net, x)

    return train


def _evaluates(net: nn.Module, x: torch.Tensor) -> None:
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            net(x)


def _infers(net: nn.Module, x: torch.Tensor) -> None:
    net.eval()
    with torch.inference_mode():
        for _ in range(20):
            net(x)


def _looks_in_training_mode(net: nn.Module, x: torch.Tensor) -> None:
    """An episode, or labels that the model makes for itself: a part of the step."""
    with torch.no_grad():
        for _ in range(20):
            net(x)


def _told(result: Any) -> list[str]:
    return [w for w in result.warnings if w.startswith("evaluation (or a policy that plays) is ")]


@pytest.mark.parametrize(
    ("between", "is_told"),
    [
        (_evaluates, True),
        (_infers, True),
        (_looks_in_training_mode, False),
        (lambda net, x: None, False),
    ],
)
def test_evaluation_inside_the_recorded_steps_is_told(
    between: Callable[[nn.Module, torch.Tensor], None], is_told: bool
) -> None:
    with perfkit.profile() as p:
        _loop(between)()
    assert p.result.coverage is not None
    assert p.result.coverage.first_step
    assert len(_told(p.result)) == is_told
    found = {f.rule: f for f in p.result.diagnosis.findings}
    assert ("validation-in-step" in found) == is_told
    if is_told:
        assert "step % 500" in found["validation-in-step"].what_to_do
        text = " ".join(show.text(p.result).split())
        assert "in these shares, which count it as forward, data wait or other" in text


def test_passes_of_what_does_not_train_by_itself_are_not_called_evaluation() -> None:
    """They may be a policy that plays: stable-baselines3 trains its parts one by one."""

    def plays(net: nn.Module, x: torch.Tensor) -> None:
        policy = nn.Sequential(net).eval()
        with torch.no_grad():
            for _ in range(20):
                policy(x)

    with perfkit.profile() as p:
        _loop(plays)()
    assert not _told(p.result)


def test_evaluation_in_a_step_that_perfkit_calls_is_told() -> None:
    result = perfkit.profile(_loop(_evaluates, n=1))
    assert len(_told(result)) == 1


def test_evaluation_in_few_of_the_steps_is_rare_already() -> None:
    n = 0

    def rarely(net: nn.Module, x: torch.Tensor) -> None:
        nonlocal n
        n += 1
        if n % 4 == 0:
            _evaluates(net, x)

    with perfkit.profile(steps=8) as p:
        _loop(rarely)()
    assert _told(p.result)
    assert "validation-in-step" not in {f.rule for f in p.result.diagnosis.findings}


def test_evaluation_outside_of_the_recorded_steps_is_not_told_as_in_them() -> None:
    n = 0

    def rarely(net: nn.Module, x: torch.Tensor) -> None:
        nonlocal n
        n += 1
        if n % 16 == 15:
            _evaluates(net, x)

    with perfkit.profile() as p:
        _loop(rarely, n=40)()
    assert not _told(p.result)


def test_nothing_stays_when_the_recording_is_over() -> None:
    seen: list[bool] = []
    modules = torch.nn.modules.module

    def look(net: nn.Module, x: torch.Tensor) -> None:
        seen.append(bool(modules._global_forward_pre_hooks))

    with perfkit.profile(steps=2, warmup=1):
        _loop(look, n=8)()
    assert seen[:2] == [True, True]
    assert not any(seen[3:])  # the later steps run without it
    assert_nothing_runs()


def test_a_look_out_that_fails_leaves_the_code_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("perfkit.measure.phases.Phases._closes", fails)
    with perfkit.profile() as p:
        _loop(_evaluates)()
    assert not _told(p.result)
    assert any("boom" in w for w in p.result.warnings)
    assert p.result.n_steps > 1
