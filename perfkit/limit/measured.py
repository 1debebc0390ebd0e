"""Measure what this machine reaches: products, memory, copies, disk, starting an operator.

Takes some seconds. Every rate is the best of several repetitions, with median and worst beside it:
other programs can only make one slower. Repetitions on a device are timed by its own events, in
groups long enough for them. A small ``PERFKIT_BUDGET_SCALE`` shortens it, and the result says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from perfkit.base import torch_compat
from perfkit.base.budget import budget_scale
from perfkit.base.device import Device, here, of
from perfkit.base.errors import MeasurementError, MissingError
from perfkit.base.machine import stamp
from perfkit.base.machine.cpu_contention import ContentionMark
from perfkit.base.machine.played import is_played
from perfkit.base.progress import Progress
from perfkit.limit.peaks import UPDATE, MemoryRate, Peaks, ProductRate, Rate

_T = TypeVar("_T")

_KIB, _MIB = 2**10, 2**20

# Square products. Small ones do not fill a device, and past the largest nothing grows.
_CPU_SIZES = (256, 512, 1024, 2048)
_DEVICE_SIZES = (1024, 2048, 4096, 8192)
_CPU_FORMATS = ("float32", "float64", "bfloat16", "float16")
_DEVICE_FORMATS = ("float32", "tf32", "bfloat16", "float16", "float64", "float8")
# A product that takes longer is not measured: formats that a device only emulates.
_LONGEST_PRODUCT_S = 0.3
# Working sets: in the caches of a core, in the last cache; the last one is doubled up to the
# largest (what does not quite fit into a cache is moved faster than what is far from fitting).
_CPU_SETS = (256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB)
_DEVICE_SETS = (_MIB, 8 * _MIB, 32 * _MIB)
# The last working set must be far larger than every cache: STREAM's rule is four times.
_CPU_LARGEST, _DEVICE_LARGEST = 256 * _MIB, 2048 * _MIB
_MOST_OF_MEMORY = 8
# pattern -> tensors that it has, and how many it reads and writes
_PATTERNS = {"copy": (2, 2), "add": (3, 3), "sum": (1, 1), UPDATE: (1, 2)}
_COPY_BYTES = 128 * _MIB
_DISK_BYTES = 128 * _MIB
_DISK_PIECE = 4 * _MIB
_DISK_FREE = 8  # times the file
_LAUNCHES = 500
_FEWEST, _MOST = 5, 500
# Calls up to this long are repeated twice as often at least.
_SLOW_S = 0.05
# About so many of each, to say how far it is.
_PRODUCTS, _MEMORIES = 14, 28
# The rates of a cold device are lower: its clock rises in about this time.
_WARM_S = 0.3


def measured_peaks(
    device: str | None = None, folder: str | os.PathLike[str] | None = None
) -> Peaks:
    """Measure a device of this machine, and the disk below a folder.

    Args:
        device: ``"cpu"`` or a place such as ``"cuda"`` or ``"cuda:1"``; by default the accelerator
            if torch sees one, else the CPU.
        folder: whose disk; by default the current folder. A temporary file of 128 MiB is written
            to it and removed.

    Raises:
        MissingError: torch is not installed, or sees no such device.
        MeasurementError: nothing could be measured.
    """
    with Progress("peaks") as progress:
        return _measured(_Bench(device), folder, progress)


def _measured(bench: _Bench, folder: str | os.PathLike[str] | None, progress: Progress) -> Peaks:
    began_s = time.monotonic()
    mark = ContentionMark()

    def told(items: Iterator[_T], what: str, begin: float, end: float, expected: int) -> list[_T]:
        """All of them; they take the work from one share to the next."""
        found = []
        for one in items:
            found.append(one)
            done = min(len(found) / expected, 1.0)
            progress.line(what, share=begin + (end - begin) * done)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bench.warm_up()
        # Twice, with seconds between: another program's burst then spoils only one of them.
        first = told(bench.products(), "matrix products", 0.0, 0.25, _PRODUCTS)
        memory_first = told(bench.memory(), "memory", 0.25, 0.45, _MEMORIES)
        copies = dict(told(bench.copies(), "copies", 0.45, 0.5, 4))
        launch, round_trip = bench.launches()
        second, memory_second = first, memory_first
        if bench.share == 1:
            second = told(bench.products(), "matrix products", 0.5, 0.75, len(first))
            memory_second = told(bench.memory(), "memory", 0.75, 0.9, len(memory_first))
        products = tuple(
            replace(one, flop_per_s=_together(one.flop_per_s, again.flop_per_s))
            for one, again in _pairs(first, second, lambda p: (p.form, p.size))
        )
        memory = tuple(
            replace(one, bytes_per_s=_together(one.bytes_per_s, again.bytes_per_s))
            for one, again in _pairs(
                memory_first, memory_second, lambda m: (m.what, m.working_set_bytes)
            )
        )
    busy = mark.until_now()
    where = Path.cwd() if folder is None else Path(folder)
    progress.line("disk", share=0.9)
    disk = _disk(where, bench.notes)
    if not memory or not products:
        why = "; ".join(bench.notes) or "its clock shows no time"
        raise MeasurementError(f"nothing could be measured on {bench.place}: {why}")
    return Peaks(
        device=bench.name,
        place=bench.place,
        device_memory_bytes=bench.memory_bytes,
        threads=bench.threads,
        products=products,
        memory=memory,
        copies=copies,
        disk=disk,
        disk_where=str(where.absolute()),
        launch_us=launch,
        round_trip_us=round_trip,
        seconds=time.monotonic() - began_s,
        busy=busy.sentence(),
        is_spoiled=busy.spoils,
        notes=(*dict.fromkeys(bench.notes), *busy.held_back_by()),
        provenance=stamp(device=bench.name),
    )


def _pairs(first: list[_T], again: list[_T], key: Callable[[_T], object]) -> list[tuple[_T, _T]]:
    """The same thing measured twice; with itself, where it was measured once."""
    second = {key(one): one for one in again}
    once = {key(one): one for one in first}
    return [(one, second.get(k, one)) for k, one in {**second, **once}.items()]


def _together(first: Rate, again: Rate) -> Rate:
    if first is again:
        return first
    return Rate(
        best=max(first.best, again.best),
        median=median((first.median, again.median)),
        worst=min(first.worst, again.worst),
        n=first.n + again.n,
    )


class _Bench:
    """One device, and how to time calls on it."""

    def __init__(self, device: str | None) -> None:
        try:
            import torch
        except ImportError:
            raise MissingError("measuring peaks needs torch: pip install torch") from None
        self._torch: Any = torch
        kind = here() if device is None else of(device)
        number = "" if device is None else device.partition(":")[2]
        if not kind.is_available():
            raise MissingError(f"torch sees no {kind.label} device: see `perfkit doctor`")
        self.kind: Device = kind
        if kind.is_cpu:
            self.index = 0
        else:
            self.index = int(number) if number.isdigit() else kind.current()
            if self.index >= kind.count():
                raise MissingError(f"no {device}: torch sees {kind.count()} × {kind.label}")
        self.has_cpu_speed = kind.is_cpu or is_played()  # the CPU computes what a played GPU does
        self.place = kind.place(self.index)
        self.name = "cpu" if kind.is_cpu else kind.name(self.index)
        self.memory_bytes = 0 if kind.is_cpu else kind.total_bytes(self.index) or 0
        self.threads = int(torch.get_num_threads())
        self.notes: list[str] = []
        self.share = min(budget_scale(), 1.0)
        if self.share < 1:
            self.notes.append(f"measured in {self.share:g} of the usual time: rates may be too low")

    # --- time ---------------------------------------------------------------------------------

    def _wait(self) -> None:
        if not self.kind.is_cpu:
            self.kind.synchronize(self.index)

    def _seconds(self, call: Callable[[], object], n: int) -> float:
        """How long ``n`` calls take, by the device's own clock if it has one."""
        if self.kind.is_cpu:
            began_ns = time.perf_counter_ns()
            for _ in range(n):
                call()
            return (time.perf_counter_ns() - began_ns) / 1e9
        stream = self.kind.stream(self.index)
        first, last = self.kind.event(), self.kind.event()
        first.record(stream)
        for _ in range(n):
            call()
        last.record(stream)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def _rate(self, call: Callable[[], object], amount: float, budget_s: float) -> Rate | None:
        """``amount`` over the time of a call; None where the clock shows no time."""
        call()
        self._wait()
        once_s = min(self._seconds(call, 1) for _ in range(3))
        # An event's resolution is half a microsecond. The host's clock needs no long groups, and
        # short ones fit between two preemptions of a busy machine.
        group_s = 3e-4 if self.kind.is_cpu else 5e-3
        n = max(1, min(int(group_s / max(once_s, 1e-6)) + 1, 2000))
        rates: list[float] = []
        until_s = time.monotonic() + budget_s * self.share
        fewest = math.ceil(self.share * (_FEWEST if once_s > _SLOW_S else 2 * _FEWEST))
        while len(rates) < _MOST and (len(rates) < fewest or time.monotonic() < until_s):
            took_s = self._seconds(call, n)
            if took_s <= 0:
                return None
            rates.append(amount * n / took_s)
        return Rate(max(rates), median(rates), min(rates), len(rates))

    def warm_up(self) -> None:
        """Raise the clock: a device that idled is slow at first."""
        a = self._torch.rand(512, 512, device=self.place)
        until_s = time.monotonic() + _WARM_S
        while time.monotonic() < until_s:
            for _ in range(5):
                a @ a
            self._wait()

    # --- what is measured ---------------------------------------------------------------------

    def products(self) -> Iterator[ProductRate]:
        """Square products of each format, until one takes too long."""
        sizes = _CPU_SIZES if self.has_cpu_speed else _DEVICE_SIZES
        for form in _CPU_FORMATS if self.kind.is_cpu else _DEVICE_FORMATS:
            try:
                yield from self._products_in(form, sizes)
            except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
                first = str(error).strip().partition("\n")[0]
                self.notes.append(f"{form} products were not measured: {first:.120}")

    def _products_in(self, form: str, sizes: tuple[int, ...]) -> Iterator[ProductRate]:
        if form == "tf32" and not self.kind.has_tf32:
            return
        if form == "float64" and not self.kind.has_float64:
            return
        if form == "float8" and (self.kind.compute_capability(self.index) or (0, 0)) < (8, 9):
            return
        if form == "tf32" and (self.kind.compute_capability(self.index) or (8, 0)) < (8, 0):
            return
        longest_s = _LONGEST_PRODUCT_S * self.share
        with torch_compat.float32_products("tf32" if form == "tf32" else "ieee"):
            for size in sizes:
                product = self._product(form, size)
                product()
                self._wait()
                once_s = self._seconds(product, 1)
                if once_s > longest_s:
                    return
                rate = self._rate(product, 2.0 * size**3, 0.12)
                if rate is None:
                    self.notes.append(f"{form} products: the device's clock shows no time")
                    return
                yield ProductRate(form, size, rate)
                if 8 * once_s > longest_s:
                    return  # the next one is eight times the work

    def _product(self, form: str, size: int) -> Callable[[], object]:
        torch = self._torch
        if form == "float8":
            return torch_compat.float8_product(size, self.place)
        dtype = torch.float32 if form == "tf32" else getattr(torch, form)
        # normally distributed: products of zeros draw less power, so the clock stays higher
        a, b = (torch.randn(size, size, device=self.place).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    def memory(self) -> Iterator[MemoryRate]:
        """Each pattern for each working set."""
        torch = self._torch
        on_cpu = self.kind.is_cpu
        sets = list(_CPU_SETS if self.has_cpu_speed else _DEVICE_SETS)
        largest = _CPU_LARGEST if self.has_cpu_speed else _DEVICE_LARGEST
        room = _free_memory() if on_cpu else self.memory_bytes
        if on_cpu:
            # servers have last caches of hundreds of MiB
            largest = max(largest, 4 * _last_cache_bytes())
        largest = min(largest, room // _MOST_OF_MEMORY)
        while sets and 3 * sets[-1] < largest:
            sets.append(2 * sets[-1])
        for size in sorted({*(s for s in sets if s < largest), largest}):
            budget_s = 0.06 if size < largest else 0.2
            for what, (tensors, moves) in _PATTERNS.items():
                n = size // 4 // tensors  # float32
                parts = [torch.ones(n, device=self.place) for _ in range(tensors)]
                moved = float(n * moves * 4)
                rate = self._rate(_pattern(torch, what, parts), moved, budget_s)
                if rate is not None:
                    yield MemoryRate(what, size, rate)

    def copies(self) -> Iterator[tuple[str, Rate]]:
        """Copies between host and device; the CPU has none."""
        if self.kind.is_cpu:
            return
        torch = self._torch
        there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=self.place)
        pageable = torch.ones(_COPY_BYTES, dtype=torch.uint8)
        hosts = {"pageable": pageable}
        try:
            hosts = {"pinned": pageable.pin_memory(), **hosts}
        except RuntimeError as error:
            self.notes.append(f"pinned copies were not measured: {error!s:.100}")
        for kind, host in hosts.items():
            pinned = kind == "pinned"
            for name, source, target in (
                ("host to device", host, there),
                ("device to host", there, host),
            ):
                call = lambda s=source, t=target, p=pinned: t.copy_(s, non_blocking=p)  # noqa: E731
                rate = self._rate(call, float(_COPY_BYTES), 0.2)
                if rate is not None:
                    yield f"{name}, {kind}", rate

    def launches(self) -> tuple[Rate, Rate | None]:
        """Time per operator of one element, in µs; and with a wait after each."""
        x = self._torch.zeros(1, device=self.place)

        def ask() -> None:
            for _ in range(_LAUNCHES):
                x.neg_()
            self._wait()

        ask()
        each = _times_us(ask, 15, _LAUNCHES)
        if self.kind.is_cpu:
            return each, None

        def there_and_back() -> None:
            for _ in range(50):
                x.neg_()
                self._wait()

        return each, _times_us(there_and_back, 15, 50)


def _times_us(call: Callable[[], object], n: int, parts: int) -> Rate:
    """Host time of one of ``parts`` equal parts of a call, in µs; the best is the least."""
    times = []
    for _ in range(n):
        began_ns = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - began_ns) / 1e3 / parts)
    return Rate(min(times), median(times), max(times), n)


def _pattern(torch: Any, what: str, parts: list[Any]) -> Callable[[], object]:
    if what == "copy":
        return lambda: parts[1].copy_(parts[0])
    if what == "add":
        return lambda: torch.add(parts[0], parts[1], out=parts[2])
    if what == UPDATE:
        return lambda: parts[0].mul_(1.0)
    return lambda: parts[0].sum()


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _last_cache_bytes() -> int:
    """Of the CPU's last cache; 0 if the system does not say."""
    found = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            found = max(found, int(path.read_text().strip().removesuffix("K")) * _KIB)
    return found


def _disk(folder: Path, notes: list[str]) -> Rate | None:
    """Read a file that is not in memory, in pieces of 4 MiB; None if that is not possible."""
    import psutil

    if not hasattr(os, "posix_fadvise"):
        notes.append("the disk was not measured: this system cannot drop a file from memory")
        return None
    try:
        stat = os.statvfs(folder)
        if stat.f_frsize * stat.f_bavail < _DISK_FREE * _DISK_BYTES:
            notes.append(f"the disk was not measured: less than 1 GiB free in {folder}")
            return None
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            piece = os.urandom(_DISK_PIECE)  # a disk that compresses gains nothing
            for _ in range(_DISK_BYTES // _DISK_PIECE):
                file.write(piece)
            os.fsync(file.fileno())
            into = bytearray(_DISK_PIECE)
            rates: list[float] = []
            until_s = time.monotonic() + 1.5
            process = psutil.Process()
            while len(rates) < 2 or (time.monotonic() < until_s and len(rates) < 10):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                before = process.io_counters().read_bytes
                file.seek(0)
                began_s = time.perf_counter()
                while file.readinto(into):
                    pass
                rates.append(_DISK_BYTES / (time.perf_counter() - began_s))
                if process.io_counters().read_bytes - before < 0.9 * _DISK_BYTES:
                    notes.append(
                        f"the disk was not measured: what is written to {folder} stays in memory"
                    )
                    return None
    except (OSError, AttributeError, psutil.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        notes.append(f"the disk was not measured: {reason:.120}")
        return None
    return Rate(max(rates), median(rates), min(rates), len(rates))
