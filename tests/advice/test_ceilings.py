"""Every "at most" is one: against made steps of which it is known how long they take otherwise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_traces import Simulated

from perfkit.advice.case import Case
from perfkit.advice.diagnose import Diagnosis, diagnose
from perfkit.advice.findings import amdahl
from perfkit.advice.outside import steps_grow
from perfkit.measure.summary import summarize
from perfkit.trace import breakdown, find_steps, load
from perfkit.trace.record.elsewhere import growth

# µs of the host for an operator, µs of the device for its kernel
_Op = tuple[float, float]
_times = st.tuples(st.floats(5, 200), st.floats(1, 300))
_parts = st.lists(_times, min_size=1, max_size=6)


def _takes(ops: list[_Op]) -> float:
    """A step of a loop that never waits: as long as its longer lane."""
    return max(sum(host for host, _ in ops), sum(device for _, device in ops))


def _recorded(forward: list[_Op], update: list[_Op], slower: float) -> Simulated:
    """Steps of these operators; the profiler makes those of forward so many times as long."""
    sim, at, free = Simulated(), 0.0, 0.0
    for number in range(4):
        began = at
        for name, ops in (("aten::mm", forward), ("aten::add_", update)):
            label_from = at
            for host, device in ops:
                took = host * (slower if ops is forward else 1)
                op = sim.host(name, at, took)
                launch = sim.call("cudaLaunchKernel", at + 0.6 * took, 1, op)
                free = max(free, at + 0.6 * took + 1)  # as the launch ends: no latency
                sim.device("a_kernel", free, device, launch)
                free += device
                at += took
            if name == "aten::add_":
                sim.label("Optimizer.step#Adam.step", label_from, at - label_from)
        sim.step(number, began, at - began)
    return sim


@settings(max_examples=60, deadline=None)
@given(_parts, _parts, st.floats(1, 3))
def test_what_goes_with_the_optimizers_host_work_is_at_most_what_is_said(
    forward: list[_Op], update: list[_Op], slower: float
) -> None:
    """Whatever the profiler adds to the host, and whichever lane is the longer one."""
    trace = load(_recorded(forward, update, slower).json())
    steps = find_steps(trace)
    plain_us = _takes(forward + update)
    case = Case(trace, steps, breakdown(trace, steps), plain_ms=plain_us / 1e3)
    without = [*forward, *((0.0, device) for _, device in update)]
    said = amdahl(case.lost_to("optimizer"))[0]
    assert said >= min(plain_us / _takes(without), 10.0) * 0.99
    # the device's share is that of the steps, not of the longer recorded ones
    busy_us = sum(device for _, device in forward + update)
    assert case.busy_share <= min(busy_us / plain_us, 1.0) + 0.01


# µs of an operator, of the pause after it, and of one that stays: each in forward and in backward
_gap = st.floats(0, 40)
_NODE = "autograd::engine::evaluate_function: MulBackward0"


def _looped(
    n: int, op: float, forward: float, backward: float, stays: list[float]
) -> tuple[Diagnosis, float]:
    """Steps with a loop of ``n`` rounds; what is said, and how much faster they are without it."""
    sim, at, kept = Simulated(), 0.0, 0.0
    for number in range(3):
        began = at
        for name, gap in (("aten::mul", forward), (_NODE, backward)):
            for _ in range(n):
                sim.host(name, at, op)
                at += op + gap
            for took in stays:
                sim.host(name.replace("mul", "mm").replace("Mul", "Mm"), at, took)
                at += took
        kept = 2 * sum(stays)
        sim.step(number, began, at - began)
    trace = load(sim.json())
    steps = find_steps(trace)
    split = breakdown(trace, steps)
    said = diagnose(Case(trace, steps, split, is_file=False), summarize(split.wall_ms), "made")
    return said, (at - began) / kept


@settings(max_examples=60, deadline=None)
@given(
    st.integers(260, 700),
    st.floats(3, 45),
    _gap,
    _gap,
    st.lists(st.floats(200, 5_000), min_size=1, max_size=6),
)
def test_what_goes_with_a_loop_of_small_operators_is_at_most_what_is_said(
    n: int, op: float, forward: float, backward: float, stays: list[float]
) -> None:
    """What is between them goes, too, in the backward pass as well; and longer ones of the loop."""
    said, gain = _looped(n, op, forward, backward, stays)
    for found in said.findings:
        assert found.rule in ("tiny-ops", "small-calls")
        assert found.gain_at_most >= min(gain, 10.0) * 0.99


def test_a_step_of_small_operators_alone_is_bound_by_their_overhead() -> None:
    """It "computes" all the time, and hardly any of it is work; of longer ones, it is."""
    assert _looped(600, 5.0, 3.0, 3.0, [900.0])[0].verdict == (
        "Overhead-bound: 1,200 small operators take 84 % of each step."
    )
    assert _looped(600, 5.0, 3.0, 3.0, [15_000.0])[0].verdict.startswith("Partly overhead-bound:")
    for op, stays in ((5.0, 90_000.0), (30.0, 900.0)):
        assert _looped(600, op, 3.0, 3.0, [stays])[0].verdict.startswith("Compute-bound:")


@given(st.floats(0.001, 0.1), st.floats(0.5, 50.0), st.integers(60, 400), st.sampled_from([1, 2]))
def test_the_ceiling_of_growing_steps_is_that_of_the_first_one(
    first_s: float, times: float, n: int, power: int
) -> None:
    lengths = [first_s * (1.0 + times * (i / n) ** power) for i in range(n)]
    ends = [sum(lengths[: i + 1]) for i in range(n)]
    _, found = growth([(e - s, e) for e, s in zip(ends, lengths, strict=True)], ())
    for finding in steps_grow(found, None):
        true = sum(lengths) / (n * first_s)
        assert finding.gain_at_most >= min(true, 10.0) * (1 - 1e-6)  # told as "over 10×" beyond
