"""Energy by NVML's counter, through the real pynvml on the played device."""

from __future__ import annotations

import ctypes

import pytest
import torch

import perfkit
from perfkit.base.machine.energy import joules_between, read_energy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]


def test_the_counter_grows_with_device_work() -> None:
    """100 W of time, and 300 W more of the time in which the device works."""
    weight = torch.rand(256, 256, device="cuda")
    torch.cuda.synchronize()
    before = read_energy()
    for _ in range(200):
        weight @ weight
    torch.cuda.synchronize()
    found = joules_between(before, read_energy())
    assert set(found) >= {"GPU 0"}
    assert found["GPU 0"] > 0


def test_energy_of_a_step_counts_the_device() -> None:
    weight = torch.rand(256, 256, device="cuda")
    found = perfkit.energy(lambda: weight @ weight, samples_per_step=4, budget_s=3)
    (gpu,) = (c for c in found.counters if c.what == "GPU 0")
    assert gpu.resting_watts == pytest.approx(100, rel=0.1)
    assert 100 < gpu.watts <= 410
    assert 0 < gpu.low <= gpu.joules_per_step <= gpu.high
    assert found.joules_per_sample == pytest.approx(found.joules_per_step / 4)
    assert found.provenance.kind == "played"
    assert "GPU 0" in str(found)
