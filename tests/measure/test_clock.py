"""The host's clock, and the CUDA one against a fake of torch.cuda that counts its waits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

from perfkit.base.device import of
from perfkit.measure.clock import Clock, clock_in_use


@dataclass
class FakeCuda:
    """torch.cuda as far as a clock uses it."""

    synchronised: list[int] = field(default_factory=list)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def device_count(self) -> int:
        return 4

    def synchronize(self, index: int) -> None:
        self.synchronised.append(index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    # the process uses the devices 1 and 3 of four
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda i: i in (1, 3), raising=False)
    return fake


def test_the_clock_in_use_is_that_of_the_current_device(cuda: FakeCuda) -> None:
    clock = clock_in_use()
    assert clock.device == "cuda:1"
    assert cuda.synchronised == []  # making it waits for nothing


def test_cuda_clock_waits_for_every_device_that_the_process_uses(cuda: FakeCuda) -> None:
    Clock(of("cuda")).settle()
    assert cuda.synchronised == [1, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_the_host_clock_serves() -> None:
    assert clock_in_use().device == "cpu"


def test_choosing_a_clock_imports_no_torch() -> None:
    code = (
        "import sys; from perfkit.measure.clock import clock_in_use; clock_in_use(); "
        "from perfkit.measure.memory_looks import footprint; "
        "assert footprint().kind == 'resident' and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
