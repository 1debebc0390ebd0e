"""What a report says beside its verdict, of made traces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from simulated_traces import WORKERS, Simulated, cpu_training, gpu_training, product_on_gpu

from perfkit.advice import explain
from perfkit.advice.profile import _limit_of
from perfkit.trace import find_steps, load
from perfkit.trace.ask.limit import limit
from perfkit.trace.record.recording import Cost


def _fetching(*n_fetches: int, updates: bool) -> Simulated:
    """Steps of 1 ms, each with so many fetches from a DataLoader."""
    sim = Simulated()
    for i, n in enumerate(n_fetches):
        begin = i * 1_000
        sim.step(i, begin, 1_000)
        for k in range(n):
            sim.label(WORKERS, begin + 10 + 100 * k, 50)
        sim.host("aten::mm", begin + 500, 300)
        if updates:
            sim.label("Optimizer.step#SGD.step", begin + 900, 50)
    return sim


@pytest.mark.parametrize(
    ("n_fetches", "updates", "said"),
    [
        ((3, 3, 4), True, ["a step is one optimizer step: 3 batches of the DataLoader"]),
        ((3, 3, 4), False, []),
        ((3, 1, 3), True, []),  # an epoch that ends here and there
        ((3,), True, []),
    ],
)  # fmt: skip
def test_what_a_step_of_several_batches_is(
    n_fetches: tuple[int, ...], updates: bool, said: list[str]
) -> None:
    found = explain(load(_fetching(*n_fetches, updates=updates).json()))
    assert [one for one in found.warnings if "DataLoader" in one] == said


def test_steps_that_two_loaders_begin_are_found_by_them_and_not_called_several_fetches() -> None:
    sim = _fetching(2, 2, 2, updates=False)
    sim.events = [e for e in sim.events if not e["name"].startswith("ProfilerStep")]
    found = explain(load(sim.json()))
    assert "DataLoader" in found.breakdown.how_found
    assert not any("each step fetches" in one for one in found.warnings)


def test_only_a_file_without_a_device_lacks_one() -> None:
    def lacks(made: Simulated) -> bool:
        return any("no device activity" in one for one in explain(load(made.json())).warnings)

    assert lacks(cpu_training(3))
    assert not lacks(gpu_training(3, n_kernels=5))


def test_without_a_mark_it_is_one_piece_unless_you_say_that_it_is_a_step() -> None:
    sim = cpu_training(1)
    sim.events = [e for e in sim.events if not e["name"].startswith("ProfilerStep")]
    trace = load(sim.json())
    assert explain(trace).is_piece
    assert not explain(trace, is_step=True).is_piece


@pytest.mark.parametrize(
    ("base_ns", "when"),
    [(1_732_600_000_000_000_000, "2024-11-26T05:46:40+00:00"), (0, ""), (5 * 10**18, "")],
)
def test_when_a_file_was_recorded_is_said_where_it_can_be_true(base_ns: int, when: str) -> None:
    whole = json.loads(cpu_training(2).json()) | {"baseTimeNanoseconds": base_ns}
    assert explain(load(json.dumps(whole).encode())).provenance.when_utc == when


def test_of_nothing_and_of_one_piece_there_is_no_waterfall() -> None:
    found: Any = explain(load(_fetching(1, 1, updates=True).json()))
    assert found.waterfall is not None
    assert replace(found, nothing="No step.").waterfall is None
    assert replace(found, is_piece=True).waterfall is None


def test_the_least_time_is_beside_a_step_without_the_profiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = load(product_on_gpu())
    cost = Cost(1.0, 0.9, 6, 30, 0.1, 0.1, 100)
    beside, _ = _limit_of(trace, find_steps(trace), cost)
    assert beside is not None
    assert (beside.step_us, beside.is_unprofiled) == (pytest.approx(900), True)
    # where the host ran ahead, the device's own steps are known
    ahead = replace(limit(trace), step_us=500.0)
    monkeypatch.setattr("perfkit.trace.ask.limit.limit", lambda *_: ahead)
    assert _limit_of(trace, find_steps(trace), cost) == (ahead, ())
