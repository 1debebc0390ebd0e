"""Traces that others recorded, where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import FILES, each_trace, needs_traces

from perfkit.trace import breakdown, find_steps, load, operators, syncs
from perfkit.trace.ask.idle import idle_causes
from perfkit.trace.ask.waits import waits_under

pytestmark = needs_traces


@each_trace
def test_every_step_of_every_trace_adds_up(path: Path) -> None:
    trace = load(path)
    split = breakdown(trace)
    assert split.steps
    for step in split.steps:
        assert sum(step.host_ns.values()) == step.wall_ns
        assert not step.device_ns or sum(step.device_ns.values()) == step.wall_ns
    steps = find_steps(trace)
    for causes, step in zip(idle_causes(trace, steps), split.steps, strict=False):
        assert sum(causes.values()) == step.device_ns["idle"]
    assert operators(trace, steps)
    assert all(s.count > 0 and s.cost_us >= 0 for s in syncs(trace, steps))


@each_trace
def test_waits_are_the_same_under_whatever_labels(path: Path) -> None:
    trace = load(path)
    fine = waits_under(trace, lambda name: name.startswith("aten::"))
    coarse = waits_under(trace, lambda name: name == "aten::copy_")
    assert fine
    assert all(wait.calls and wait.cost_us >= 0 for wait in fine)
    copies = [(w.start_ns, w.calls, w.cost_us) for w in fine if w.label == "aten::copy_"]
    assert [(w.start_ns, w.calls, w.cost_us) for w in coarse if w.label] == copies


@pytest.mark.parametrize(("workers", "wait_ms", "idle_ms"), [(0, 45.5, 51.6), (4, 1.4, 21.0)])
def test_resnet_with_and_without_loader_workers(
    workers: int, wait_ms: float, idle_ms: float
) -> None:
    paths = [p for p in FILES if f"resnet50_workers{workers}" in p.name]
    if not paths:
        pytest.skip("the ResNet-50 traces are not in the folder")
    split = breakdown(load(paths[0]))
    assert split.median_ms()["data wait"] == pytest.approx(wait_ms, rel=0.05)
    assert split.device_median_ms()["idle"] == pytest.approx(idle_ms, rel=0.05)
