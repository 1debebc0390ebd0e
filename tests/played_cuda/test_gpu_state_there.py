"""What NVML tells of a GPU's state, through the real pynvml on the played device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch  # noqa: F401 - with it comes the played device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(None), "played_launch"), reason="runs on the played GPU only"
    ),
]

SEEN = """
import time, torch
from perfkit.base.machine.cpu_contention import ContentionMark
torch.zeros(1, device="cuda")
mark = ContentionMark()
time.sleep(0.4)
busy = mark.until_now()
(gpu,) = busy.gpus
print(gpu.at_end.clock_mhz, gpu.at_end.max_clock_mhz, gpu.at_end.limit_watts, gpu.at_end.state)
print(*gpu.at_end.link, *gpu.at_end.max_link, sorted(gpu.held))
print(*gpu.sentences(copies=0.3), sep="\\n")
"""


def _seen(**environment: str) -> list[str]:
    said = subprocess.run(
        [sys.executable, "-c", SEEN], env=os.environ | environment, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


def test_a_gpu_at_its_clocks_says_nothing() -> None:
    figures, link, *sentences = _seen()
    assert figures == "1410 1410 400.0 0"
    assert link == "4 16 4 16 ['board', 'heat', 'power', 'reliability']"
    assert sentences == [""]


def test_a_power_limit_and_a_narrow_link_are_said() -> None:
    _, _, power, link = _seen(PLAYED_CUDA_POWER_CAPPED="1", PLAYED_CUDA_PCIE_WIDTH="4")
    assert power.startswith("GPU 0 was held back by its power limit for ")
    assert "PCIe 4.0 ×4 instead of 4.0 ×16" in link
    assert "get 25 % of the bandwidth" in link
