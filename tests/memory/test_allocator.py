"""CUDA's counters through a fake allocator: what is read, reset, kept, and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
import torch

from perfkit.base.device import of
from perfkit.base.device.cuda import Cuda
from perfkit.memory import allocator as allocator_module
from perfkit.memory.account import Accountant, MemoryAccount
from perfkit.memory.allocator import AllocatorMeter, AllocatorUse, allocator_states

GIB = 2**30


class FakeCuda(Cuda):
    """One device with an allocator that counts as torch's does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.n_retries = self.n_mallocs = 0
        self.is_used = True
        self.fails = False

    def allocate(self, nbytes: int) -> None:
        self.allocated += nbytes
        if self.allocated > self.reserved:
            self.reserved = self.allocated
            self.n_mallocs += 1
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def devices(self) -> Sequence[int]:
        return (0,) if self.is_used else ()

    def name(self, device: int) -> str:
        return "NVIDIA Test <7>"

    def synchronize(self, device: int) -> None:
        self.log.append("synchronize")
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered\nmore words")

    def stats(self, device: int) -> Mapping[str, int]:
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak_allocated,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.peak_reserved,
            "num_alloc_retries": self.n_retries,
            "num_ooms": 0,
            "num_device_alloc": self.n_mallocs,
            "num_device_free": 0,
        }

    def reset_peaks(self, device: int) -> None:
        self.log.append("reset")
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved


@pytest.fixture(autouse=True)
def fresh_process_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_module, "_process_peaks", allocator_module._Peaks())


def _account(fake: FakeCuda) -> MemoryAccount:
    with Accountant(device=fake) as accountant:
        fake.allocate(3 * GIB)
        fake.allocate(-2 * GIB)
        fake.n_retries += 1
        torch.zeros(256)
    return accountant.result


def test_peak_reserved_and_left_behind_are_the_allocators() -> None:
    fake = FakeCuda()
    fake.allocate(9 * GIB)
    fake.allocate(-8 * GIB)
    result = _account(fake)
    assert result.device == "cuda:0"
    assert result.start_bytes == GIB
    assert result.peak_bytes == 4 * GIB
    assert result.end_bytes == 2 * GIB
    assert result.left_behind_bytes == GIB
    assert result.reserved_bytes == result.peak_reserved_bytes == 9 * GIB
    use = result.devices[0].allocator
    assert use is not None
    assert (use.n_retries, use.n_device_allocs) == (1, 0)
    assert result.provenance.device == "NVIDIA Test <7>"
    # no operator made a CUDA tensor: all of it is other, and it adds up
    assert result.at_peak_bytes["other"] == 4 * GIB
    assert sum(result.at_end_bytes.values()) == result.end_bytes
    assert [d.device for d in result.devices] == ["cuda:0", "cpu"]


def test_a_gpu_that_the_region_left_alone_does_not_stand_first() -> None:
    """CUDA was used before, and holds something or only its cache; this model is on the CPU."""
    for held in (0, GIB):
        fake = FakeCuda()
        fake.allocate(2 * GIB)
        fake.allocate(held - 2 * GIB)
        with Accountant(device=fake) as accountant:
            torch.zeros(4096)
        result = accountant.result
        assert result.device == "cpu"
        assert result.to_text().startswith("Peak ")
        assert not result.to_text().startswith("Peak 0 B")
        assert [(d.device, d.peak_bytes) for d in result.devices[1:]] == (
            [("cuda:0", held)] if held else []
        )


def test_it_synchronises_at_the_ends_only() -> None:
    fake = FakeCuda()
    _account(fake)
    assert fake.log == ["synchronize", "reset", "synchronize"]


def test_the_peak_of_the_process_outlives_the_reset() -> None:
    fake = FakeCuda()
    fake.allocate(9 * GIB)
    fake.allocate(-9 * GIB)
    _account(fake)
    assert fake.peak_allocated == 3 * GIB
    (state,) = allocator_states(fake)
    assert (state.peak_allocated_bytes, state.peak_reserved_bytes) == (9 * GIB, 9 * GIB)
    assert (state.allocated_bytes, state.reserved_bytes) == (GIB, 9 * GIB)


def test_a_nested_region_does_not_take_the_peak_of_the_outer() -> None:
    fake = FakeCuda()
    outer, inner = AllocatorMeter(fake), AllocatorMeter(fake)
    outer.start()
    fake.allocate(5 * GIB)
    fake.allocate(-4 * GIB)
    inner.start()
    fake.allocate(GIB)
    assert inner.stop()[0].peak_allocated_bytes == 2 * GIB
    assert outer.stop()[0].peak_allocated_bytes == 5 * GIB


def test_a_device_first_used_in_the_region_counts_from_nothing() -> None:
    fake = FakeCuda()
    fake.is_used = False
    meter = AllocatorMeter(fake)
    meter.start()
    fake.is_used = True
    fake.allocate(GIB)
    (use,) = meter.stop()
    assert (use.allocated_before_bytes, use.left_behind_bytes) == (0, GIB)


@pytest.mark.parametrize("keeps_peaks", [True, False])
def test_an_allocator_without_peaks_is_listed_and_says_so(
    keeps_peaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCuda()
    if not keeps_peaks:
        stats = {key: n for key, n in fake.stats(0).items() if not key.endswith("peak")}
        monkeypatch.setattr(
            fake, "stats", lambda _: {**stats, "reserved_bytes.all.current": fake.reserved}
        )
    meter = AllocatorMeter(fake)
    meter.start()
    fake.allocate(GIB)
    (use,) = meter.stop()
    (state,) = allocator_states(fake)
    assert use.peak_reserved_bytes == state.peak_reserved_bytes == GIB * keeps_peaks
    assert use.reserved_after_bytes == state.reserved_bytes == GIB
    assert list(use.warnings) == ["the allocator of cuda:0 keeps no peaks; they read as 0"] * (
        not keeps_peaks
    )


@pytest.mark.parametrize(
    ("settings", "can_grow"),
    [
        ("", False),
        ("max_split_size_mb:64", False),
        ("expandable_segments:False", False),
        ("max_split_size_mb:64, expandable_segments : True", True),
    ],
)
@pytest.mark.parametrize("told_by", ["torch", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_whether_segments_can_grow_is_known(
    told_by: str, settings: str, can_grow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "_accelerator_getAllocatorSettings"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    if told_by == "torch":
        monkeypatch.setattr(torch._C, name, lambda: settings, raising=False)
    else:
        monkeypatch.delattr(torch._C, name, raising=False)
        monkeypatch.setenv(told_by, settings)
    fake = FakeCuda()
    meter = AllocatorMeter(fake)
    meter.start()
    fake.allocate(GIB)
    (use,), (state,) = meter.stop(), allocator_states(fake)
    assert use.expandable_segments == state.expandable_segments == can_grow


@pytest.mark.parametrize("counter", ["n_ooms", "n_device_allocs", "n_device_frees"])
def test_each_call_to_the_device_counts_as_a_part_in_the_region(counter: str) -> None:
    quiet = AllocatorUse(0, "simulated", *(0,) * 10)
    assert not quiet.was_asked
    assert dataclasses.replace(quiet, **{counter: 1}).was_asked


def test_a_device_left_unused_is_left_out() -> None:
    assert [d.device for d in _unused().devices] == ["cpu"]


def _unused() -> MemoryAccount:
    with Accountant(device=FakeCuda()) as accountant:
        torch.zeros(3)
    return accountant.result


def test_a_failed_device_does_not_hide_the_users_error() -> None:
    fake = FakeCuda()
    fake.allocate(GIB)
    accountant = Accountant(device=fake)

    def work() -> None:
        fake.fails = True
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), accountant:
        work()
    assert any("device-side assert" in warning for warning in accountant.result.warnings)


def test_tensors_of_another_allocator_are_not_a_negative_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from perfkit.memory.categories import ACTIVATIONS
    from perfkit.memory.ledger import Ledger, Totals

    fake = FakeCuda()
    book = Ledger()
    monkeypatch.setattr(
        book,
        "totals",
        lambda: Totals(0, 5 * GIB, 0, {}, {ACTIVATIONS: 5 * GIB}, {}),
    )
    with Accountant(device=fake) as accountant:
        fake.allocate(GIB)
        assert accountant._tracker is not None
        accountant._tracker.ledgers[torch.device("cuda:0")] = book
    result = accountant.result
    assert result.peak_bytes == 5 * GIB
    assert min(result.at_peak_bytes.values()) == 0
    assert any("another" in warning for warning in result.warnings)


def test_the_report_names_the_device_and_says_that_peaks_were_reset() -> None:
    fake = FakeCuda()
    fake.allocate(GIB)
    result = _account(fake)
    words = " ".join(result.to_text().split())
    assert "Peak 4.00 GiB allocated on NVIDIA Test <7> (4.00 GiB reserved)" in words
    assert "1.00 GiB stayed behind" in words
    assert "peaks were reset" in words
    page = result._repr_html_()
    assert "NVIDIA Test &lt;7&gt;" in page
    assert "<7>" not in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA is meant")
def test_without_cuda_there_is_no_device_and_no_context() -> None:
    assert list(of("cuda").devices()) == []
    assert allocator_states() == ()
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


class _PlayedCuda:
    """torch.cuda with four devices, of which this process uses two; notes what is waited for."""

    CUDAGraph = torch.cuda.CUDAGraph

    def __init__(self) -> None:
        self.waited_for: list[int] = []

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 4

    def synchronize(self, device: int) -> None:
        self.waited_for.append(device)

    def memory_stats(self, device: int) -> dict[str, int]:
        # torch gives zeros, not nothing, for a device on which no tensor was made
        held = 100 if device == 3 else 0
        names = ("allocated_bytes", "reserved_bytes")
        return {f"{name}.all.{when}": held for name in names for when in ("current", "peak")}

    def reset_peak_memory_stats(self, device: int) -> None:
        pass

    def current_device(self) -> int:
        return 3

    def get_device_name(self, device: int) -> str:
        return "played"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> _PlayedCuda:
    fake = _PlayedCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda i: i in (1, 3), raising=False)
    return fake


def test_no_context_is_made_on_a_device_that_the_process_does_not_use(played: _PlayedCuda) -> None:
    meter = AllocatorMeter()
    meter.start()
    (use,) = meter.stop()
    assert use.device == 3
    assert set(played.waited_for) == {1, 3}  # to wait for another device makes a context there


def test_a_device_without_tensors_is_not_listed(played: _PlayedCuda) -> None:
    assert [state.device for state in allocator_states()] == [3]


def test_an_allocator_that_counts_nothing_is_no_crash(
    played: _PlayedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(device: int) -> dict[str, int]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(played, "memory_stats", refuses)
    meter = AllocatorMeter()
    meter.start()
    assert meter.stop() == ()
    assert allocator_states() == ()


def test_a_device_that_answers_nothing_any_more_does_not_hide_the_users_error(
    played: _PlayedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: int) -> str:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore words")

    accountant = Accountant()

    def work() -> None:
        monkeypatch.setattr(played, "synchronize", fails)
        monkeypatch.setattr(played, "get_device_name", fails)
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", fails)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), accountant:
        work()
    (device,) = (d for d in accountant.result.devices if d.allocator is not None)
    assert device.allocator is not None
    assert device.allocator.name == device.device == "cuda:3"
    assert any("illegal memory access" in warning for warning in accountant.result.warnings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device_categories_are_exact() -> None:
    kept = []

    def work() -> None:
        model = torch.nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        kept.append((model, optimizer))

    torch.zeros(1, device="cuda")
    with Accountant() as accountant:
        work()
    result = accountant.result
    assert result.device == "cuda:0"
    assert result.at_end_bytes["gradients"] - result.at_start_bytes["gradients"] == 257 * 256 * 4
    assert result.at_end_bytes["parameters"] - result.at_start_bytes["parameters"] == 257 * 256 * 4
    assert sum(result.at_peak_bytes.values()) == result.peak_bytes
