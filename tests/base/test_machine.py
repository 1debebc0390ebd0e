"""Facts about made-up machines, and about this one where they are unambiguous."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfkit.base import machine
from perfkit.base.errors import UsageError
from perfkit.base.machine import (
    _capabilities,
    _gpu,
    _host,
    _packages,
    played,
)
from perfkit.base.machine._capabilities import _TESTED_TORCH
from perfkit.base.machine._gpu import Gpu
from perfkit.base.machine._packages import TorchBuild

H200 = Gpu(0, "NVIDIA H200", 141 * 2**30, (9, 0), "580.65.06", "NVML")
P40 = Gpu(0, "Tesla P40", 24 * 2**30, (6, 1), "535.54", "NVML")
V100 = Gpu(0, "Tesla V100", 16 * 2**30, (7, 0), "535.54", "NVML")
CUDA_BUILD = TorchBuild("2.11.0+cu130", cuda="13.0")
CPU_BUILD = TorchBuild("2.13.0+cpu")
WIDGETS = {"anywidget": "0.9.18", "ipywidgets": "8.1.5", "ipykernel": "7.1.0"}


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _named(capabilities: tuple[_capabilities.Capability, ...], name: str) -> machine.Capability:
    return next(c for c in capabilities if c.name == name)


# -- provenance ------------------------------------------------------------------------------


def test_a_stamp_survives_json() -> None:
    made = machine.stamp(command="perfkit tour", seed=7)
    again = machine.Provenance.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert made.seed == 7
    assert made.versions["python"] == sys.version.split()[0]


@pytest.mark.parametrize(("cores", "words"), [(1, "1 core"), (2, "2 cores")])
def test_the_machine_in_words(cores: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "cpu_model", lambda: "AMD EPYC 7B13")
    monkeypatch.setattr(_host, "usable_cpus", lambda: cores)
    monkeypatch.setattr(_host, "memory_bytes", lambda: 24 * 2**30)
    assert machine.machine_sentence.__wrapped__() == f"AMD EPYC 7B13, {words}, 24 GiB"


def test_a_process_that_uses_cuda_names_the_gpu_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA numbers GPUs of several kinds in another order than the driver."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("perfkit.base.machine._first_gpu", lambda: "NVIDIA DGX Display")
    current: list[Exception | str] = ["NVIDIA A100"]

    def name(index: int) -> str:
        if isinstance(current[-1], Exception):
            raise current[-1]
        return current[-1]

    begun = [True]
    cuda = SimpleNamespace(
        is_initialized=lambda: begun[-1], get_device_name=name, current_device=lambda: 0
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    assert machine.stamp().device == "NVIDIA A100"
    current.append(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert machine.stamp().device == "NVIDIA DGX Display"
    begun.append(False)
    assert machine.stamp().device == "NVIDIA DGX Display"


def test_a_stamp_is_of_one_of_five_kinds() -> None:
    with pytest.raises(UsageError, match="measured here, recorded, played, simulated, predicted"):
        machine.stamp("guessed")  # type: ignore[arg-type]


def test_what_a_played_gpu_shows_is_never_measured_nor_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(played, "is_played", lambda: False)
    assert machine.stamp(device="NVIDIA H100").kind == "measured here"
    monkeypatch.setattr(played, "is_played", lambda: True)
    # another name of the device changes nothing
    assert machine.stamp(device="NVIDIA H100").kind == "played"
    assert machine.stamp("recorded", device="NVIDIA H100").kind == "played"
    assert machine.stamp("simulated", device="NVIDIA H100").kind == "simulated"
    assert machine.stamp(device="cpu").kind == "measured here"


def test_a_program_that_cannot_be_opened_has_no_played_gpu_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(name: None) -> None:
        raise TypeError("on Windows a library has a name")

    monkeypatch.setattr(played.ctypes, "CDLL", refuses)
    monkeypatch.setattr(played, "_will_be_loaded", lambda: False)
    assert not played.is_played()


def test_a_played_gpu_that_is_switched_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(origin=str(Path(__file__)))
    monkeypatch.setattr(played, "_is_loaded", lambda: False)
    monkeypatch.setattr(played, "_LIB", ".")  # a folder that is there
    monkeypatch.setattr(played.importlib.util, "find_spec", lambda name: there)
    for switch, answer in (("0", False), ("1", True)):
        monkeypatch.setenv("PLAYED_CUDA", switch)
        played._will_be_loaded.cache_clear()
        assert played.is_played() is answer
    monkeypatch.undo()
    played._will_be_loaded.cache_clear()


def test_a_sentence_names_kind_machine_torch_and_time() -> None:
    stamp = machine.Provenance(
        kind="recorded",
        machine="AMD EPYC 7B13, 2 cores, 24 GiB",
        device="NVIDIA H200",
        versions={"torch": "2.11.0+cu130"},
        when_utc="2026-11-20T12:31:59+00:00",
    )
    assert stamp.sentence() == (
        "recorded on NVIDIA H200, AMD EPYC 7B13, 2 cores, 24 GiB, torch 2.11.0+cu130, "
        "2026-11-20 12:31 UTC"
    )


def test_what_is_not_known_of_a_recording_is_left_out() -> None:
    unknown = machine.Provenance("recorded", "", "Tesla V100", {}, "")
    assert unknown.sentence() == "recorded on Tesla V100"
    assert machine.Provenance("recorded", "", "", {}, "").sentence() == "recorded"


def test_provenance_with_a_missing_field_is_refused() -> None:
    with pytest.raises(UsageError, match="not a provenance"):
        machine.Provenance.from_dict({"kind": "recorded"})


def test_stamp_and_facts_import_no_torch() -> None:
    program = textwrap.dedent("""
        import sys
        from perfkit.base.machine import facts, stamp
        stamp(); facts()
        assert stamp().versions["torch"], "no torch to be tempted by: the test shows nothing"
        sys.exit("torch" in sys.modules)
    """)
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# -- the host --------------------------------------------------------------------------------


def test_the_processor_is_named_as_its_maker_does(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/cpuinfo": "model name\t: AMD EPYC 7B13\nflags\t\t: sse avx512_bf16\n\n"
            "model name\t: another\n"
        },
    )
    assert _host.cpu_model(root) == "AMD EPYC 7B13"
    assert _host.cpu_flags(root) == {"sse", "avx512_bf16"}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_affinity_counts() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert _host.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        (  # the limit of an outer group binds, too
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            2,
        ),
        (  # version 1, with a path that only the host sees
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({}, 8),
    ],
)
def test_cpu_quota_of_a_container(
    tmp_path: Path, files: dict[str, str], usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert _host.usable_cpus(_write(tmp_path, files)) == usable


@pytest.mark.parametrize(
    ("quota", "usable"), [("max", 8), ("1600000", 8), ("150000", 2), ("200000", 2), ("50000", 1)]
)
def test_a_quota_counts_as_the_processors_that_use_it_up(
    quota: str, usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    assert _host.usable_cpus(_write(tmp_path, files)) == usable


def test_memory_limit_of_a_container(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/x/y\n",
            "sys/fs/cgroup/x/memory.max": "1073741824\n",  # that of an outer group binds, too
            "sys/fs/cgroup/x/y/memory.max": "2147483648\n",
        },
    )
    assert _host.memory_bytes(root) == 2**30


def test_no_memory_limit_is_the_machines_memory(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert _host._memory_limit_bytes(root) is None
    assert _host.memory_bytes(root) == _host.memory_bytes(tmp_path / "nothing here")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _host.shared_memory_bytes(tmp_path / "no" / "shm") is None
    stat = SimpleNamespace(f_frsize=4096, f_blocks=100, f_bavail=25)
    monkeypatch.setattr(os, "statvfs", lambda path: stat, raising=False)
    assert _host.shared_memory_bytes(tmp_path) == (409_600, 102_400)


def test_a_named_compiler_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert _host.cxx_compiler() is None


# -- GPUs ------------------------------------------------------------------------------------

SMI = """\
GPU-aaa, NVIDIA H200, 143771, 9.0, 580.65.06
GPU-bbb, NVIDIA A100-SXM4-80GB, 81920, 8.0, 580.65.06
"""


def test_what_nvidia_smi_says() -> None:
    first, second = (gpu for _, gpu in _gpu._parse_smi(SMI))
    assert (first.name, first.compute_capability, first.driver) == (
        "NVIDIA H200",
        (9, 0),
        "580.65.06",
    )
    assert second.memory_bytes == 81920 * 2**20
    assert second.at_least(8)
    assert not second.at_least(8, 9)


def test_messages_of_nvidia_smi_are_no_gpus() -> None:
    assert _gpu._parse_smi("NVIDIA-SMI has failed because it could not reach the driver\n") == []


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]),
        ("1,0", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]),
        ("GPU-bbb", ["NVIDIA A100-SXM4-80GB"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["NVIDIA H200"]),  # CUDA stops at the first that is not there
    ],
)
def test_cuda_visible_devices(wanted: str | None, names: list[str]) -> None:
    visible = _gpu._visible(_gpu._parse_smi(SMI), wanted)
    assert [gpu.name for gpu in visible] == names
    assert [gpu.index for gpu in visible] == list(range(len(names)))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("MIG-GPU-bbb/7/0", ["NVIDIA A100-SXM4-80GB (MIG)"]),
        ("MIG-GPU-bbb/7/0,0", ["NVIDIA A100-SXM4-80GB (MIG)", "NVIDIA H200"]),
        ("MIG-0a1b", []),  # of one of two kinds, and nobody says of which
    ],
)
def test_a_part_of_a_gpu_is_one(wanted: str, names: list[str]) -> None:
    assert [gpu.name for gpu in _gpu._visible(_gpu._parse_smi(SMI), wanted)] == names


def test_a_part_of_the_only_kind_of_gpu_is_one() -> None:
    (gpu,) = _gpu._visible([("GPU-aaa", H200)], "MIG-0a1b")
    assert (gpu.name, gpu.at_least(9), gpu.memory_bytes) == ("NVIDIA H200 (MIG)", True, 0)


class _FakeNvml:
    """What of NVML is asked, in the bytes that older bindings answer with."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.65.06"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=141 * 2**30)

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return b"GPU-aaa"


def test_what_nvml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _gpu.gpus() == (H200,)
    assert fake.open == 0, "NVML was not shut down again"


# -- what works ------------------------------------------------------------------------------


def _all(
    build: TorchBuild | None = CPU_BUILD,
    gpus: tuple[Gpu, ...] = (),
    packages: dict[str, str] | None = None,
    shm: tuple[int, int] | None = (2**34, 2**34),
    probe_error: str | None = None,
) -> tuple[machine.Capability, ...]:
    return _capabilities.capabilities(build, gpus, packages or {}, shm, probe_error)


def test_what_works_needs_no_remedy_and_what_does_not_has_one() -> None:
    for capabilities in (_all(), _all(CUDA_BUILD, (H200,), {"triton": "3.5"}), _all(build=None)):
        for capability in capabilities:
            assert bool(capability.remedy) != capability.available, capability
            assert capability.reason


@pytest.mark.parametrize(
    ("gpu", "works"),
    [
        (H200, {"bf16": True, "fp16": True, "tf32": True}),
        (V100, {"bf16": False, "fp16": True, "tf32": False}),
        (P40, {"bf16": False, "fp16": False, "tf32": False}),
    ],
)
def test_precisions_follow_the_compute_capability(gpu: Gpu, works: dict[str, bool]) -> None:
    capabilities = _all(CUDA_BUILD, (gpu,))
    assert {name: _named(capabilities, name).available for name in works} == works
    has = {H200: "9.0", V100: "7.0", P40: "6.1"}[gpu]
    told = f"{gpu.name}, compute capability {has}; fp16 needs 7.0"
    assert _named(capabilities, "fp16").reason == told


@pytest.mark.parametrize(("flags", "bf16"), [({"avx512_bf16"}, True), ({"avx2"}, False)])
def test_bf16_on_a_cpu_needs_its_instructions(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], bf16: bool
) -> None:
    monkeypatch.setattr(_host, "cpu_flags", lambda: frozenset(flags))
    capabilities = _all()
    assert _named(capabilities, "bf16").available is bf16
    assert not _named(capabilities, "tf32").available


@pytest.mark.parametrize(
    ("version", "works"), [("7.0.1", False), ("7.1.0", True), ("6.31.0", True)]
)
def test_ipykernel_7_0_cannot_send(
    monkeypatch: pytest.MonkeyPatch, version: str, works: bool, tmp_path: Path
) -> None:
    (tmp_path / "widgets/static").mkdir(parents=True)
    (tmp_path / "widgets/static/lab.js").write_text("")
    monkeypatch.setattr(
        _capabilities, "__file__", str(tmp_path / "base" / "machine" / "_capabilities.py")
    )
    live = _named(_all(packages=WIDGETS | {"ipykernel": version}), "live plots")
    assert live.available is works


def test_live_plots_need_the_built_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        _capabilities, "__file__", str(tmp_path / "base" / "machine" / "_capabilities.py")
    )
    live = _named(_all(packages=WIDGETS), "live plots")
    assert not live.available
    assert "not built" in live.reason


def test_the_64_mib_of_a_docker_container_are_too_little() -> None:
    shared = _named(_all(shm=(64 * 2**20, 64 * 2**20)), "shared memory")
    assert not shared.available
    assert "--shm-size" in shared.remedy
    assert _named(_all(shm=None), "shared memory").available
    for free_mib, enough in ((250, False), (260, True)):
        shm = (2**34, free_mib * 2**20)
        assert _named(_all(shm=shm), "shared memory").available is enough


def test_compile_needs_a_compiler_and_on_a_gpu_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "python_headers", lambda: True)
    monkeypatch.setattr(_host, "cxx_compiler", lambda: None)
    assert "g++" in _named(_all(), "compile").remedy
    monkeypatch.setattr(_host, "cxx_compiler", lambda: "/usr/bin/g++")
    assert _named(_all(), "compile").available
    assert _named(_all(CUDA_BUILD, (H200,)), "compile").remedy == "pip install triton"
    monkeypatch.setattr(_host, "python_headers", lambda: False)
    assert "Python.h" in _named(_all(), "compile").reason


@pytest.mark.parametrize("called", ["triton", "pytorch-triton", "triton-windows"])
def test_triton_has_several_names(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {called: "3.5.0"}
    monkeypatch.setattr(_packages, "version", versions.get)
    assert _packages.installed() == {"triton": "3.5.0"}


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("7.0", (7, 0)),
        ("2.13.0+cpu", (2, 13)),
        ("nightly", (0, 0)),
        ("2.x", (0, 0)),
        ("x.2", (0, 0)),
    ],
)
def test_the_release_of_a_version(version: str, release: tuple[int, int]) -> None:
    assert _packages.release(version) == release


def test_a_hidden_gpu_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu, "_all", lambda: _gpu._parse_smi(SMI))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides" in _named(_all(CUDA_BUILD), "gpu").reason
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert _named(_all(CPU_BUILD), "gpu").reason == (
        "NVIDIA H200 is there, but torch 2.13.0+cpu is a CPU build"
    )


def test_a_torch_that_does_not_import_is_told() -> None:
    broken = _named(_all(probe_error="OSError: libcudart.so: no such file"), "torch")
    assert not broken.available
    assert "libcudart" in broken.reason


@pytest.mark.parametrize(
    ("version", "works"), [("2.10.1", False), ("2.11.0+cu130", True), ("3.0.0", True)]
)
def test_a_torch_that_is_too_old_is_told(version: str, works: bool) -> None:
    told = _named(_all(TorchBuild(version)), "torch")
    assert told.available is works
    after = "; perfkit is tested with 2.11, 2.13, 2.15" if works else " is too old"
    assert told.reason == f"torch {version}{after}"


def test_all_files_name_the_tested_versions_of_torch() -> None:
    root = Path(__file__).parents[2]
    before_the_first_command = (root / "README.md").read_text().partition("pip install")[0]
    assert f"torch {_TESTED_TORCH[0]} or newer, and pip replaces" in before_the_first_command
    assert f'"torch>={_TESTED_TORCH[0]}"' in (root / "pyproject.toml").read_text()
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)", (root / "constraints.txt").read_text(), re.M)
    assert pinned in _TESTED_TORCH


def test_processors_that_this_process_may_not_use_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "logical_cpus", lambda: 4)
    monkeypatch.setattr(_host, "shared_memory_bytes", lambda: (200, 100))
    seen = machine.facts.__wrapped__()
    assert (seen.shm_bytes, seen.shm_free_bytes) == (200, 100)
    for usable, said in ((4, ""), (2, "this process may use 2 of 4 processors; count workers")):
        monkeypatch.setattr(_host, "usable_cpus", lambda usable=usable: usable)
        assert "".join(machine.facts.__wrapped__().warnings).startswith(said)
        assert bool(machine.facts.__wrapped__().warnings) is bool(said)


# -- torch, unimported -----------------------------------------------------------------------


def test_torchs_version_file_is_read_without_running_it() -> None:
    text = (
        "from typing import Optional\n__version__ = '2.11.0+cu130'\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\nraise SystemExit\n"
    )
    values = _packages._assigned_constants(text)
    assert values == {"__version__": "2.11.0+cu130", "cuda": "13.0", "hip": None}


def test_a_probe_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packages, "_PROBE", "raise OSError('libgomp is missing')")
    answer, error = _packages.probe_torch()
    assert answer is None
    assert error == "OSError: libgomp is missing"


# -- the whole -------------------------------------------------------------------------------


def test_the_doctor_knows_this_machine() -> None:
    import torch

    found = machine.doctor()
    assert found.torch is not None
    assert found.torch.version == torch.__version__
    assert found.torch.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert len(found.gpus) == torch.cuda.device_count()
    assert 1 <= found.cores <= found.logical_cpus
    assert json.loads(json.dumps(found.to_dict()))["cores"] == found.cores


def test_an_unknown_capability_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="bf16"):
        machine.facts().capability("bf17")


@pytest.mark.parametrize(("cores", "told"), [(8, "8"), (2, "2 of 8 (affinity or container limit)")])
def test_cores_that_this_process_may_not_use_are_told(cores: int, told: str) -> None:
    from dataclasses import replace

    found = replace(machine.facts(), cores=cores, logical_cpus=8)
    (line,) = [line for line in found.to_text().splitlines() if "usable cores" in line]
    assert line.split(maxsplit=2)[2] == told


def test_what_a_machine_shows_is_escaped_and_complete() -> None:
    from dataclasses import replace

    found = replace(machine.facts(), cpu="<script>alert(1)</script>", warnings=("a < b",))
    long_name = machine.stamp(device="NVIDIA RTX PRO 6000 Blackwell Server Edition")
    found = replace(found, provenance=long_name)
    page = found._repr_html_()
    assert "<script>" not in page
    assert "a &lt; b" in page
    for capability in found.capabilities:
        assert capability.name in str(found)
    assert max(len(line) for line in str(found).splitlines()) <= 100


@pytest.mark.slow
def test_live_plots_are_available_where_the_bundle_is() -> None:
    import perfkit

    bundle = Path(perfkit.__file__).parent / "widgets" / "static" / "live_plot.js"
    assert bundle.is_file(), "make install builds it"
    found = {c.name: c for c in machine.doctor().capabilities}["live plots"]
    assert found.available, found.reason
