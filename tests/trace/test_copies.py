"""Copies by direction and memory: bytes, rate, and what computing hides."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.trace import Copies, copies, load
from perfkit.trace.ask.copies import copy_kind


def _copies(sim: Simulated) -> Copies:
    return copies(load(sim.json()))


def test_direction_memory_bytes_and_rate() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.copy("HtoD (Pageable -> Device)", 10, 100, 20, 80, n_bytes=800_000)
    sim.copy("HtoD (Pinned -> Device)", 200, 5, 210, 20, n_bytes=400_000)
    sim.copy("DtoH (Device -> Pinned)", 300, 5, 310, 10, n_bytes=1_000)
    sim.copy("DtoD (Device -> Device)", 400, 5, 410, 5, n_bytes=1_000)
    found = {(c.direction, c.memory): c for c in _copies(sim).kinds}
    assert set(found) == {
        ("host to device", "pageable"),
        ("host to device", "pinned"),
        ("device to host", "pinned"),
        ("within the device", ""),
    }
    pageable = found["host to device", "pageable"]
    assert (pageable.count, pageable.n_bytes, pageable.busy_us) == (1, 800_000, 80)
    assert pageable.rate_gb_per_s == pytest.approx(10)
    assert found["host to device", "pinned"].rate_gb_per_s == pytest.approx(20)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memset (Device)", ("memset", "")),
        ("Memcpy HtoD (Pinned -> Device)", ("host to device", "pinned")),
        ("Memcpy HtoD (Array -> Device)", ("host to device", "not recorded")),
        ("Memcpy DtoH", ("device to host", "not recorded")),
        ("hipMemcpy", ("unknown", "not recorded")),
    ],
)
def test_kinds_are_read_from_names(name: str, kind: tuple[str, str]) -> None:
    assert copy_kind(name) == kind


def test_what_computing_hides() -> None:
    sim = Simulated()
    sim.step(0, 0, 1_000)
    sim.device("gemm", 100, 100, 1)
    sim.device("ncclDevKernel_AllReduce", 0, 1_000, 2)  # hides nothing
    sim.device("Memcpy HtoD (Pinned -> Device)", 150, 100, 3, "gpu_memcpy", bytes=8)
    sim.device("gemm", 150, 100, 4, device=1)  # of another device
    found = _copies(sim)
    assert found.warnings == ()
    (kind,) = found.kinds
    assert kind.overlapped_us == 50
    assert kind.overlapped_share == 0.5


def test_a_copy_belongs_to_the_step_that_launched_it() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.step(1, 100, 100)
    sim.copy("HtoD (Pinned -> Device)", 90, 5, 150, 20)
    sim.copy("HtoD (Pinned -> Device)", 500, 5, 510, 20)  # after the steps
    assert sum(c.count for c in _copies(sim).kinds) == 1


def test_rocm_does_not_say_what_memory_and_how_much() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.device("Memcpy HtoD (Host -> Device)", 10, 20, 1, "gpu_memcpy", kind="HtoD")
    found = _copies(sim)
    assert (found.kinds[0].memory, found.kinds[0].n_bytes) == ("not recorded", None)
    assert found.kinds[0].rate_gb_per_s is None
    assert any("bytes" in w for w in found.warnings)
    sim.device("Memcpy DtoH (Device -> Pinned)", 40, 10, 2, "gpu_memcpy", bytes=8)
    assert any("how many bytes some kinds" in w for w in _copies(sim).warnings)


def test_without_a_device_there_is_no_answer() -> None:
    found = _copies(cpu_training(2))
    assert (found.kinds, found.warnings) == ((), ("no copy was recorded",))
    assert "not recorded" in str(found)
