"""Repeated kernel sequences: candidates for fusion."""

from __future__ import annotations

import random

from simulated_traces import Simulated, cpu_training

from perfkit.trace import load, sequences

_ADD, _MUL, _NORM = "elementwise_kernel<add>", "elementwise_kernel<mul>", "layer_norm_kernel"


def _row(names: list[str], steps: int = 2, repeats: int = 3, dur: float = 10) -> Simulated:
    """Every step: ``repeats`` times these kernels, 2 µs apart, each followed by a gemm."""
    sim = Simulated()
    for i in range(steps):
        sim.step(i, i * 10_000, 10_000)
        at = i * 10_000 + 10.0
        for _ in range(repeats):
            for name in (*names, "nvjet_gemm"):
                sim.device(name, at, dur, len(sim.events) + 1)
                at += dur + 2
    return sim


def test_a_sequence_is_found_with_what_fusing_could_save() -> None:
    found = sequences(load(_row([_ADD, _MUL, _NORM]).json()))
    best = found.sequences[0]
    assert best.names == (_ADD, _MUL, _NORM)
    assert best.count == 6
    assert best.busy_us == 6 * 30
    assert best.gaps_us == 6 * 4
    assert best.saved_at_most_us == 6 * (20 + 4)
    assert all("gemm" not in name for s in found.sequences for name in s.names)


def test_parts_of_a_longer_sequence_are_not_told_again() -> None:
    assert len(sequences(load(_row([_ADD, _MUL, _NORM]).json())).sequences) == 1


def test_one_kernel_in_a_row_counts_without_overlap() -> None:
    for in_a_row, fit in ((6, 1), (9, 1), (13, 2)):
        found = sequences(load(_row([_ADD] * in_a_row, repeats=2).json()))
        (six,) = (s for s in found.sequences if len(s.names) == 6)
        assert six.count == 4 * fit


def test_what_is_told_of_a_sequence_is_so() -> None:
    names = [f"elementwise_kernel<op{k}>" for k in range(5)]
    chosen = random.Random(3).choices(names, k=120)
    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 10_000, 10_000)
        for k, name in enumerate(chosen):
            sim.device(name, i * 10_000 + 12.0 * k, 10, len(sim.events) + 1)
    found = sequences(load(sim.json()), top=100).sequences
    assert len(found) > 20
    for one in found:
        n = len(one.names)
        starts = [k for k in range(len(chosen)) if tuple(chosen[k : k + n]) == one.names]
        assert 2 <= one.count / 2 <= len(starts)
        assert one.busy_us == one.count * 10 * n
        assert one.gaps_us == one.count * 2 * (n - 1)


def _apart(us: float) -> Simulated:
    """Twice a step two kernels, so far apart, and a gemm."""
    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 10_000, 10_000)
        for k in range(2):
            at = i * 10_000 + k * 4_000.0
            for start, name in ((at, _ADD), (at + 10 + us, _MUL), (at + 30 + us, "nvjet_gemm")):
                sim.device(name, start, 10, len(sim.events) + 1)
    return sim


def test_kernels_a_millisecond_apart_are_no_neighbours() -> None:
    assert len(sequences(load(_apart(950).json())).sequences) == 1
    assert sequences(load(_apart(1_050).json())).sequences == ()


def test_a_sequence_has_six_kernels_at_most() -> None:
    """A longer one is told as those of its parts that save most."""
    names = [f"elementwise_kernel<op{k}>" for k in range(7)]
    found = sequences(load(_row(names).json())).sequences
    assert {len(s.names) for s in found} == {6}


def test_a_kernel_whose_name_ends_like_another_is_another() -> None:
    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 1_000, 1_000)
        at = i * 1_000.0
        for _ in range(3):
            for name in (f"vectorized_{_ADD}", _MUL, _NORM, "nvjet_gemm", _ADD, _MUL, "nvjet_gemm"):
                sim.device(name, at, 10, len(sim.events) + 1)
                at += 12
    names = [s.names for s in sequences(load(sim.json())).sequences]
    assert names == [(f"vectorized_{_ADD}", _MUL, _NORM), (_ADD, _MUL)]


def test_once_a_step_is_no_pattern() -> None:
    assert sequences(load(_row([_ADD, _MUL], repeats=1).json())).sequences == ()


def test_without_a_device_there_is_no_answer() -> None:
    found = sequences(load(cpu_training(2).json()))
    assert found.sequences == ()
    assert any("no kernel" in w for w in found.warnings)
