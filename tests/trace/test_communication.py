"""Collectives: time, bytes, bus bandwidth, and what computing hides."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.trace import communication, load
from perfkit.trace.ask.communication import bus_factor


def test_bytes_bandwidth_and_overlap() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.device("gemm", 0, 100, 1)
    sim.device(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50, 200, 2,
        **{
            "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1_000_000,
            "Out msg nelems": 1_000_000, "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]",
        },
    )  # fmt: skip
    found = communication(load(sim.json()))
    (one,) = found.collectives
    assert (one.name, one.dtype, one.message_bytes, one.group_size) == (
        "allreduce", "BFloat16", 2_000_000, 4,
    )  # fmt: skip
    assert (one.total_us, one.overlapped_us, one.exposed_us) == (200, 50, 150)
    assert one.bus_gb_per_s == pytest.approx(2_000_000 / 200e-6 / 1e9 * 1.5)
    assert found.warnings == ()
    assert found.overlapped_share == pytest.approx(0.25)


def test_the_larger_side_counts_and_a_type_of_unknown_size_has_no_bytes() -> None:
    sim = Simulated()
    for i in range(2):
        sim.step(i, 1_000 * i, 1_000)
        told = {"Collective name": "_allgather_base", "In msg nelems": 100, "Group size": 4}
        for k, dtype in enumerate(("Float", "Strange")):
            sim.device(
                "ncclDevKernel_AllGather_RING_LL", 1_000 * i + 300 * k, 200, 2 * i + k,
                **told, **{"dtype": dtype, "Out msg nelems": 400},
            )  # fmt: skip
    found = communication(load(sim.json()))
    sizes = {c.dtype: (c.count, c.message_bytes, c.bus_gb_per_s) for c in found.collectives}
    assert sizes == {
        "Float": (2, 1_600, pytest.approx(1_600 / 200e3 * 0.75)),
        "Strange": (2, None, None),
    }
    assert any("how large some" in w for w in found.warnings)
    assert found.wall_us == 2_000
    size = {"In msg nelems": 8, "Out msg nelems": 8}
    for name, more, dur, n_bytes in (
        ("broadcast", {}, 100, None),
        ("barrier", size, 100, 32),  # moves nothing that has a bandwidth
        ("allreduce", size, 0, 32),  # no time to divide by
    ):
        sim = Simulated()
        sim.step(0, 0, 1_000)
        told = {"Collective name": name, "dtype": "Float", "Group size": 4, **more}
        sim.device("ncclDevKernel", 100, dur, sim.call("cudaLaunchKernel", 10, 5), **told)
        (one,) = communication(load(sim.json())).collectives
        assert (one.name, one.message_bytes, one.bus_gb_per_s) == (name, n_bytes, None)


def test_collectives_at_the_same_time_count_once() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i in range(2):
        sim.device("ncclDevKernel_AllGather", 100, 100, i)
    found = communication(load(sim.json()))
    assert found.busy_us == 100
    assert found.collectives[0].count == 2
    assert found.collectives[0].message_bytes is found.collectives[0].group_size is None
    assert any("how large" in w for w in found.warnings)


def test_what_is_recorded_of_collectives_groups_them_else_their_kind() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 0, "Group size": 2}
    for i, kernel in enumerate(("AllReduce_Sum_f32_RING_LL", "AllReduce_Sum_f32_TREE_LL")):
        sim.device(f"ncclDevKernel_{kernel}", 100 * i, 50, i, **told, **{"Out msg nelems": 0})
    known = communication(load(sim.json()))
    assert [(c.name, c.count, c.message_bytes) for c in known.collectives] == [("allreduce", 2, 0)]
    assert not any("how large" in w for w in known.warnings)
    sim.device("ncclDevKernel_AllGather_RING_LL", 300, 40, 2)
    sim.device("ncclDevKernel_ReduceScatter_RING_LL", 400, 30, 3)
    names = [(c.name, c.count) for c in communication(load(sim.json())).collectives]
    assert names == [("allreduce", 2), ("allgather", 1), ("reducescatter", 1)]


@pytest.mark.parametrize(
    ("name", "n", "factor"),
    [
        ("allreduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("_allgather_base", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("barrier", 4, None),
        ("allreduce", 1, 0.0),
        ("allreduce", 0, None),
    ],
)
def test_factors_of_nccl_tests(name: str, n: int, factor: float | None) -> None:
    assert bus_factor(name, n) == factor


def test_without_collectives_there_is_no_answer() -> None:
    found = communication(load(cpu_training(2).json()))
    assert found.collectives == ()
    assert found.warnings == ("no collective was recorded on a device",)
    assert found.overlapped_share == 0
    assert "not recorded" in str(found)
