"""The peaks of a machine: kept, read back, told with data sheet; the clock is not asserted."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import perfkit
from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.base.machine import stamp
from perfkit.base.machine.played import is_played
from perfkit.cli import main
from perfkit.limit import kept, measured
from perfkit.limit.datasheet import data_sheet, data_sheets, sheet_of
from perfkit.limit.peaks import MemoryRate, Peaks, ProductRate, Rate
from perfkit.limit.roofs import FORMATS


def rate(best: float) -> Rate:
    return Rate(best, 0.9 * best, 0.5 * best, 7)


H100 = Peaks(
    device="NVIDIA H100 80GB HBM3",
    place="cuda:0",
    device_memory_bytes=80 * 2**30,
    threads=16,
    products=(
        ProductRate("bfloat16", 1024, rate(300e12)),
        ProductRate("bfloat16", 4096, rate(700e12)),
        ProductRate("bfloat16", 8192, rate(600e12)),
        ProductRate("float32", 4096, rate(50e12)),
    ),
    memory=(
        MemoryRate("copy", 2**20, rate(1e12)),
        MemoryRate("copy", 2**25, rate(4e12)),
        MemoryRate("add", 2**25, rate(5e12)),
        MemoryRate("sum", 2**25, rate(4.5e12)),
        MemoryRate("copy", 2**31, rate(3e12)),
    ),
    copies={"host to device, pinned": rate(50e9)},
    disk=None,
    disk_where="/data",
    launch_us=Rate(3.0, 3.2, 9.0, 15),
    round_trip_us=Rate(9.0, 10.0, 20.0, 15),
    seconds=6.0,
    busy="",
    is_spoiled=False,
    provenance=stamp("measured here", device="NVIDIA H100 80GB HBM3"),
    notes=("the disk was not measured: a reason",),
)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "home"))
    return tmp_path


def test_best_product_and_best_pattern_count() -> None:
    assert H100.flop_per_s["bfloat16"].size == 4096
    assert [(m.what, m.working_set_bytes) for m in H100.memory_by_size] == [
        ("copy", 2**20),
        ("add", 2**25),
        ("copy", 2**31),
    ]


def test_smaller_working_sets_are_never_taken_as_slower() -> None:
    roofs = H100.roofs()
    # the smallest was measured slower than the next larger one
    assert roofs.bytes_per_s(1) == roofs.bytes_per_s(2**25) == 5e12
    assert roofs.bytes_per_s(2**31) == roofs.bytes_per_s(2**40) == 3e12
    assert roofs.memory_bytes_per_s == 3e12


def test_a_set_between_two_has_the_rate_of_the_smaller_one() -> None:
    """Part of its bytes may still be in a cache: the memory's rate would be no limit."""
    roofs = H100.roofs()
    assert roofs.bytes_per_s(2**25 + 1) == roofs.bytes_per_s(2**31 - 1) == 5e12


def test_rates_of_updates_in_place_stand_by_themselves_smallest_first() -> None:
    updates = [MemoryRate("update", size, rate(1e9 * size)) for size in (2**25, 2**20)]
    roofs = replace(H100, memory=(*updates, *H100.memory)).roofs()
    assert roofs.updates == ((2**20, 1e9 * 2**20), (2**25, 1e9 * 2**25))  # faster than any other
    assert roofs.memory == H100.roofs().memory
    assert roofs.launch_us == 3.0
    assert roofs.source == f"measured {H100.provenance.when_utc[:10]}"
    assert len(roofs.source) == len("measured 2026-01-31")


@pytest.mark.parametrize(("gib", "name"), [(40, "A100 40GB"), (0, "A100 40GB"), (80, None)])
def test_the_sheet_of_a_device_is_that_of_its_memory(gib: int, name: str | None) -> None:
    found = replace(H100, device="NVIDIA A100-SXM4", device_memory_bytes=gib * 2**30).sheet
    assert (found and found.name) == name


def test_text_has_the_data_sheet_and_what_is_missing() -> None:
    text = " ".join(H100.to_text().split())
    assert str(H100).startswith("At most 700 TFLOP/s in bfloat16, memory 3.00 TB/s.")
    assert "700 TFLOP/s in bfloat16" in text
    assert "990 TFLOP/s" in text and "71 %" in text  # noqa: PT018
    assert "90 %" in text  # 3.0 of 3.35 TB/s
    assert "the disk was not measured: a reason" in text
    assert "without sparsity" in text
    assert "not measured" not in replace(H100, notes=()).to_text()
    assert H100.warnings == H100.notes
    assert replace(H100, busy="Busy.").warnings == ("Busy.", *H100.notes)
    assert H100.roofs().doubts == ()


def test_peaks_come_back_as_they_were_kept(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def measure(device: object, folder: object) -> Peaks:
        calls.append(device)
        return mine

    threads = torch.get_num_threads()
    mine = replace(
        H100,
        device="cpu",
        threads=threads,
        provenance=replace(H100.provenance, kind="measured here"),
    )
    monkeypatch.setattr(kept, "measured_peaks", measure)
    assert kept.kept_peaks("cpu") is None
    assert perfkit.peaks("cpu") == mine
    assert perfkit.peaks("cpu") == kept.kept_peaks("cpu") == mine
    assert calls == ["cpu"]
    assert perfkit.peaks("cpu", again=True) == mine
    assert calls == ["cpu", "cpu"]


def test_peaks_that_cannot_be_kept_are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took up to 20 s, and were thrown away."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFKIT_HOME", str(tmp_path / "file"))  # no folder can be made in it
    mine = replace(H100, device="cpu", provenance=replace(H100.provenance, kind="measured here"))
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: mine)
    found = perfkit.peaks("cpu")
    assert found.products == mine.products
    assert "not kept, so the next call measures again: cannot keep the peaks" in found.notes[-1]


def test_peaks_of_a_busy_machine_are_measured_anew(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = replace(
        H100,
        device="cpu",
        threads=torch.get_num_threads(),
        is_spoiled=True,
        busy="The machine was busy: other programs.",
        provenance=replace(H100.provenance, kind="measured here"),
    )
    good = replace(spoiled, is_spoiled=False, busy="")
    results = [spoiled, good]
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: results.pop(0))
    assert perfkit.peaks("cpu") == spoiled
    assert spoiled.roofs().doubts == (
        "the peaks are too low: The machine was busy: other programs.",
    )
    assert perfkit.peaks("cpu") == good
    assert perfkit.peaks("cpu") == good
    assert results == []


def test_peaks_of_other_threads_are_not_this_machines(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(
        H100,
        device="cpu",
        threads=torch.get_num_threads() + 1,
        provenance=replace(H100.provenance, kind="measured here"),
    )
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: other)
    perfkit.peaks("cpu")
    assert kept.kept_peaks("cpu") is None


def test_peaks_of_one_gpu_are_not_those_of_another(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = SimpleNamespace(is_cpu=True)
    gpu = SimpleNamespace(
        is_cpu=False,
        label="GPU",
        is_available=lambda: True,
        name=lambda index: f"model {index}",
        current=lambda: 1,
        place=lambda index: f"gpu:{index}",
    )
    monkeypatch.setattr(kept, "here", lambda: gpu)
    monkeypatch.setattr(kept, "in_use", lambda: gpu)
    monkeypatch.setattr(kept, "of", lambda place: cpu if place.startswith("cpu") else gpu)
    here = replace(H100.provenance, kind="measured here")
    mine = replace(H100, device="model 1", place="gpu:1", provenance=here)
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: mine)
    assert perfkit.peaks() == mine
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: None)  # not again
    assert perfkit.peaks() == perfkit.peaks("gpu") == perfkit.peaks("gpu:1") == mine
    assert kept.peaks_in_use() == mine
    assert kept.kept_peaks("gpu:0") is kept.kept_peaks("cpu") is None
    monkeypatch.setattr(gpu, "current", lambda: 0)
    assert kept.kept_peaks() is kept.peaks_in_use() is None
    own = replace(mine, device="cpu", place="cpu", threads=torch.get_num_threads())
    kept._keep(own)
    monkeypatch.setattr(kept, "in_use", lambda: cpu)
    assert kept.peaks_in_use() == own
    monkeypatch.setattr(gpu, "is_available", lambda: False)
    assert kept.kept_peaks("gpu:1") is None
    path = kept._path("cpu", torch.get_num_threads())
    path.write_text(path.read_text().replace("perfkit.peaks/1", "perfkit.peaks/0"))
    assert kept.kept_peaks("cpu") is None  # written by another version


def test_played_peaks_are_not_kept(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = replace(
        H100,
        device="cpu",
        threads=torch.get_num_threads(),
        provenance=replace(H100.provenance, kind="played"),
    )
    monkeypatch.setattr(kept, "measured_peaks", lambda device, folder: played)
    perfkit.peaks("cpu")
    assert kept.kept_peaks("cpu") is None
    assert not (own_folder / "home").exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema": "perfkit.peaks/2"}', '{"schema": "perfkit.peaks/1"}'],
)
def test_damaged_file_is_no_peaks(own_folder: Path, content: str) -> None:
    path = kept._path("cpu", torch.get_num_threads())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert kept.kept_peaks("cpu") is None


def test_measuring_this_cpu(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measured, "_CPU_SIZES", (64, 128))
    monkeypatch.setattr(measured, "_CPU_SETS", (2**19,))
    monkeypatch.setattr(measured, "_CPU_LARGEST", 2**20)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: 0)
    monkeypatch.setattr(measured, "_DISK_BYTES", 2**22)
    monkeypatch.setattr(measured, "_LONGEST_PRODUCT_S", 1e9)
    monkeypatch.setattr(measured, "_MOST", 5)
    before = sorted(own_folder.iterdir())
    assert (
        main(["doctor", "--peaks", "--device", "cpu", "--folder", str(own_folder), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [p["size"] for p in told["products"] if p["form"] == "float32"] == [64, 128]
    assert {m["working_set_bytes"] for m in told["memory"]} == {2**19, 2**20}
    for one in (*told["products"], *told["memory"]):
        figures = one.get("flop_per_s") or one["bytes_per_s"]
        assert figures["best"] >= figures["median"] >= figures["worst"] > 0
    assert told["launch_us"]["best"] <= told["launch_us"]["worst"]
    assert told["copies"] == {}
    assert told["disk_where"] == str(own_folder)
    assert (told["disk"] is None) == any("disk" in note for note in told["notes"])
    # what was written for the disk is gone; the peaks are kept
    assert sorted(own_folder.iterdir()) == [*before, own_folder / "home"]
    assert main(["doctor", "--peaks", "--device", "cpu"]) == 0
    assert "memory" in capsys.readouterr().out
    assert kept.kept_peaks("cpu") is not None


class Touched(TorchFunctionMode):
    """Bytes of the tensors that one call is given."""

    n_bytes = 0  # what mul_() updates is read and written

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [t for t in (*args, *(kwargs or {}).values()) if isinstance(t, torch.Tensor)]
        self.places |= {t.data_ptr(): t.nbytes for t in tensors}
        self.n_bytes += sum(t.nbytes for t in tensors) * (1 + (func.__name__ == "mul_"))
        return func(*args, **(kwargs or {}))


def test_a_rate_of_memory_counts_the_bytes_that_a_pattern_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measured, "_CPU_LARGEST", 2**19)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: 0)
    moved, n_tensors, sets = [], [], []

    def rate_of(call: Callable[[], object], amount: float, budget_s: float) -> Rate:
        with Touched() as seen:
            call()
        moved.append((seen.n_bytes, amount))
        n_tensors.append(len(seen.places))
        sets.append(sum(seen.places.values()))
        return rate(1.0)

    bench = measured._Bench("cpu")
    monkeypatch.setattr(bench, "_rate", rate_of)
    found = list(bench.memory())
    assert [one.what for one in found] == ["copy", "add", "sum", "update"] * 2
    assert sets == pytest.approx([one.working_set_bytes for one in found], abs=12)
    assert [seen for seen, _ in moved] == [amount for _, amount in moved]
    assert n_tensors == [2, 3, 1, 1] * 2


@pytest.mark.parametrize(
    ("last_cache", "sets"),
    [
        (0, [16, 32, 64, 128, 256]),
        (64, [16, 32, 64, 128, 256]),
        (80, [16, 32, 64, 128, 320]),
        (260, [16, 32, 64, 128, 256, 512, 1040]),
    ],
)
def test_sets_are_doubled_until_they_are_far_larger_than_the_last_cache(
    last_cache: int, sets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to 16 MiB stood 256: layer norm of 16.01 MiB took 0.52 of its lower bound."""
    mib = 2**10  # a thousandth, so that it takes no time
    monkeypatch.setattr(measured, "_CPU_SETS", (16 * mib,))
    monkeypatch.setattr(measured, "_CPU_LARGEST", 256 * mib)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: last_cache * mib)
    bench = measured._Bench("cpu")
    monkeypatch.setattr(bench, "_rate", lambda call, amount, budget_s: rate(1.0))
    found = sorted({one.working_set_bytes // mib for one in bench.memory()})
    assert found == sets


@pytest.mark.parametrize(
    ("first_s", "sizes", "share"),
    [(0.036, [64, 128], 1), (0.039, [64], 1), (0.29, [64], 1), (0.31, [], 1), (0.16, [], 0.5)],
)
def test_no_product_takes_longer_than_a_third_of_a_second(
    first_s: float, sizes: list[int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the size is eight times the work: one that would take too long is not begun."""
    begun = []
    bench = measured._Bench("cpu")
    monkeypatch.setattr(bench, "share", share)
    monkeypatch.setattr(bench, "_product", lambda form, size: lambda: begun.append(size))
    monkeypatch.setattr(bench, "_seconds", lambda call, n: first_s * (begun[-1] / 64) ** 3)
    monkeypatch.setattr(bench, "_rate", lambda call, amount, budget_s: rate(1.0))
    found = [one.size for one in bench._products_in("float32", (64, 128, 256))]
    assert found == sizes
    assert begun == (sizes or [64])


def test_a_working_set_takes_an_eighth_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 2**10  # a thousandth, so that it takes no time
    monkeypatch.setattr(measured, "_CPU_SETS", (16 * mib,))
    monkeypatch.setattr(measured, "_CPU_LARGEST", 256 * mib)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: 0)
    monkeypatch.setattr(measured, "_free_memory", lambda: 8 * 80 * mib)
    bench = measured._Bench("cpu")
    monkeypatch.setattr(bench, "_rate", lambda call, amount, budget_s: rate(1.0))
    assert {one.working_set_bytes // mib for one in bench.memory()} == {16, 32, 80}


@pytest.mark.parametrize(
    ("call_s", "budget_s", "n"), [(0.06, 0.0, 5), (0.04, 0.0, 10), (0.04, 1e9, 500)]
)
def test_a_call_is_repeated_five_times_ten_if_it_is_quick_and_five_hundred_at_most(
    call_s: float, budget_s: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = measured._Bench("cpu")
    monkeypatch.setattr(bench, "share", 1.0)
    monkeypatch.setattr(bench, "_seconds", lambda call, n: n * call_s)
    found = bench._rate(lambda: None, 6.0, budget_s)
    assert found is not None
    assert found.n == n
    assert found.best == pytest.approx(6.0 / call_s)


def test_a_small_budget_measures_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_CPU_SIZES", (64,)), ("_CPU_SETS", ()), ("_CPU_LARGEST", 2**20)):
        monkeypatch.setattr(measured, name, value)
    monkeypatch.setattr(measured, "_last_cache_bytes", lambda: 0)
    monkeypatch.setattr(measured, "_disk", lambda folder, notes: None)
    monkeypatch.setattr(measured, "_MOST", 5)
    monkeypatch.setattr(measured, "_FEWEST", 50)  # so the clock does not decide how many there are
    repeats = {}
    for scale in ("1", "0.2"):
        monkeypatch.setenv("PERFKIT_BUDGET_SCALE", scale)
        found = measured.measured_peaks("cpu")
        repeats[scale] = found.flop_per_s["float32"].flop_per_s.n
        assert any("0.2 of the usual time" in note for note in found.notes) == (scale == "0.2")
    assert repeats == {"1": 10, "0.2": 5}


@pytest.mark.parametrize("missing", ["products", "memory"])
def test_without_a_rate_of_products_or_of_memory_there_are_no_peaks(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {
        "warm_up": None,
        "products": [ProductRate("float32", 64, rate(1.0))],
        "memory": [MemoryRate("copy", 2**20, rate(1.0))],
        "copies": {},
        "launches": (rate(1.0), None),
    }
    for name, found in (made | {missing: []}).items():
        monkeypatch.setattr(measured._Bench, name, lambda self, found=found: found)
    monkeypatch.setattr(measured, "_disk", lambda folder, notes: None)
    monkeypatch.setenv("PERFKIT_BUDGET_SCALE", "1")
    with pytest.raises(MeasurementError, match="measured on cpu: its clock shows no time"):
        measured.measured_peaks("cpu")


def test_wrong_requests_say_what_to_do(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--again"]) == 2
    assert "--again is for --peaks" in capsys.readouterr().err
    assert main(["doctor", "--peaks", "--device", "nonsense"]) == 1
    assert "nonsense" in capsys.readouterr().err
    if not torch.cuda.is_available():
        with pytest.raises(MissingError, match="no CUDA device"):
            perfkit.peaks("cuda")
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"device": 3}, "device is 3"),
        ({"folder": 3}, "folder is 3; give the path of a folder"),
        ({"folder": "/no/such"}, "folder is '/no/such', which is not a folder here"),
    )
    for one, said in wrong:
        with pytest.raises(UsageError, match=said):
            perfkit.peaks(**one)


@pytest.mark.parametrize(
    ("short_by", "why"), [(1, "less than 1 GiB free in {folder}"), (0, "the disk has failed")]
)
def test_a_disk_with_less_than_the_note_says_is_not_filled(
    short_by: int, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(**_: object) -> None:
        raise OSError(5, "the disk has failed")

    free = SimpleNamespace(f_frsize=4096, f_bavail=2**30 // 4096 - short_by)
    monkeypatch.setattr(os, "statvfs", lambda folder: free)
    monkeypatch.setattr(tempfile, "TemporaryFile", fails)
    notes: list[str] = []
    assert measured._disk(tmp_path, notes) is None
    assert notes == [f"the disk was not measured: {why.format(folder=tmp_path)}"]


def test_disk_in_a_folder_that_is_not_there_is_a_note() -> None:
    notes: list[str] = []
    assert measured._disk(Path("/no/such/folder"), notes) is None
    assert len(notes) == 1
    assert "disk was not measured" in notes[0]


@pytest.mark.parametrize(
    ("driver", "memory_gib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "H100 SXM"),
        ("NVIDIA H100 PCIe", 79.1, "H100 PCIe"),
        ("NVIDIA H100 NVL", 93.1, "H100 NVL"),
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA H200 NVL", 139.8, "H200 NVL"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", 79.2, "A100 80GB PCIe"),
        ("Tesla V100-SXM2-16GB", 15.8, "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", 31.7, "V100 PCIe"),
        ("Tesla T4", 14.6, "T4"),
        ("NVIDIA L4", 22.0, "L4"),
        ("NVIDIA L40S", 44.4, "L40S"),
        ("NVIDIA GeForce RTX 4090", 23.5, "RTX 4090"),
        ("AMD Instinct MI250", 64.0, "MI250 (one die)"),
        ("AMD Instinct MI300X", 192.0, "MI300X"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16.0, None),
        ("NVIDIA A10G", 22.0, None),
        ("cpu", 0, None),
    ],
)
def test_driver_names_find_their_data_sheet(
    driver: str, memory_gib: float, name: str | None
) -> None:
    found = sheet_of(driver, round(memory_gib * 2**30) or None)
    assert (found and found.name) == name


def test_data_sheets_are_dense_and_consistent() -> None:
    for sheet in data_sheets().values():
        rates = sheet.tflop_per_s
        assert set(rates) <= set(FORMATS)
        assert sheet.source
        # tensor cores double from one format to the next narrower one; with sparsity it would be 4
        if "tf32" in rates and "bfloat16" in rates:
            assert rates["bfloat16"] == pytest.approx(2 * rates["tf32"], rel=0.02)
        if "float8" in rates:
            assert rates["float8"] == pytest.approx(2 * rates["bfloat16"], rel=0.03)
        assert sheet.roofs().kind == "predicted"
        half = ("torch sees each of the two dies as a device: these are the rates of one die",)
        assert sheet.roofs().doubts == (half if "one die" in sheet.name else ())


def test_short_names_and_unknown_ones() -> None:
    assert data_sheet("h200").name == "H200"
    assert data_sheet("H100").name == "H100 SXM"
    assert data_sheet("NVIDIA H100 PCIe").name == "H100 PCIe"
    assert data_sheet("Tesla T4").name == "T4"
    with pytest.raises(UsageError, match=r"'Z9000' is known; there are: V100 SXM2, .*MI300X"):
        data_sheet("Z9000")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measuring_a_gpu(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_played():  # a CPU computes there
        for name, value in (
            ("_CPU_SIZES", (64, 128)),
            ("_CPU_SETS", (2**21,)),
            ("_CPU_LARGEST", 2**22),
            ("_COPY_BYTES", 2**20),
            ("_LAUNCHES", 20),
        ):
            monkeypatch.setattr(measured, name, value)
    before = torch.backends.cuda.matmul.fp32_precision
    found = perfkit.peaks("cuda", folder=own_folder)
    print(found)
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert found.place == "cuda:0"
    if is_played():
        assert {one.size for one in found.products} == {64, 128}
        assert {one.working_set_bytes for one in found.memory} == {2**21, 2**22}
    assert {"float32", "float16"} <= set(found.flop_per_s)
    capability = torch.cuda.get_device_capability(0)
    assert (found.provenance.kind == "played") == is_played()
    if capability >= (8, 0) and not is_played():
        assert (
            found.flop_per_s["tf32"].flop_per_s.best > found.flop_per_s["float32"].flop_per_s.best
        )
        assert {"host to device, pinned", "device to host, pageable"} <= set(found.copies)
    if capability >= (8, 9):
        assert "float8" in found.flop_per_s or any("float8" in note for note in found.notes)
    sheet = found.sheet
    if sheet is not None:
        # no product is faster than its data sheet, which also tells sparse figures from dense ones
        for form, one in found.flop_per_s.items():
            if form in sheet.tflop_per_s:
                assert one.flop_per_s.best < 1.05e12 * sheet.tflop_per_s[form], form
        assert found.memory_by_size[-1].bytes_per_s.best < 1.05e9 * sheet.gb_per_s
    assert perfkit.peaks("cuda") == found or found.is_spoiled or is_played()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_is_not_there_is_told_with_how_many_there_are() -> None:
    n = torch.cuda.device_count()
    with pytest.raises(MissingError, match=f"no cuda:{n}: torch sees {n} × CUDA"):
        perfkit.peaks(f"cuda:{n}")
