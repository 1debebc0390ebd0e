"""What a run costs: by hand; break-even, and predictions for other devices with their band."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from simulated_traces import WORKERS, Simulated, cpu_training, product_on_gpu

import perfkit
from perfkit.base.errors import PerfkitError, UsageError
from perfkit.limit.datasheet import data_sheet
from perfkit.limit.prices import EXAMPLE_PRICES, READ_ON
from perfkit.measure.summary import summarize


def test_the_price_of_a_run_is_its_hours_times_the_price() -> None:
    found = perfkit.cost(72.0, price_per_hour=2.5, steps=100_000, currency="EUR")
    assert found.hours == pytest.approx(2.0)
    assert found.price == pytest.approx(5.0)
    assert (found.price_low, found.price_high, found.break_even) == (None, None, None)
    assert str(found).startswith("100,000 steps of 72.0 ms take 120 min and cost 5.00 EUR.")
    nameless: Any = None
    found = perfkit.cost(72.0, price_per_hour=2.5, steps=100_000, currency=nameless)
    assert str(found).startswith("100,000 steps of 72.0 ms take 120 min and cost 5.00.")


def test_work_is_paid_after_so_many_runs() -> None:
    found = perfkit.cost(
        72.0, before=108.0, price_per_hour=2.5, steps=100_000, work_hours=4, wage_per_hour=50.0
    )
    one = found.break_even
    assert one is not None
    assert one.saved_per_run == pytest.approx(2.5)
    assert one.saved_hours_per_run == pytest.approx(1.0)
    assert one.work_cost == 200
    assert one.runs == pytest.approx(80)
    assert "pay off after 80.0 such runs" in " ".join(str(found).split())


def test_what_saves_nothing_is_never_paid() -> None:
    found = perfkit.cost(72.0, before=72.0, price_per_hour=2.5, steps=1000, work_hours=1)
    assert found.break_even is not None
    assert found.break_even.runs is None
    assert "costs no less than before" in str(found)
    with pytest.raises(UsageError, match="give the step before the work, too"):
        perfkit.cost(72.0, price_per_hour=2.5, steps=1000, work_hours=1)


def test_the_interval_of_the_step_reaches_the_price() -> None:
    now = replace(summarize([72.0] * 8), low=36.0, high=90.0)
    found = perfkit.cost(now, price_per_hour=1.0, steps=100_000)
    assert found.price_low == pytest.approx(1.0)
    assert found.price_high == pytest.approx(2.5)


def test_what_profile_returns_counts_like_its_result() -> None:
    profile = perfkit.open_trace(product_on_gpu()).profile
    block = perfkit.profile()
    vars(block)["result"] = profile
    known = {"price_per_hour": 1.0, "steps": 10, "on": {"L4": 1.0}}
    found = [perfkit.cost(one, **known) for one in (block, profile)]
    assert found[0] == found[1]
    assert found[0].elsewhere[0].step.device == "L4"


def test_a_profile_counts_with_its_steps_without_the_profiler() -> None:
    weight = torch.rand(64, 64)
    plain = perfkit.profile(lambda: weight @ weight, steps=3, warmup=1)
    assert plain.cost is not None
    cost = replace(plain.cost, profiled_step_ms=12.0, unprofiled_step_ms=10.0)
    found = perfkit.cost(replace(plain, cost=cost), price_per_hour=1.0, steps=10)
    assert found.step_ms == 10.0
    assert "without the profiler" in str(found)
    cost = replace(cost, unprofiled_step_ms=None)
    found = perfkit.cost(replace(plain, cost=cost), price_per_hour=1.0, steps=10)
    assert found.how == "median of 3 recorded steps"


@pytest.mark.parametrize(("n_steps", "has_interval"), [(1, False), (2, True)])
def test_one_recorded_step_has_no_interval(n_steps: int, has_interval: bool) -> None:
    profile = replace(perfkit.open_trace(product_on_gpu()).profile, step=summarize([1.0] * n_steps))
    found = perfkit.cost(profile, price_per_hour=3.6, steps=1_000_000)
    assert (found.price_low is not None) == (found.price_high is not None) == has_interval


def test_another_device_is_predicted_with_a_band() -> None:
    recorded = perfkit.open_trace(product_on_gpu())
    found = perfkit.cost(
        recorded, price_per_hour=6.0, steps=3_600_000, on={"L4": 1.0, "H100 SXM": 6.0}
    )
    by_name = {one.step.device: one for one in found.elsewhere}
    same = by_name["H100 SXM"].step
    # of 1000 µs 330 are kernels: on the recorded device they take what they took
    assert same.ms == pytest.approx(1.0)
    assert same.share_kept == pytest.approx(0.67)
    assert by_name["H100 SXM"].price == pytest.approx(6.0)
    assert by_name["H100 SXM"].price == pytest.approx(6.0)
    slow = by_name["L4"].step
    ratio = data_sheet("H100 SXM").tflop_per_s["bfloat16"] / 121
    moved = 3350 / 300
    kernels_ms = (0.2 * ratio + 0.1 * moved) * (330 / 300)
    assert slow.ms == pytest.approx(0.67 + kernels_ms)
    for one in by_name.values():
        assert one.step.low_ms <= one.step.ms <= one.step.high_ms
        assert one.price_low <= one.price <= one.price_high
    assert list(found.elsewhere) == sorted(found.elsewhere, key=lambda one: one.price)
    assert "predicted" in str(found)
    assert len(set(found.warnings)) == len(found.warnings)


def test_a_step_that_waits_for_its_workers_is_as_long_on_every_gpu() -> None:
    sim = Simulated()
    shapes = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["float", "float"]}
    for i in range(3):
        at = i * 10_000
        sim.step(i, at, 10_000)
        sim.label(WORKERS, at, 9_000)
        op = sim.host("aten::mm", at + 9_010, 20, **shapes)
        sim.device("gemm", at + 9_100, 800, sim.call("cudaLaunchKernel", at + 9_012, 5, op))
    whole = json.loads(sim.json())
    whole["deviceProperties"] = [{"id": 0, "name": "Tesla T4"}]
    recorded = perfkit.open_trace(json.dumps(whole).encode())
    found = perfkit.cost(recorded, price_per_hour=0.5, steps=1000, on={"H200": 5.0})
    assert found.elsewhere[0].step.ms == pytest.approx(10.0)
    assert found.elsewhere[0].price == pytest.approx(10 * found.price)


def test_without_shapes_nothing_is_predicted() -> None:
    for recorded in (cpu_training(3).json(), product_on_gpu(name="A Device")):
        with pytest.raises(UsageError, match="record shapes"):
            perfkit.cost(
                perfkit.open_trace(recorded), price_per_hour=1.0, steps=1, on={"H200": 1.0}
            )
    with pytest.raises(UsageError, match="no data sheet of 'Z9000'"):
        perfkit.cost(
            perfkit.open_trace(product_on_gpu()), price_per_hour=1.0, steps=1, on={"Z9000": 1.0}
        )


def test_example_prices_are_dated_and_of_devices_with_a_data_sheet() -> None:
    assert len(READ_ON) == 10
    for one in EXAMPLE_PRICES:
        assert data_sheet(one.device).name == one.device
        assert one.usd_per_hour > 0
        assert one.vendor


@pytest.mark.parametrize("amount", [10**400, 1e308, float("inf"), float("nan"), -1, True, "3"])
def test_an_amount_that_cannot_be_is_refused(amount: Any) -> None:
    """A whole number too large for a float ended in an OverflowError, and 1e308 cost nothing."""
    for name in ("price_per_hour", "steps"):
        given: dict[str, Any] = {"price_per_hour": 3.0, "steps": 10} | {name: amount}
        with pytest.raises(UsageError, match=rf"^{name} is "):
            perfkit.cost(80.0, **given)
    with pytest.raises(PerfkitError):
        perfkit.cost(amount, price_per_hour=3.0, steps=10)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (summarize([1.0] * 6, unit="s"), "is a summary in 's'; give one of times in ms"),
        (summarize([0.0] * 6), "has a median of 0 ms"),
        (0, "step is 0; give a step's length"),
        (-1.0, "step is -1.0; give a step's length"),
        (True, "step is True; give a step's length"),
        (None, "step is None; give a step's length"),
    ],
)
def test_a_step_without_a_length_is_refused(step: Any, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        perfkit.cost(step, price_per_hour=1.0, steps=10)


def test_other_devices_are_a_mapping() -> None:
    with pytest.raises(UsageError, match="on is a list; give a mapping of devices"):
        perfkit.cost(1.0, price_per_hour=1.0, steps=10, on=["L4"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on has the device 4; give the name of a data sheet"):
        perfkit.cost(1.0, price_per_hour=1.0, steps=10, on={4: 1.0})  # type: ignore[dict-item]


def test_a_budget_that_cannot_be_is_refused() -> None:
    for budget in (10**400, float("inf"), float("nan"), -1, True):
        with pytest.raises(UsageError, match=r"^budget_s "):
            perfkit.compare(int, int, budget_s=budget)


@pytest.mark.parametrize(
    ("n", "how"), [(1, "median of 1 recorded step"), (3, "median of 3 recorded steps")]
)
def test_one_recorded_step_is_one(n: int, how: str) -> None:
    trace = perfkit.open_trace(cpu_training(n).json())
    assert perfkit.cost(trace, price_per_hour=1.0, steps=1).how == how
