"""The host's clock, and the CUDA one against a fake of torch.cuda that counts what is asked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from perfkit.base.errors import MissingError
from perfkit.measure.clock import CudaClock, HostClock, clock_in_use


def test_host_clock_shows_its_resolution_and_marks() -> None:
    clock = HostClock()
    assert clock.resolution_ns >= 1
    assert clock.now() <= clock.now()
    assert clock.elapsed_ms([1_000_000, 3_500_000, 4_000_000]) == [2.5, 0.5]
    assert clock.elapsed_ms([5_000_000, 3_000_000]) == [0.0]  # backwards is never negative
    assert clock.elapsed_ms([clock.mark()]) == []


@dataclass
class FakeCuda:
    """torch.cuda as far as a clock uses it; `device_ms` is the device's time."""

    device_ms: float = 0.0
    synchronised: list[int] = field(default_factory=list)
    waited_for: list[float] = field(default_factory=list)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def device_count(self) -> int:
        return 4

    def current_stream(self, index: int) -> str:
        return f"stream of {index}"

    def synchronize(self, index: int) -> None:
        self.synchronised.append(index)

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802 - torch's name
        assert enable_timing
        return FakeEvent(self)


@dataclass
class FakeEvent:
    cuda: FakeCuda
    at_ms: float = -1.0

    def record(self, stream: str) -> None:
        assert stream == "stream of 1"
        self.at_ms = self.cuda.device_ms

    def synchronize(self) -> None:
        self.cuda.waited_for.append(self.at_ms)

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    # the process uses the devices 1 and 3 of four
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda i: i in (1, 3), raising=False)
    return fake


def test_cuda_marks_wait_for_the_last_first(cuda: FakeCuda) -> None:
    clock = clock_in_use()
    assert clock.device == "cuda:1"
    marks = []
    for at_ms in (0.0, 2.0, 7.0):
        cuda.device_ms = at_ms
        marks.append(clock.mark())
    assert (cuda.synchronised, cuda.waited_for) == ([], [])  # recording waits for nothing
    assert clock.elapsed_ms(marks) == [2.0, 5.0]
    # the last first: on one stream the others are over then; they may stand on another stream
    assert cuda.waited_for == [7.0, 2.0, 0.0]
    assert clock.elapsed_ms(marks[:1]) == []


def test_cuda_clock_waits_for_every_device_that_the_process_uses(cuda: FakeCuda) -> None:
    CudaClock().settle()
    assert cuda.synchronised == [1, 3]


def test_cuda_clock_of_one_device_waits_for_that_one(cuda: FakeCuda) -> None:
    CudaClock(1).settle()
    assert cuda.synchronised == [1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_the_host_clock_serves_and_cuda_says_why_not() -> None:
    assert isinstance(clock_in_use(), HostClock)
    with pytest.raises(MissingError, match="CUDA device"):
        CudaClock()


def test_choosing_a_clock_imports_no_torch() -> None:
    code = (
        "import sys; from perfkit.measure.clock import clock_in_use; clock_in_use(); "
        "from perfkit.measure.footprint import footprint; assert footprint().kind == 'resident'; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
