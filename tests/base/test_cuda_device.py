"""CUDA's answers to the device protocol, beside torch's own."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from perfkit.base.device import here, in_use, of
from perfkit.measure.clock import clock_in_use
from perfkit.memory.allocator import AllocatorMeter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = of("cuda")
SIZE = 8 << 20


def test_asking_for_it_makes_no_context() -> None:
    code = (
        "import torch; from perfkit.base.device import here, in_use\n"
        "assert here().type == 'cuda' and in_use().is_cpu and here().count() >= 1\n"
        "assert not here().is_capturing() and list(here().devices()) == []\n"
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_found_and_named() -> None:
    x = torch.ones(1, device="cuda")
    assert here() is in_use() is CUDA
    assert CUDA.count() == torch.cuda.device_count()
    assert CUDA.current() == torch.cuda.current_device()
    assert CUDA.current() in CUDA.devices()
    assert CUDA.name(0) == torch.cuda.get_device_name(0)
    assert CUDA.name(10_000) == "cuda:10000"
    assert CUDA.holds(x)
    assert not CUDA.holds(x.cpu())
    assert CUDA.total_bytes(0) == torch.cuda.get_device_properties(0).total_memory


def test_what_is_allocated_is_counted() -> None:
    torch.ones(1, device="cuda")
    gc.collect()
    CUDA.synchronize(0)
    CUDA.reset_peaks(0)
    before = CUDA.allocated(0)
    meter = AllocatorMeter()
    meter.start()
    kept = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    del kept
    assert CUDA.allocated(0) == before
    assert CUDA.peak_allocated(0) == before + SIZE
    stats = CUDA.stats(0)
    assert stats["allocated_bytes.all.peak"] == before + SIZE
    (use,) = meter.stop()
    assert use.peak_allocated_bytes == before + SIZE


def test_what_cannot_be_known_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(index: int) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "memory_stats", refuses)
    monkeypatch.setattr(torch.cuda, "utilization", refuses)
    assert CUDA.stats(0) == {}
    assert CUDA.utilisation(0) is None


def test_utilisation_is_a_share_or_unknown() -> None:
    share = CUDA.utilisation(0)
    assert share is None or 0 <= share <= 100


def test_events_order_the_device_s_work() -> None:
    first, second = CUDA.event(), CUDA.event()
    stream = CUDA.stream(0)
    first.record(stream)
    torch.ones(100, device="cuda").sum()
    second.record(stream)
    second.synchronize()
    assert first.elapsed_time(second) >= 0
    assert isinstance(first, CUDA.waitable_types())
    assert isinstance(stream, CUDA.waitable_types())
    module, names = CUDA.waiting_functions() or (None, ())
    assert all(callable(getattr(module, name)) for name in names)


def test_a_step_is_captured_and_replayed() -> None:
    x = torch.zeros(3, device="cuda")
    seen: list[bool] = []

    def step() -> torch.Tensor:
        seen.append(CUDA.is_capturing())
        return x * 2 + 1

    graphed = CUDA.graphed_step()
    assert graphed.warm_up(step).tolist() == [1.0] * 3
    out = graphed.capture(step)
    assert seen == [False, True]
    x.fill_(5)
    graphed.replay()
    assert out.tolist() == [11.0] * 3


def test_tf32_is_as_torch_says() -> None:
    matmul, cudnn = CUDA.tf32_allowed()
    assert matmul == torch.backends.cuda.matmul.allow_tf32
    assert cudnn == torch.backends.cudnn.allow_tf32


def test_its_clock_waits_for_the_work() -> None:
    clock = clock_in_use()
    assert clock.device == f"cuda:{torch.cuda.current_device()}"
    x = torch.randn(256, 256, device="cuda")
    for _ in range(20):
        x = x @ x
    clock.settle()
    assert torch.cuda.current_stream().query()
