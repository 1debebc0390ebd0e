"""How peaks are measured, from both sides of each number: made devices, clocks and disks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.overrides import TorchFunctionMode

from perfkit.base import torch_compat
from perfkit.base.errors import MeasurementError, MissingError
from perfkit.limit import measured
from perfkit.limit.datasheet import _fits, data_sheet
from perfkit.limit.measured import _Bench, _pairs, _together, measured_peaks
from perfkit.limit.peaks import UPDATE, MemoryRate, ProductRate, Rate
from perfkit.limit.roofs import Roofs


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> _Bench:
    made = _Bench("cpu")
    monkeypatch.setattr(made, "share", 1.0)
    return made


@pytest.mark.parametrize(
    ("form", "capability", "is_measured"),
    [
        ("float8", (8, 8), False),
        ("float8", (8, 9), True),
        ("float8", (9, 0), True),
        ("float8", None, False),  # of a device that has none, nobody knows
        ("tf32", (7, 5), False),
        ("tf32", (8, 0), True),
        ("tf32", None, True),
        ("float64", (7, 5), True),
    ],
)
def test_a_format_is_measured_where_the_device_computes_it(
    form: str,
    capability: tuple[int, int] | None,
    is_measured: bool,
    bench: _Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind: Any = SimpleNamespace(
        is_cpu=True, has_tf32=True, has_float64=True, compute_capability=lambda index: capability
    )
    monkeypatch.setattr(bench, "kind", kind)
    modes, amounts = [], []

    def products(mode: str) -> contextlib.AbstractContextManager[None]:
        modes.append(mode)
        return contextlib.nullcontext()

    def rate(call: object, amount: float, budget_s: float) -> Rate:
        amounts.append(amount)
        return Rate(1.0, 1.0, 1.0, 1)

    monkeypatch.setattr(torch_compat, "float32_products", products)
    monkeypatch.setattr(bench, "_product", lambda form, size: lambda: None)
    monkeypatch.setattr(bench, "_seconds", lambda call, n: 1e-6)
    monkeypatch.setattr(bench, "_rate", rate)

    def found() -> bool:
        return bool(list(bench._products_in(form, (64,))))

    assert found() is is_measured
    assert set(modes) <= {"tf32" if form == "tf32" else "ieee"}
    assert amounts == [2 * 64**3] * is_measured  # a multiplication and an addition are two
    kind.has_tf32 = kind.has_float64 = False
    assert found() is (is_measured and form == "float8")


@pytest.mark.parametrize(
    ("is_cpu", "call_s", "n"),
    [
        (True, 7e-6, 43),  # 0.3 ms: between two preemptions
        (True, 1e-7, 300),
        (True, 1e-3, 1),
        (False, 7e-5, 72),  # 5 ms: many ticks of an event
        (False, 1e-7, 2000),
        (False, 1e-2, 1),
    ],
)
def test_calls_are_timed_in_groups_that_the_clock_resolves(
    is_cpu: bool, call_s: float, n: int, bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []

    def seconds(call: Callable[[], object], n: int) -> float:
        groups.append(n)
        return n * call_s

    kind = SimpleNamespace(is_cpu=is_cpu, synchronize=lambda index: None)
    monkeypatch.setattr(bench, "kind", kind)
    monkeypatch.setattr(bench, "_seconds", seconds)
    found = bench._rate(lambda: None, 1.0, 0.0)
    assert found is not None
    assert found.best == pytest.approx(1 / call_s)
    assert groups[:3] == [1, 1, 1]
    assert set(groups[3:]) <= {n, n + 1}  # rounding


def test_a_clock_that_shows_no_time_has_no_rate(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_seconds", lambda call, n: 0.0)
    assert bench._rate(lambda: None, 1.0, 0.0) is None
    monkeypatch.setattr(bench, "_product", lambda form, size: lambda: None)
    assert list(bench._products_in("float32", (64, 128))) == []
    assert bench.notes == ["float32 products: the device's clock shows no time"]
    monkeypatch.setattr(measured, "_CPU_SETS", (2**16,))
    monkeypatch.setattr(measured, "_CPU_LARGEST", 2**17)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: 0)
    assert list(bench.memory()) == []


def test_the_first_of_three_calls_may_be_slow(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = iter([1.0, 1e-3, 1e-3])
    monkeypatch.setattr(bench, "_seconds", lambda call, n: next(first, n * 1e-3))
    found = bench._rate(lambda: None, 1.0, 0.0)
    assert found is not None
    assert found.n == 10  # it is quick


def test_what_is_measured_twice_is_one_rate_and_what_once_stays() -> None:
    first, again = Rate(10.0, 8.0, 1.0, 5), Rate(12.0, 6.0, 2.0, 7)
    assert _together(first, again) == Rate(12.0, 7.0, 1.0, 12)
    assert _together(first, first) is first
    assert _pairs(["a", "b"], ["A", "c"], str.lower) == [("a", "A"), ("c", "c"), ("b", "b")]


@pytest.mark.parametrize("has", ["products", "memory"])
@pytest.mark.parametrize("notes", [(), ("no memory", "no driver")])
def test_half_of_the_peaks_are_none(
    has: str, notes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "1")
    one = Rate(1.0, 1.0, 1.0, 1)
    found = {"products": [ProductRate("float32", 64, one)], "memory": [MemoryRate("sum", 1, one)]}
    for what, rates in found.items():
        monkeypatch.setattr(_Bench, what, lambda self, r=rates if what == has else (): iter(r))
    monkeypatch.setattr(_Bench, "warm_up", lambda self: self.notes.extend(notes))
    monkeypatch.setattr(_Bench, "launches", lambda self: (one, None))
    monkeypatch.setattr(measured, "_disk", lambda folder, notes: None)
    why = "; ".join(notes) or "its clock shows no time"
    with pytest.raises(MeasurementError, match=f"nothing could be measured on cpu: {why}"):
        measured_peaks("cpu")


class Disk:
    """Of what is read, this share comes from the disk."""

    def __init__(self, share: float) -> None:
        self.share, self.read, self.asked = share, 0.0, 0

    def io_counters(self) -> Any:
        self.asked += 1
        self.read += self.share * 2**20 * (self.asked % 2 == 0)  # before and after each
        return SimpleNamespace(read_bytes=self.read)


@pytest.mark.parametrize(
    ("share", "is_known", "half_s", "n"),
    [(0.89, False, 0.5, 0), (0.91, True, 0.5, 2), (0.91, True, 0.0, 10)],
)
def test_a_disk_is_measured_where_nearly_all_came_from_it(
    share: float,
    is_known: bool,
    half_s: float,
    n: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(share)
    ticks = itertools.count()
    clock = SimpleNamespace(
        perf_counter=lambda: 0.25 * next(ticks) ** 2, monotonic=lambda: half_s * 10 * next(ticks)
    )
    monkeypatch.setattr(measured, "time", clock)
    monkeypatch.setattr(psutil, "Process", lambda: disk)
    monkeypatch.setattr(measured, "_DISK_BYTES", 2**20)
    monkeypatch.setattr(measured, "_DISK_PIECE", 2**18)
    notes: list[str] = []
    found = measured._disk(tmp_path, notes)
    assert (found is not None) is is_known
    assert ["stays in memory" in one for one in notes] == ([] if is_known else [True])
    # twice if a read takes long, ten times at most
    if found is not None:
        assert (found.n, found.best) == (n, 2**20 / 0.75)
        assert found.worst < found.median < found.best  # each is slower than the one before


@pytest.mark.parametrize(("fits", "is_the_one"), [(0.86, True), (0.84, False), (1.16, False)])
def test_of_two_memories_under_one_name_the_nearest_is_meant(fits: float, is_the_one: bool) -> None:
    sheet = data_sheet("A100 40GB")
    assert sheet.memory_gb is not None
    assert _fits(sheet, int(fits * sheet.memory_gb * 2**30)) is is_the_one


@pytest.mark.parametrize(
    ("size", "rate"), [(0, 9.0), (99, 9.0), (100, 9.0), (199, 9.0), (200, 4.0), (10**9, 4.0)]
)
def test_between_two_sets_the_rate_of_the_smaller_one_counts(size: int, rate: float) -> None:
    roofs = Roofs("made", {}, ((100, 9.0), (200, 4.0)), "played")
    assert roofs.bytes_per_s(size) == rate
    # one that was measured slower because it is small is no slower than a larger one
    assert Roofs("made", {}, ((10, 2.0), *roofs.memory), "played").bytes_per_s(10) == 9.0


def test_the_device_is_the_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        is_cpu=False, label="GPU", is_available=lambda: True, current=lambda: 1, count=lambda: 2,
        place=lambda index: f"gpu:{index}", name=lambda index: f"model {index}",
        total_bytes=lambda index: 2**30 + index,
    )  # fmt: skip
    monkeypatch.setattr(measured, "here", lambda: gpu)
    monkeypatch.setattr(measured, "of", {"gpu": gpu, "gpu:0": gpu, "gpu:2": gpu}.__getitem__)
    for asked, at in ((None, 1), ("gpu", 1), ("gpu:0", 0)):
        found = _Bench(asked)
        assert (found.place, found.name) == (f"gpu:{at}", f"model {at}")
        assert (found.index, found.memory_bytes) == (at, 2**30 + at)
    with pytest.raises(MissingError, match="no gpu:2: torch sees 2 × GPU"):
        _Bench("gpu:2")
    monkeypatch.setattr(gpu, "is_available", lambda: False)
    with pytest.raises(MissingError, match="torch sees no GPU device"):
        _Bench(None)


def test_products_are_of_the_devices_formats_and_sizes(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def product_rates(form: str, sizes: tuple[int, ...]) -> Iterator[ProductRate]:
        asked.append((form, sizes))
        if form == "float16":
            raise RuntimeError("no kernel for it\nat a place")
        return iter(())

    monkeypatch.setattr(bench, "_products_in", product_rates)
    for is_cpu, is_slow in ((True, True), (False, False), (False, True)):  # a played GPU is slow
        monkeypatch.setattr(bench, "kind", SimpleNamespace(is_cpu=is_cpu))
        monkeypatch.setattr(bench, "has_cpu_speed", is_slow)
        asked.clear()
        assert list(bench.products()) == []
        sizes = (256, 512, 1024, 2048) if is_slow else (1024, 2048, 4096, 8192)
        assert {at for _, at in asked} == {sizes}
        forms = {form for form, _ in asked}
        assert {"float32", "float64", "bfloat16", "float16"} <= forms
        assert {"tf32", "float8"} <= forms or is_cpu
        assert not {"tf32", "float8"} & forms or not is_cpu
    assert bench.notes == ["float16 products were not measured: no kernel for it"] * 3
    monkeypatch.setattr(torch_compat, "float8_product", lambda size, place: (size, place))
    assert bench._product("float8", 8) == (8, "cpu")
    for form, dtype in (("tf32", torch.float32), ("bfloat16", torch.bfloat16)):
        made: Any = bench._product(form, 8)()
        assert (made.dtype, tuple(made.shape)) == (dtype, (8, 8))


class Asked(TorchFunctionMode):
    """The operators that are called in it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls.append((func.__name__, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def test_a_device_is_asked_as_often_as_a_time_is_divided(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    kind = SimpleNamespace(is_cpu=False, synchronize=waits.append)
    monkeypatch.setattr(bench, "kind", kind)
    monkeypatch.setattr(measured, "_times_us", lambda call, n, parts: (call, parts))
    made: Any = bench.launches()
    for (call, parts), n_waits in zip(made, (1, made[1][1]), strict=True):
        waits.clear()
        with Asked() as seen:
            call()
        assert [name for name, _ in seen.calls] == ["neg_"] * parts
        assert len(waits) == n_waits


def test_copies_are_both_ways_and_only_pinned_ones_do_not_wait(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "kind", SimpleNamespace(is_cpu=False))
    monkeypatch.setattr(measured, "_COPY_BYTES", 64)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    amounts = []

    def rate(call: Callable[[], object], amount: float, budget_s: float) -> Rate:
        amounts.append(amount)
        call()
        return Rate(1.0, 1.0, 1.0, 1)

    monkeypatch.setattr(bench, "_rate", rate)
    with Asked() as seen:
        kinds = [kind for kind, _ in bench.copies()]
    copies = [each for name, each in seen.calls if name == "copy_"]
    ways = ("host to device", "device to host")
    assert kinds == [f"{way}, {kind}" for kind in ("pinned", "pageable") for way in ways]
    assert amounts == [64.0] * 4
    assert [more["non_blocking"] for _, more in copies] == [True, True, False, False]
    there = copies[0][0][0]
    assert [target is there for (target, _), _ in copies] == [True, False] * 2
    assert [source is there for (_, source), _ in copies] == [False, True] * 2


def test_an_update_leaves_its_numbers_as_they_are() -> None:
    """Halved again and again they would be too small to be computed at full speed."""
    (ones,) = parts = [torch.ones(3)]
    measured._pattern(torch, UPDATE, parts)()
    assert ones.tolist() == [1.0] * 3


def test_the_last_cache_is_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "Path", lambda _: tmp_path)
    assert measured._last_cache_bytes() == 0
    for at, size in enumerate(("32K", "512K", "", "48K")):
        (tmp_path / f"index{at}").mkdir()
        (tmp_path / f"index{at}" / "size").write_text(size)
    assert measured._last_cache_bytes() == 512 * 2**10


def test_times_are_in_their_units(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = n_calls = 0

    def call() -> None:
        nonlocal now_ns, n_calls
        n_calls += 1
        now_ns += 500_000_000 if n_calls < 5 else 1_500_000_000

    clock = SimpleNamespace(perf_counter_ns=lambda: now_ns)
    monkeypatch.setattr(measured, "time", clock)
    assert bench._seconds(call, 3) == 1.5
    found = measured._times_us(call, 2, 5)
    assert found == Rate(100_000.0, 200_000.0, 300_000.0, 2)  # of five equal parts each
    event = SimpleNamespace(
        record=lambda stream: None, synchronize=lambda: None, elapsed_time=lambda last: 250.0
    )
    kind = SimpleNamespace(is_cpu=False, stream=lambda index: None, event=lambda: event)
    monkeypatch.setattr(bench, "kind", kind)
    assert bench._seconds(call, 1) == 0.25  # an event's times are in ms
