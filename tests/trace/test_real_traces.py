"""Traces that others recorded, where they are."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from real_traces import FILES, each_trace, needs_traces

from perfkit.trace import breakdown, find_steps, limit, load, operators, syncs
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
    idle_ns = statistics.median(step.device_ns["idle"] for step in split.steps)
    assert idle_ns / 1e6 == pytest.approx(idle_ms, rel=0.05)


def test_work_and_times_of_bert_beside_published_figures() -> None:
    """TraceLens publishes a report of the same trace: commit 171dd747, ``tests/traces/h100``.

    It counts the addition of a bias as FLOPs, too: 0.09 % here.
    """
    paths = [p for p in FILES if "h100_bert_small" in p.name]
    if not paths:
        pytest.skip("the BERT trace is not in the folder")
    found = limit(load(paths[0]))
    recorded_ms = {family: us / 1e3 for family, (us, _) in found.families().items()}
    assert recorded_ms["matrix product"] == pytest.approx(0.19760, rel=1e-4)
    assert recorded_ms["normalization"] == pytest.approx(0.030912, rel=1e-4)
    assert recorded_ms["elementwise"] == pytest.approx(0.027807, rel=1e-4)
    assert recorded_ms["reduction"] == pytest.approx(0.003648, rel=1e-4)
    assert sum(recorded_ms.values()) + found.host_copies_us / 1e3 == pytest.approx(
        0.30944, rel=1e-4
    )
    products = [o for o in found.ops if o.family in ("matrix product", "attention")]
    assert sum(o.flops for o in products) == pytest.approx(8.199e9, rel=1e-3)
    assert found.unknown == ()
    # one pass of 0.31 ms of kernels in 4.4 ms: it waits for launches
    assert found.mfu == pytest.approx(0.00187, rel=0.01)
