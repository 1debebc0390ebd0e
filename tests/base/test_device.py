"""The device protocol: what perfkit knows, a device that one call adds, and what asks it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from perfkit.base import device as devices
from perfkit.base.device import Device, ProfilerNames
from perfkit.base.machine import stamp
from perfkit.experiment.settings import Settings
from perfkit.measure.clock import clock_in_use
from perfkit.measure.memory_looks import footprint
from perfkit.memory.allocator import AllocatorMeter, allocator_states
from perfkit.trace.ask.memory_curve import memory_curve
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import runtime_calls
from perfkit.trace.read.load import load
from perfkit.trace.read.steps import find_steps

MIB = 2**20


class Toy(Device):
    """Two devices; the process uses the second."""

    type = "toy"
    label = "Toy"
    profiler = ProfilerNames(
        activity="PrivateUse1",
        type_numbers=(99,),
        runtime_categories=("toy_runtime",),
        waits=r"^toyWait",
        copies=r"^toyCopy",
        blocking_copies=r"^toyCopyNow$",
        allocations=("toyMalloc",),
    )
    alloc_call = "toyMalloc"
    free_call = "toyFree"

    def __init__(self) -> None:
        self.waited_for: list[int] = []
        self.used = True

    def is_available(self) -> bool:
        return True

    def is_initialised(self) -> bool:
        return self.used

    def devices(self) -> Sequence[int]:
        return (1,)

    def count(self) -> int:
        return 2

    def current(self) -> int:
        return 1

    def name(self, index: int) -> str:
        return f"Toy model {index}"

    def synchronize(self, index: int) -> None:
        self.waited_for.append(index)

    def allocated(self, index: int) -> int:
        return 3 * MIB

    def stats(self, index: int) -> Mapping[str, int]:
        return {
            "allocated_bytes.all.current": 3 * MIB,
            "allocated_bytes.all.peak": 5 * MIB,
            "reserved_bytes.all.current": 8 * MIB,
            "reserved_bytes.all.peak": 8 * MIB,
        }


@pytest.fixture
def toy() -> Iterator[Toy]:
    device = Toy()
    undo = devices.register(device)
    yield device
    undo()


def test_the_built_in_kinds_are_found_and_the_cpu_is_last() -> None:
    """A new one is a new file: none of these lines changes."""
    kinds = [device.type for device in devices.known()]
    assert {"cuda", "mps", "xpu"} < set(kinds)
    assert kinds[-1] == "cpu"
    assert [device.type for device in devices.accelerators()] == kinds[:-1]
    assert devices.of("cuda:3") is devices.of("cuda")
    assert [d.place(1) for d in devices.known()] == [*(f"{k}:1" for k in kinds[:-1]), "cpu"]


def test_a_type_that_nobody_knows_has_its_own_name_and_nothing_else() -> None:
    assert [devices.place_of(n, 1) for n in (0, 1, 99)] == ["cpu", "cuda:1", "device99:1"]
    device = devices.of("hpu:2")
    assert (device.type, device.label, device.place(2)) == ("hpu", "HPU", "hpu:2")
    assert not device.is_cpu
    assert device.profiler is None


def test_registering_puts_it_first_and_undoing_takes_it_away(toy: Toy) -> None:
    assert devices.known()[0] is toy
    assert devices.here() is devices.in_use() is devices.of("toy:1") is toy
    another = Toy()
    undo = devices.register(another)
    assert devices.of("toy") is another
    undo()
    assert devices.of("toy") is toy


def test_the_clock_waits_for_the_device_that_is_registered(toy: Toy) -> None:
    clock = clock_in_use()
    assert clock.device == "toy:1"
    clock.settle()
    assert toy.waited_for == [1]


def test_a_device_that_is_there_but_unused_is_not_waited_for(toy: Toy) -> None:
    toy.used = False
    assert clock_in_use().device == ("cuda:0" if torch.cuda.is_initialized() else "cpu")


def test_its_memory_is_read_and_its_name_is_in_the_provenance(toy: Toy) -> None:
    assert (footprint().n_bytes, footprint().kind) == (3 * MIB, "allocated")
    assert stamp().device == "Toy model 1"


def test_the_profilers_names_of_a_new_device_count_at_once(toy: Toy) -> None:
    waits = devices.pattern("waits")
    assert all(
        waits.search(name)
        for name in ("toyWaitForAll", "cudaStreamSynchronize", "hipEventSynchronize")
    )
    assert not waits.search("toyLaunch")
    assert devices.pattern("allocations").search("toyMalloc")


def _trace(tmp_path: Path) -> Trace:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 50},
        {"ph": "X", "cat": "toy_runtime", "name": "toyWaitForAll", "pid": 1, "tid": 1,
         "ts": 10, "dur": 30},
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
         "ts": 5, "args": {"Bytes": 64, "Device Type": 99, "Device Id": 1}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return load(path)


def test_a_trace_of_a_new_device_is_read_with_its_names(toy: Toy, tmp_path: Path) -> None:
    trace = _trace(tmp_path)
    assert trace.is_a(Category.RUNTIME).sum() == 1
    calls = runtime_calls(trace, find_steps(trace))
    assert [trace.names[trace.name_id[row]] for row in calls.rows] == ["toyWaitForAll"]
    assert calls.is_sync.all()
    assert [d.device for d in memory_curve(trace).devices] == ["toy:1"]


def test_without_it_its_calls_are_others_and_its_memory_has_its_number(tmp_path: Path) -> None:
    trace = _trace(tmp_path)
    assert trace.is_a(Category.RUNTIME).sum() == 0
    assert [d.device for d in memory_curve(trace).devices] == ["device99:1"]


def test_the_allocators_counters_of_a_new_device_make_an_account(toy: Toy) -> None:
    meter = AllocatorMeter()
    meter.start()
    (use,) = meter.stop()
    assert (use.place, use.name) == ("toy:1", "Toy model 1")
    assert (use.allocated_after_bytes, use.peak_reserved_bytes) == (3 * MIB, 8 * MIB)
    (state,) = allocator_states()
    assert (state.place, state.type, state.reserved_bytes) == ("toy:1", "toy", 8 * MIB)


def test_a_new_device_is_where_a_workload_runs(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "type", "meta")  # a type that torch itself knows
    assert Settings().device == torch.device("meta")


def test_without_the_toy_its_names_mean_nothing() -> None:
    assert not devices.pattern("waits").search("toyWaitForAll")
    assert devices.pattern("waits").search("zeEventHostSynchronize")


def test_the_null_device_answers_everything() -> None:
    cpu = devices.of("cpu")
    assert cpu.is_cpu
    assert cpu.is_available()
    assert list(cpu.devices()) == []
    cpu.synchronize(0)
    assert (cpu.allocated(0), cpu.stats(0), cpu.total_bytes(0), cpu.utilisation(0)) == (
        0, {}, None, None,
    )  # fmt: skip
    assert (cpu.compute_capability(0), cpu.uuid(0)) == (None, None)
    assert not cpu.holds(torch.zeros(1))
    assert not cpu.is_capturing()


def test_a_capture_is_known_without_a_device_in_use(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not devices.is_capturing()
    monkeypatch.setattr(Toy, "has_graphs", True)
    monkeypatch.setattr(Toy, "is_capturing", lambda self: True)
    assert devices.is_capturing()


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_a_kind_says_where_its_functions_are_without_a_device(kind: str) -> None:
    """The sync lint puts its own in their place, on a machine that has none of these devices."""
    device = devices.of(kind)
    owner, names = device.waiting_functions() or (None, ())
    assert names
    assert all(callable(getattr(owner, name)) for name in names)
    assert all(callable(one.synchronize) for one in device.waitable_types())


def test_apple_s_gpu_is_one_and_named_without_asking_torch() -> None:
    assert devices.of("mps").name(0) == "Apple GPU"


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_a_device_that_was_never_run_says_so(kind: str) -> None:
    module = sys.modules[type(devices.of(kind)).__module__]
    assert "Not run on a device yet" in (module.__doc__ or "")


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_what_torch_offers_is_called_as_torch_defines_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's functions replaced: that they exist, and the answers are passed on."""
    device = devices.of(kind)
    module = getattr(torch, kind)
    told = {
        "current_allocated_memory": 3, "driver_allocated_memory": 8, "recommended_max_memory": 99,
    } if kind == "mps" else {}  # fmt: skip
    for name, value in told.items():
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    for name, answer in {
        "memory_allocated": 3,
        "max_memory_allocated": 5,
        "memory_stats": {"reserved_bytes.all.current": 8},
        "get_memory_info": (1, 99),
        "device_count": 2,
        "current_device_index": 0,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, lambda *_, answer=answer: answer)
    assert device.uuid(0) is None  # the driver's number, which is NVIDIA's alone
    assert device.allocated(0) == 3
    assert device.stats(0)["reserved_bytes.all.current"] == 8
    assert device.total_bytes(0) == 99
    assert (device.count(), device.current()) == (2, 0)
    assert not device.is_available()
    assert not device.is_initialised()
    assert list(device.devices()) == []


def test_knowing_the_devices_imports_no_torch() -> None:
    code = (
        "import sys; from perfkit.base import device; device.known(); device.in_use(); "
        "device.pattern('waits'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
