"""What held a GPU back, from a made NVML."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.base.device import of
from perfkit.base.machine import gpu_state
from perfkit.base.machine.cpu_contention import ContentionMark, CpuContention
from perfkit.base.machine.gpu_state import GpuReading, GpuThrottling, read_gpus

END = GpuReading(
    index=0,
    name="H",
    held_s={"power": 0.0, "heat": 0.0, "board": 0.0, "reliability": 0.0},
    reasons=0,
    clock_mhz=1900,
    max_clock_mhz=1980,
    watts=500.0,
    limit_watts=700.0,
    celsius=60,
    state=0,
    link=(5, 16),
    max_link=(5, 16),
)


def seen(held: dict[str, float] | None = None, **end: Any) -> GpuThrottling:
    return GpuThrottling(held or {}, replace(END, **end))


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (
            seen({"power": 0.62}, clock_mhz=1230, watts=702.4),
            "GPU 0 was held back by its power limit for 62 % of the time (its clock was 1230 of "
            "1980 MHz at the end, power 702 of 700 W): that is the GPU at its limit",
        ),
        (
            seen({"heat": 0.2, "power": 0.9}, celsius=91),
            "held back for heat for 20 % of the time (its clock was 1900 of 1980 MHz at the end, "
            "temperature 91 °C): it needs better cooling.",
        ),
        (seen({"board": 0.3, "power": 0.2}), "by a limit of its board for 30 % of the time"),
        # drivers that count nothing: what holds now
        (seen(clock_mhz=900, reasons=0x4), "held back by its power limit when this ended"),
        (seen(clock_mhz=900, reasons=0x80 | 0x4), "by the power brake of the server when this"),
        (seen(clock_mhz=900, reasons=0x2), "`nvidia-smi -rac` resets them"),
    ],
)
def test_what_explains_lost_time_is_said(gpu: GpuThrottling, said: str):
    assert len(gpu.sentences()) == 1
    assert said in gpu.sentences()[0]


@pytest.mark.parametrize(
    "gpu",
    [
        seen(),
        seen({"power": 0.05, "heat": 0.01}),
        seen(clock_mhz=1850, reasons=0x4),  # within a tenth of the highest clock
        seen(clock_mhz=300, state=8, reasons=0x1),  # idle by now
        seen(clock_mhz=300, state=8, reasons=0x4),
        seen(clock_mhz=900, reasons=0x1),
        seen({"power": 0.0}, clock_mhz=900, reasons=0x4),  # counted, and it was not that
        seen(clock_mhz=None, reasons=None, state=None, link=None),  # a MIG instance
    ],
)
def test_what_explains_nothing_is_not_said(gpu: GpuThrottling):
    assert gpu.sentences(copies=0.5) == ()


def test_what_a_gpu_does_not_report_is_left_out():
    for limit in ("power", "heat"):
        for unknown in ("clock_mhz", "max_clock_mhz", "watts", "limit_watts", "celsius"):
            (said,) = seen({limit: 0.9}, **{unknown: None}).sentences()
            assert "None" not in said
            assert ("MHz" in said) is ("clock" not in unknown)
    for unknown in ("clock_mhz", "max_clock_mhz", "reasons"):
        now = {"clock_mhz": 900, "reasons": 0x4} | {unknown: None}
        assert seen(**now).sentences() == ()
    for unknown in ("link", "max_link"):
        assert seen(**({"link": (3, 8)} | {unknown: None})).sentences(copies=0.5) == ()


@pytest.mark.parametrize(
    ("little", "much"),
    [
        (seen({"power": 0.09}), seen({"power": 0.11})),
        (seen({"heat": 0.019}), seen({"heat": 0.021})),
        # without counters: below nine tenths of the highest clock, while it works
        (seen(clock_mhz=1790, reasons=0x4), seen(clock_mhz=1770, reasons=0x4)),
        (seen(clock_mhz=900, reasons=0x4, state=3), seen(clock_mhz=900, reasons=0x4, state=2)),
    ],
)
def test_what_costs_too_little_is_not_said(little: GpuThrottling, much: GpuThrottling):
    assert little.sentences() == ()
    assert len(much.sentences()) == 1


def test_from_a_tenth_of_the_step_on_a_slow_link_and_other_processes_matter():
    for share, said in ((0.09, 0), (0.11, 1)):
        assert len(seen(link=(3, 8)).sentences(copies=share)) == said
        assert len(seen(n_processes=2).sentences(queued=share)) == said


def test_a_step_that_computes_half_of_its_time_may_be_what_needs_the_power():
    for share, others in ((0.49, True), (0.51, False)):
        assert ("what else runs" in seen({"power": 0.9}).sentences(computing=share)[0]) is others


def test_a_narrow_link_is_said_only_where_copies_matter():
    gpu = seen(link=(3, 8))
    assert gpu.sentences() == ()
    assert gpu.sentences(copies=0.05) == ()
    (said,) = gpu.sentences(copies=0.3)
    # two generations and half of the lanes
    assert "PCIe 3.0 ×8 instead of 5.0 ×16" in said
    assert "30 % of the step, get 12 % of the bandwidth" in said
    assert seen(link=(3, 8), state=8).sentences(copies=0.3) == ()  # asleep: the link is slow too
    assert seen(link=(5, 8), max_link=(4, 16)).sentences(copies=0.3) == ()  # as fast


def test_other_processes_are_said_only_where_work_waits_in_the_queue():
    gpu = seen(n_processes=5)
    assert gpu.sentences() == ()
    assert gpu.sentences(queued=0.05) == ()
    (said,) = gpu.sentences(queued=0.6)
    assert said.startswith("4 other processes had a context on GPU 0 when this ended. ")
    assert seen(n_processes=2).sentences(queued=0.6)[0].startswith("1 other process had")
    assert seen(n_processes=1).sentences(queued=0.6) == ()
    assert seen(n_processes=None).sentences(queued=0.6) == ()


def test_a_step_that_hardly_computes_does_not_bring_the_gpu_to_its_limit():
    gpu = seen({"power": 0.87})
    (said,) = gpu.sentences(computing=0.045)
    assert "it computes for your steps for 4.5 % of their time, so what else runs" in said
    assert "full load" not in said
    assert "full load are normal" in gpu.sentences(computing=0.9)[0]
    assert "needs better cooling" in seen({"heat": 0.2}).sentences(computing=0.045)[0]


def test_the_share_is_of_the_time_between_two_readings():
    now = replace(END, held_s={"power": 9.0, "heat": 4.0})
    before = replace(END, held_s={"power": 4.0, "heat": 4.0})
    assert GpuThrottling.between(before, now, 10.0).held == {"power": 0.5, "heat": 0.0}
    # CUDA began in between: what the driver counted before is not this run's
    assert GpuThrottling.between(None, now, 10.0).held == {}


class Nvml:
    """As much of pynvml as is asked for; what it lacks raises, as pynvml does."""

    def __init__(self, held_ns: int = 0) -> None:
        self.held_ns = held_ns
        self.n_processes = 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802
        if uuid != b"GPU-one":
            raise RuntimeError("Not Found")
        return "handle"

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> SimpleNamespace:  # noqa: N802
        if policy != 0:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(violationTime=self.held_ns)

    def nvmlDeviceGetName(self, handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:  # noqa: N802
        return [SimpleNamespace(pid=7)] * self.n_processes

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 612_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return (210, 1230, 2619)[kind]  # graphics, multiprocessors, memory

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return (2100, 1980, 2700)[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return (61,)[sensor]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: str) -> int:  # noqa: N802
        return 16

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:  # noqa: N802
        return 16


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    nvml = Nvml()
    monkeypatch.setattr(of("cuda"), "is_initialised", lambda: True)
    monkeypatch.setattr(of("cuda"), "devices", lambda: [0, 1])
    monkeypatch.setattr(of("cuda"), "uuid", lambda index: ["GPU-one", "GPU-gone"][index])
    monkeypatch.setattr(gpu_state, "_nvml", lambda: nvml)
    return nvml


def test_it_reads_what_nvml_knows(one_gpu: Nvml):
    pytest.importorskip("torch")
    one_gpu.held_ns = 2_500_000_000
    assert read_gpus() == (
        GpuReading(
            index=0,
            name="NVIDIA H100",
            held_s={"power": 2.5},
            clock_mhz=1230,
            max_clock_mhz=1980,
            watts=612.0,
            limit_watts=700.0,
            celsius=61,
        ),
    )
    one_gpu.n_processes = 3
    assert read_gpus()[0].n_processes == 3


def test_a_mark_has_the_gpus_too(one_gpu: Nvml):
    pytest.importorskip("torch")
    mark = ContentionMark()
    one_gpu.held_ns = 10**12  # far more than this test takes: all of the time
    busy = mark.until_now()
    assert [gpu.held for gpu in busy.gpus] == [{"power": 1.0}]
    longer = replace(busy, wall_s=2.0, host=None)
    assert "held back by its power limit for 100 % of the time" in longer.held_back_by()[0]
    assert longer.to_dict()["gpus"][0]["held"] == {"power": 1.0}


def test_a_driver_that_fails_is_no_failure_of_the_run(
    one_gpu: Nvml, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torch")

    def fails() -> None:
        raise RuntimeError("Driver/library version mismatch")

    monkeypatch.setattr(gpu_state, "_nvml", fails)
    assert read_gpus() == ()


def test_without_cuda_nothing_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(of("cuda"), "is_initialised", lambda: False)
    monkeypatch.setattr(gpu_state, "_nvml", lambda: pytest.fail("NVML was asked"))
    assert read_gpus() == ()
    assert CpuContention(1.0, 1, 1.0).held_back_by() == ()
