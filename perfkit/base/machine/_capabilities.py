"""What works on this machine, and what to do if something does not.

These are pure functions of the facts read, so tests can pass them any machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfkit.base.extras import remedy
from perfkit.base.machine import _gpu, _host
from perfkit.base.machine._front_end import front_end_lacks
from perfkit.base.machine._gpu import Gpu
from perfkit.base.machine._packages import TorchBuild, release
from perfkit.base.words import fmt_bytes

_MIB = 2**20

# Two workers with two batches each of 64 float32 images of 3 x 224 x 224 need 154 MB of shared
# memory; Docker gives a container 64 MiB without --shm-size.
_SHM_ENOUGH_BYTES = 256 * _MIB


@dataclass(frozen=True)
class Capability:
    """Something that works on this machine, or does not.

    Attributes:
        name: short and stable, e.g. ``"bf16"``; the key in :meth:`Machine.capability`.
        available: whether it works here as intended, at full speed.
        remedy: what to do about it; empty if it is available.
    """

    name: str
    available: bool
    reason: str
    remedy: str = ""


def capabilities(
    build: TorchBuild | None,
    gpus: tuple[Gpu, ...],
    packages: Mapping[str, str],
    shm: tuple[int, int] | None,
    probe_error: str | None = None,
) -> tuple[Capability, ...]:
    """All capabilities, in display order.

    Args:
        shm: size and free bytes of ``/dev/shm``, or ``None`` if it does not exist.
        probe_error: why importing torch failed, if it was tried.
    """
    return (
        _torch_works(build, probe_error),
        _gpu_works(build, gpus),
        *_precisions(build, gpus),
        _compile_works(build, gpus, packages),
        _shared_memory_works(shm),
        _live_widgets_work(packages),
        _installed(packages, "matplotlib", "figures", remedy("matplotlib")),
        _installed(packages, "jupyterlab", "`perfkit lab`", remedy("jupyterlab")),
        _installed(packages, "pillow", "pictures in image files", remedy("PIL")),
        _installed(packages, "line_profiler", "%lprun", remedy("line_profiler")),
        _installed(packages, "memory_profiler", "%memit", remedy("memory_profiler")),
    )


# The first is the oldest that works, as in pyproject.toml: those before do not show what a graph
# keeps for its backward pass.
_TESTED_TORCH = "2.11", "2.13", "2.15"
_NEWER_TORCH = f"pip install 'torch>={_TESTED_TORCH[0]}'"


def _torch_works(build: TorchBuild | None, probe_error: str | None) -> Capability:
    if build is None:
        return Capability("torch", False, "torch is not installed", _NEWER_TORCH)
    if probe_error is not None:
        return Capability(
            "torch",
            False,
            f"torch {build.version} does not import: {probe_error}",
            "reinstall torch in this environment",
        )
    if release(build.version) < release(_TESTED_TORCH[0]):
        return Capability("torch", False, f"torch {build.version} is too old", _NEWER_TORCH)
    vector = f", vector code {build.cpu_capability}" if build.cpu_capability else ""
    tested = f"perfkit is tested with {', '.join(_TESTED_TORCH)}"
    return Capability("torch", True, f"torch {build.version}{vector}; {tested}")


def _gpu_works(build: TorchBuild | None, gpus: tuple[Gpu, ...]) -> Capability:
    if gpus:
        names = ", ".join(gpu.name for gpu in gpus)
        return Capability("gpu", True, f"{len(gpus)} visible: {names}")
    if build is not None and not build.cuda and not build.hip:
        present = _gpu.gpus()
        if present:
            return Capability(
                "gpu",
                False,
                f"{present[0].name} is there, but torch {build.version} is a CPU build",
                "install a torch built for CUDA",
            )
        return Capability(
            "gpu",
            False,
            "no GPU driver answers, and torch is a CPU build",
            "nothing needed: everything except the GPU's own figures works on the CPU",
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None and bool(_gpu._all())
    return Capability(
        "gpu",
        False,
        "CUDA_VISIBLE_DEVICES hides every GPU" if hidden else "torch sees no GPU",
        "unset CUDA_VISIBLE_DEVICES" if hidden else "check the driver with nvidia-smi",
    )


def _precisions(build: TorchBuild | None, gpus: tuple[Gpu, ...]) -> tuple[Capability, ...]:
    """bf16, fp16 and TF32: on the GPU by its compute capability, on the CPU by its flags.

    Thresholds from NVIDIA's tables: tensor cores support fp16 since 7.0 (Volta), bf16 and TF32
    since 8.0 (Ampere).
    """
    if gpus:
        first = gpus[0]
        shown = _dotted(first.compute_capability)

        def on_gpu(name: str, major: int) -> Capability:
            works = first.at_least(major)
            return Capability(
                name,
                works,
                f"{first.name}, compute capability {shown}; {name} needs {major}.0",
                "" if works else "stay with fp32 on this GPU",
            )

        return on_gpu("bf16", 8), on_gpu("fp16", 7), on_gpu("tf32", 8)
    flags = _host.cpu_flags()
    return (
        _on_cpu("bf16", flags & _host.COMPUTES_IN["bfloat16"]),
        _on_cpu("fp16", flags & _host.COMPUTES_IN["float16"]),
        Capability("tf32", False, "TF32 is a mode of NVIDIA GPUs from Ampere on", "needs a GPU"),
    )


def _on_cpu(name: str, having: frozenset[str]) -> Capability:
    if having:
        return Capability(name, True, f"the CPU has {', '.join(sorted(having))}")
    return Capability(
        name,
        False,
        f"this CPU shows no {name} instructions: autocast runs, but is emulated",
        "stay with fp32 on this CPU",
    )


def _compile_works(
    build: TorchBuild | None, gpus: tuple[Gpu, ...], packages: Mapping[str, str]
) -> Capability:
    if build is None:
        return Capability("compile", False, "torch is not installed", _NEWER_TORCH)
    if gpus and "triton" not in packages:
        return Capability(
            "compile", False, "triton is missing, which compiles for the GPU", "pip install triton"
        )
    compiler = _host.cxx_compiler()
    if compiler is None:
        return Capability(
            "compile",
            False,
            "no C++ compiler is found ($CXX, g++, clang++)",
            "install g++ (Debian, Ubuntu: apt-get install g++)",
        )
    if not _host.python_headers():
        return Capability(
            "compile",
            False,
            "Python.h is missing, which the compiled code includes",
            "install Python's headers (Debian, Ubuntu: apt-get install python3-dev)",
        )
    triton = f", triton {packages['triton']}" if gpus else ""
    return Capability("compile", True, f"C++ compiler {Path(compiler).name}{triton}")


def _shared_memory_works(shm: tuple[int, int] | None) -> Capability:
    if shm is None:
        return Capability(
            "shared memory", True, "no /dev/shm on this system: workers use files instead"
        )
    size, free = shm
    seen = f"/dev/shm: {fmt_bytes(free)} free of {fmt_bytes(size)}"
    if free >= _SHM_ENOUGH_BYTES:
        return Capability("shared memory", True, seen)
    return Capability(
        "shared memory",
        False,
        f"{seen}; DataLoader workers hand over their batches through it",
        "docker run --shm-size=1g, or free what is there",
    )


def _live_widgets_work(packages: Mapping[str, str]) -> Capability:
    """Live plots need the widget packages, a kernel that can send from threads, and the bundle."""
    name = "live plots"
    missing = [p for p in ("anywidget", "ipywidgets", "ipykernel") if p not in packages]
    if missing:
        return Capability(name, False, f"missing: {', '.join(missing)}", remedy("anywidget"))
    kernel = packages["ipykernel"]
    if release(kernel) == (7, 0):
        return Capability(
            name,
            False,
            f"ipykernel {kernel} cannot send from user threads",
            "pip install 'ipykernel!=7.0.*'",
        )
    if not any((Path(__file__).parents[2] / "widgets" / "static").glob("*.js")):
        return Capability(
            name,
            False,
            "the browser's part of perfkit is not built",
            "in a clone: pip install -e .",
        )
    lacks, helps = front_end_lacks()
    if lacks:
        return Capability(name, False, lacks, helps)
    seen = f"anywidget {packages['anywidget']}, ipykernel {kernel}"
    return Capability(name, True, seen)


def _installed(packages: Mapping[str, str], package: str, use: str, remedy: str) -> Capability:
    if package in packages:
        return Capability(package, True, f"{package} {packages[package]}: {use}")
    return Capability(package, False, f"{package} is not installed: {use}", remedy)


def _dotted(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"
