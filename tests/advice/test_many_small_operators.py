"""Many small operators are one finding, at the place of the forward pass that issues them.

The events are 5 µs apart, in the order of the recording, so that no verdict hangs on the clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perfkit.advice import Finding, explain
from perfkit.trace import Recorder
from perfkit.trace.ask.passes import many_passes
from perfkit.trace.read.steps import find_steps

_OF_CALLS = {"tiny-ops", "small-calls", "host-python"}


def _hinge(row: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    near = row[same]
    far = row[~same]
    closest = far.max()
    margin = 0.1 + closest
    missed = margin - near
    return missed.clamp(min=0).sum()


def _by_row(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    total = scores.new_zeros(())
    for i in range(len(scores)):
        same = labels == labels[i]
        total = total + _hinge(scores[i], same)
    return total / len(scores)


def _of_all(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    same = labels[:, None] == labels[None]
    closest = scores.masked_fill(same, -torch.inf).amax(1, keepdim=True)
    return ((0.1 + closest - scores).clamp(min=0) * same).sum() / len(scores)


class _Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(150))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


class _Env:
    def step(self, row: torch.Tensor) -> torch.Tensor:
        return row.tanh() + row.square()


def _played(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    env, total = _Env(), scores.new_zeros(())
    for i in range(len(scores)):
        total = total + env.step(scores[i]).sum()
    return total


def _told(
    model: nn.Module,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    n: int = 20,
    n_passes: int = 1,
) -> list[Finding]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x, labels = torch.randn(96, 8), torch.arange(96) // 4
    with Recorder(steps=3, warmup=1) as recorder:
        for _ in range(n):
            for _ in range(n_passes):
                embedded = nn.functional.normalize(model(x))
                loss = loss_fn(embedded @ embedded.T, labels)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    found = recorder.recording
    trace = found.trace
    moments = np.unique(np.r_[trace.start_ns, trace.end_ns])
    start_us, end_us = (5.0 * np.searchsorted(moments, at) for at in (trace.start_ns, trace.end_ns))
    taken = tuple(  # between the same two moments
        (int(5_000 * np.searchsorted(moments, at) - 2_500), line) for at, line in found.lines.taken
    )
    ordered = replace(
        found,
        trace=replace(trace, start_us=start_us, dur_us=end_us - start_us),
        lines=replace(found.lines, taken=taken),
        cost=replace(found.cost, unprofiled_step_ms=None),
        busy=None,
    )
    findings = explain(ordered).diagnosis.findings
    assert n_passes > 1 or not any(".backward(" in (f.line or "") for f in findings)
    return [f for f in findings if f.rule in _OF_CALLS]


def test_a_loop_over_rows_in_a_loss_is_one_finding_at_the_loop() -> None:
    """The lines that issue them are many, in two functions; none stands out by itself."""
    (found,) = _told(nn.Linear(8, 8), _by_row)
    assert (found.line or "").endswith(": for i in range(len(scores)):")
    assert "one call for all rounds of this loop" in found.what_to_do
    assert "model = torch.compile(model)" not in found.what_to_do


_CHANGE = nn.Linear(8, 8)


def _advanced(y: torch.Tensor) -> torch.Tensor:
    return y + 0.01 * _CHANGE(y).tanh()


def _solved(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    y, n = scores[:, :8], 0
    while n < 360:
        y = _advanced(y)
        n += 1
    return y.square().mean()


def _each(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    parts = []
    for i in range(360):
        parts.append(_CHANGE(scores[i % 96, :8]))
    return torch.stack(parts).square().mean()


@pytest.mark.parametrize("loss_fn", [_solved, _each])
def test_only_a_loop_that_calls_a_layer_is_told_of_layers(loss_fn: Any) -> None:
    """A solver's loop calls a function that does; each of its rounds needs the one before."""
    (found,) = _told(nn.Linear(8, 8), loss_fn)
    assert loss_fn is _each or "nn.LSTM" not in found.what_to_do
    assert ("no one call does all of them" in found.what_to_do) is (loss_fn is _solved)


@pytest.mark.parametrize("kind", [_Deep])
def test_many_layers_of_a_model_are_for_the_compiler(kind: type[nn.Module]) -> None:
    """The loop over them is the model, and no loop over examples."""
    (found,) = _told(kind(), _of_all, 60)
    assert re.search(r": x = x \+ layer(\.forward)?\(x\)\.relu\(\)$", found.line or "")
    assert "model = torch.compile(model)" in found.what_to_do


class _Critic(nn.Module):
    """Called by another method than forward(), as a policy is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(60))

    def value(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.square().mean()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_method_that_is_not_forward_is_compiled_itself(frozen: bool) -> None:
    """``model = torch.compile(model)`` would change nothing.

    Gradients of weights that are in no optimizer are no more passes.
    """
    found = _told(nn.Linear(8, 8), _Critic().requires_grad_(not frozen).value, 60)[-1]
    assert found.what_to_do.endswith("@torch.compile\ndef value(self, ...):")


def test_steps_of_an_environment_are_for_more_environments_a_call() -> None:
    """They are no updates: the loop around them is no loop over the steps of a training."""
    (found,) = _told(nn.Linear(8, 8), _played, 120)
    assert (found.line or "").endswith(": for i in range(len(scores)):")
    assert "SyncVectorEnv" in found.what_to_do
    assert found.changes


def test_a_loss_of_all_rows_at_once_is_no_finding() -> None:
    assert _told(nn.Linear(8, 8), _of_all) == []


def test_many_passes_for_one_update_are_for_a_larger_batch() -> None:
    """As with a batch of one and sums of gradients: no compiler makes few calls of them."""
    (found,) = _told(nn.Linear(8, 8), _of_all, 60, n_passes=40)
    assert "# 40 passes for one update" in found.what_to_do


def test_a_few_micro_batches_are_not() -> None:
    assert all("for one update" not in f.what_to_do for f in _told(_Deep(), _of_all, 60, 2))


def test_passes_that_an_update_asks_for_are_no_micro_batches() -> None:
    """L-BFGS runs its closure again and again: each pass needs the update before it."""
    model = nn.Linear(8, 8)
    x = torch.randn(96, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    def passes() -> int:
        trace = recorder.recording.trace
        return many_passes(trace, find_steps(trace), 2)

    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=12)
    with Recorder(steps=2, warmup=1) as recorder:
        for _ in range(5):
            optimizer.step(closure)
    assert passes() == 0
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Recorder(steps=2, warmup=1) as recorder:
        for _ in range(5):
            for _ in range(12):
                (model(x) - x).square().mean().backward()
            sgd.step()
    assert passes() == 12
