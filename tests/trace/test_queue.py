"""How far the host runs ahead: the launch queue's length and each launch's delay."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.trace import launch_queue, load


def test_length_and_delay_by_hand() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    # calls take 5 µs at 2 µs into an op: returned at 7, 17, 27; started at 100, 200, 300
    for i in range(3):
        sim.kernel("aten::mm", i * 10, 100 + i * 100, 90)
    found = launch_queue(load(sim.json()))
    assert found.delay_ns.tolist() == [98_000, 188_000, 278_000]
    assert found.at_ns.tolist() == [7_000, 17_000, 27_000, 100_000, 200_000, 300_000]
    assert found.length.tolist() == [1, 2, 3, 2, 1, 0]
    (step,) = found.steps
    assert (step.n_launches, step.longest, step.median_delay_us) == (3, 3, 188)
    area = 10 * 1 + 10 * 2 + 73 * 3 + 100 * 2 + 100 * 1
    assert step.mean_length == pytest.approx(area / 1_000)
    assert step.empty_share == pytest.approx((7 + 700) / 1_000)
    assert found.warnings == ()


def test_what_waits_at_the_end_of_a_step_waits_in_the_next_one() -> None:
    sim = Simulated()
    for i in range(2):
        sim.step(i, 1_000 * i, 1_000)
    for launch, start in ((0, 100), (10, 200), (900, 1_100), (1_500, 1_600)):
        sim.kernel("aten::mm", launch, start, 90)  # its call returns 7 µs later
    found = launch_queue(load(sim.json()))
    one, other = found.steps
    assert (one.n_launches, one.longest, one.median_delay_us) == (3, 2, 188)
    assert one.mean_length == pytest.approx((10 + 83 * 2 + 100 + 93) / 1_000)
    assert one.empty_share == pytest.approx((7 + 707) / 1_000)
    assert (other.n_launches, other.longest, other.median_delay_us) == (1, 1, 98)
    assert (other.mean_length, other.empty_share) == (0.193, 0.807)
    assert found.median_delay_us == (98 + 188) / 2
    assert found.empty_share == pytest.approx((0.714 + 0.807) / 2)


def test_a_kernel_that_starts_during_its_launch_is_never_queued() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.kernel("aten::mm", 10, 14, 5)
    found = launch_queue(load(sim.json()))
    assert found.length.max() <= 0 or found.steps[0].empty_share == 1


@pytest.mark.parametrize(("start", "disagree"), [(20, True), (51, True), (52, False)])
def test_clocks_that_disagree_are_told(start: float, disagree: bool) -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.kernel("aten::mm", 50, start, 5)  # launched at 52 µs
    said = launch_queue(load(sim.json())).warnings
    assert any("clocks" in w for w in said) is disagree


def test_without_correlation_or_device_there_is_no_answer() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.host("aten::mm", 5, 10)
    sim.device("gemm", 20, 10, -1)
    alone = launch_queue(load(sim.json()))
    assert alone.median_delay_us is None
    assert any("correlation" in w for w in alone.warnings)
    on_cpu = launch_queue(load(cpu_training(2).json()))
    assert on_cpu.empty_share is None
    assert "not recorded" in str(on_cpu)
