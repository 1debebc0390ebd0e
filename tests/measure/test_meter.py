from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.measure.meter import StepMeter

MS = 1_000_000


def metered(steps: list[tuple[int, int]], capacity: int = 65_536) -> StepMeter:
    meter = StepMeter(capacity)
    for step, wait in steps:
        meter.add(step, wait)
    return meter


def test_a_step_is_split() -> None:
    meter = metered([(10 * MS, 4 * MS), (20 * MS, 0)])
    assert meter.steps.step_ms.tolist() == [10, 20]
    assert meter.steps.wait_ms.tolist() == [4, 0]
    assert (meter.n, meter.total_ns, meter.wait_total_ns) == (2, 30 * MS, 4 * MS)


@given(st.lists(st.tuples(st.integers(-50, 1000), st.integers(-50, 2000)), max_size=80))
def test_nothing_is_negative_and_no_wait_longer_than_its_step(steps: list[tuple[int, int]]) -> None:
    meter = metered(steps)
    assert (meter.steps.step_ms >= 0).all()
    assert (meter.steps.wait_ms >= 0).all()
    assert (meter.steps.wait_ms <= meter.steps.step_ms).all()


@pytest.mark.parametrize("n", [7, 8, 9, 16, 17, 100, 1000])
def test_a_full_meter_keeps_an_even_sample_and_exact_sums(n: int) -> None:
    meter = metered([(i, i // 2) for i in range(n)], capacity=8)
    assert meter.n == n
    assert meter.total_ns == sum(range(n))
    assert meter.wait_total_ns == sum(i // 2 for i in range(n))
    kept = meter.steps.numbers
    assert len(kept) <= 8
    assert np.array_equal(
        meter.steps.step_ms * 1e6, kept
    )  # step i took i ns: the right ones are kept
    assert np.array_equal(kept, np.arange(0, n, meter.stride)[: len(kept)])
    assert n - kept[-1] <= meter.stride


def test_since_gives_the_kept_steps_from_a_number_on() -> None:
    meter = metered([(i, 0) for i in range(20)], capacity=8)
    numbers, step_ms, wait_ms = meter.points(9, ())
    assert meter.stride == 4
    assert numbers == [13, 17]
    assert [1e6 * ms for ms in step_ms] == [12, 16]
    assert wait_ms == [0, 0]
    assert meter.points(20, ())[0] == []


def test_waits_thin_out_with_their_steps() -> None:
    meter = StepMeter(capacity=8)
    for n in range(100):
        meter.add(1000, n)
    assert (1e6 * meter.steps.wait_ms).round().tolist() == meter.steps.numbers.tolist()


def test_the_smallest_capacity_is_two() -> None:
    meter = StepMeter(capacity=2)
    for n in range(5):
        meter.add(n, 0)
    assert meter.steps.numbers.tolist() == [0]
    assert (meter.n, meter.stride) == (5, 8)


def test_the_median_of_the_last_steps() -> None:
    meter = metered([(9, 0)] * 100 + [(n, 1) for n in range(200)])
    assert meter.usual_ns() == 100
