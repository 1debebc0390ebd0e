"""Which machine is this, what works on it, and the stamp that every result carries.

:func:`stamp` is cheap and never imports torch. :func:`facts` adds what works here and is read
once. :func:`doctor` also starts a fresh Python that imports torch and asks it for its GPUs, so
that neither CUDA nor torch is initialised in the process that asks.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

from perfkit import _gpu, _host
from perfkit._display import Shown
from perfkit._gpu import Gpu
from perfkit._version import __version__
from perfkit.errors import UsageError

__all__ = [
    "Capability",
    "Gpu",
    "Kind",
    "Machine",
    "Provenance",
    "TorchBuild",
    "doctor",
    "facts",
    "stamp",
]

Kind = Literal["measured here", "recorded", "simulated", "predicted"]

_GIB = 2**30
_MIB = 2**20

# Two workers that keep two batches of 64 float32 images of 3 x 224 x 224 each need 154 MB of
# shared memory; Docker gives a container 64 MiB unless it is told --shm-size.
_SHM_ENOUGH_BYTES = 256 * _MIB

# Importing torch on a cold disk can take half a minute; more means that something hangs.
_PROBE_TIMEOUT_S = 120.0

_PACKAGES = (
    "anywidget",
    "ipykernel",
    "ipython",
    "ipywidgets",
    "jupyterlab",
    "line_profiler",
    "matplotlib",
    "memory_profiler",
    "nbclient",
    "nbconvert",
    "notebook",
    "numpy",
    "nvidia-ml-py",
    "pillow",
    "torchvision",
    "triton",
)


@dataclass(frozen=True)
class Provenance(Shown):
    """Where a figure comes from: which machine, which versions, when, and by what command.

    Attributes:
        kind: ``"measured here"``, ``"recorded"``, ``"simulated"`` or ``"predicted"``.
        machine: the computer in words, e.g. ``"AMD EPYC 7B13, 2 cores, 24 GiB"``.
        device: ``"cpu"`` or the GPU's name, e.g. ``"NVIDIA H200"``.
        versions: python, torch, perfkit, and cuda and driver where there are some.
        when_utc: ISO 8601 to the second, in UTC.
        command: what was run, where one command says it.
        seed: of the random numbers, where there was one.
    """

    kind: str
    machine: str
    device: str
    versions: Mapping[str, str]
    when_utc: str
    command: str | None = None
    seed: int | None = None

    def sentence(self) -> str:
        """One line for under a figure: kind, device, machine, torch, time."""
        where = self.machine if self.device == "cpu" else f"{self.device}, {self.machine}"
        torch = self.versions.get("torch")
        parts = [where, f"torch {torch}" if torch else "no torch", self._minute()]
        lead = "recorded on" if self.kind == "recorded" else f"{self.kind}:"
        return f"{lead} {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; :meth:`from_dict` takes it back."""
        return asdict(self) | {"versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UsageError: a field is missing, or one is there that provenance does not have.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise UsageError(f"this is no provenance: {error}") from None

    def _minute(self) -> str:
        return self.when_utc[:16].replace("T", " ") + " UTC"


@dataclass(frozen=True)
class Capability:
    """Something that works on this machine, or does not.

    Attributes:
        name: short and stable, e.g. ``"bf16"``; the key in :meth:`Machine.capability`.
        available: whether it works here the way it is meant to, at speed.
        reason: what was seen that says so.
        remedy: what to do about it; empty where it is available.
    """

    name: str
    available: bool
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class TorchBuild:
    """The torch that this Python would import.

    Attributes:
        version: e.g. ``"2.13.0+cpu"``.
        cuda: version of the CUDA that it was built with; ``None`` for a CPU build.
        hip: version of ROCm, likewise.
        cpu_capability: the vector code that torch picks on this CPU, e.g. ``"AVX512"``.
            Known to :func:`doctor` only.
        threads: how many threads it computes with by default. Known to :func:`doctor` only.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    cpu_capability: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Machine(Shown):
    """This computer, and what of perfkit works on it.

    Attributes:
        cpu: the processor's name.
        cores: logical processors that this process may use (affinity and container quota).
        logical_cpus: logical processors of the machine.
        ram_bytes: memory that this process may use (the container's limit counts).
        shm_bytes: size of ``/dev/shm``; ``None`` where there is no such thing.
        shm_free_bytes: what of it is free.
        system: operating system and architecture.
        python: version of the interpreter.
        torch: the torch that would be imported; ``None`` where there is none.
        gpus: the GPUs that CUDA would show to this process.
        packages: version by name, of the packages that matter here and are installed.
        capabilities: what works, each with its reason and remedy.
        provenance: when this was read.
        warnings: what makes these facts doubtful.
    """

    cpu: str
    cores: int
    logical_cpus: int
    ram_bytes: int
    shm_bytes: int | None
    shm_free_bytes: int | None
    system: str
    python: str
    torch: TorchBuild | None
    gpus: tuple[Gpu, ...]
    packages: Mapping[str, str]
    capabilities: tuple[Capability, ...]
    provenance: Provenance
    warnings: tuple[str, ...] = field(default=())

    def capability(self, name: str) -> Capability:
        """The capability of that name.

        Raises:
            UsageError: there is none of that name.
        """
        for capability in self.capabilities:
            if capability.name == name:
                return capability
        names = ", ".join(c.name for c in self.capabilities)
        raise UsageError(f"no capability is called {name!r}; there are: {names}")

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types: what ``perfkit doctor --json`` prints."""
        return asdict(self) | {
            "packages": dict(self.packages),
            "provenance": self.provenance.to_dict(),
            "sentence": machine_sentence(),
        }


def stamp(
    kind: Kind = "measured here",
    *,
    command: str | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> Provenance:
    """Provenance of a result that is made now, on this machine.

    Args:
        kind: which of the four kinds of figure it belongs to.
        command: what was run, where one command says it.
        seed: of the random numbers, where there was one.
        device: ``"cpu"`` or a GPU's name, for who knows better than the default: the first
            visible GPU where torch is built for one, else the CPU.

    Raises:
        UsageError: ``kind`` is not one of the four.
    """
    if kind not in get_args(Kind):
        raise UsageError(f"a figure cannot be {kind!r}; it is one of: {', '.join(get_args(Kind))}")
    return Provenance(
        kind=kind,
        machine=machine_sentence(),
        device=_default_device() if device is None else device,
        versions=dict(_versions()),
        when_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        seed=seed,
    )


@functools.cache
def machine_sentence() -> str:
    """The computer in words: ``"AMD EPYC 7B13, 2 cores, 24 GiB"``."""
    cores = _host.usable_cpus()
    ram_gib = _host.memory_bytes() / _GIB
    return f"{_host.cpu_model()}, {cores} core{'s' * (cores != 1)}, {ram_gib:.0f} GiB"


@functools.cache
def facts() -> Machine:
    """This machine, read once; imports no torch and leaves CUDA alone."""
    return _machine(_torch_build(), _gpus_for(_torch_build()), probe_error=None)


def doctor() -> Machine:
    """This machine and what of perfkit works on it, read now.

    A fresh Python imports torch and asks it for its GPUs (1-3 s), so that a broken torch or
    driver is reported instead of taking this process down, and CUDA stays out of it.
    """
    build = _torch_build()
    if build is None:
        return _machine(None, (), probe_error=None)
    answer, error = _probe_torch()
    if answer is None:
        return _machine(build, _gpus_for(build), probe_error=error)
    build = TorchBuild(
        version=answer["version"],
        cuda=answer["cuda"],
        hip=answer["hip"],
        cpu_capability=answer["cpu_capability"],
        threads=answer["threads"],
    )
    return _machine(build, _merged_gpus(answer["gpus"], _gpus_for(build)), probe_error=None)


def _machine(build: TorchBuild | None, gpus: tuple[Gpu, ...], probe_error: str | None) -> Machine:
    shm = _host.shared_memory_bytes()
    packages = _packages()
    warnings = []
    cores, logical = _host.usable_cpus(), _host.logical_cpus()
    if cores < logical:
        warnings.append(
            f"this process may use {cores} of {logical} processors; count workers and threads "
            f"by {cores}"
        )
    return Machine(
        cpu=_host.cpu_model(),
        cores=cores,
        logical_cpus=logical,
        ram_bytes=_host.memory_bytes(),
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=build,
        gpus=gpus,
        packages=packages,
        capabilities=(
            _torch_works(build, probe_error),
            _gpu_works(build, gpus),
            *_precisions(build, gpus),
            _compile_works(build, gpus, packages),
            _shared_memory_works(shm),
            _live_widgets_work(packages),
            _installed(packages, "jupyterlab", "`perfkit lab`", "pip install 'perfkit[lab]'"),
            _installed(packages, "pillow", "the course's image files", "pip install pillow"),
            _installed(packages, "line_profiler", "%lprun", "pip install line_profiler"),
            _installed(packages, "memory_profiler", "%memit", "pip install memory_profiler"),
        ),
        provenance=stamp(device=gpus[0].name if gpus else "cpu"),
        warnings=tuple(warnings),
    )


# -- what works ------------------------------------------------------------------------------


def _torch_works(build: TorchBuild | None, probe_error: str | None) -> Capability:
    if build is None:
        return Capability("torch", False, "torch is not installed", "pip install 'torch>=2.8'")
    if probe_error is not None:
        return Capability(
            "torch",
            False,
            f"torch {build.version} does not import: {probe_error}",
            "reinstall torch in this environment",
        )
    if _release(build.version) < (2, 8):
        return Capability(
            "torch", False, f"torch {build.version} is too old", "pip install 'torch>=2.8'"
        )
    vector = f", vector code {build.cpu_capability}" if build.cpu_capability else ""
    return Capability("torch", True, f"torch {build.version}{vector}")


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
            "nothing needed: every lesson has a part that runs on the CPU",
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

    Thresholds after NVIDIA's tables: tensor cores take fp16 from 7.0 (Volta) on, bf16 and TF32
    from 8.0 (Ampere) on.
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
        _on_cpu("bf16", flags & {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}),
        _on_cpu("fp16", flags & {"amx_fp16", "avx512_fp16", "asimdhp"}),
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
        return Capability("compile", False, "torch is not installed", "pip install 'torch>=2.8'")
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
    seen = f"/dev/shm: {free / _MIB:,.0f} MiB free of {size / _MIB:,.0f} MiB"
    if free >= _SHM_ENOUGH_BYTES:
        return Capability("shared memory", True, seen)
    return Capability(
        "shared memory",
        False,
        f"{seen}; DataLoader workers hand over their batches through it",
        "docker run --shm-size=1g, or free what lies there",
    )


def _live_widgets_work(packages: Mapping[str, str]) -> Capability:
    """Live plots need the widget packages, a kernel that can send from threads, and the bundle."""
    name = "live plots"
    missing = [p for p in ("anywidget", "ipywidgets", "ipykernel") if p not in packages]
    if missing:
        return Capability(
            name, False, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    kernel = packages["ipykernel"]
    if _release(kernel) == (7, 0):
        return Capability(
            name,
            False,
            f"ipykernel {kernel} cannot send from user threads",
            "pip install 'ipykernel!=7.0.*'",
        )
    if not any((Path(__file__).parent / "widgets" / "static").glob("*.js")):
        return Capability(
            name,
            False,
            "the browser's part of perfkit is not built",
            "in a clone: pip install -e .",
        )
    seen = f"anywidget {packages['anywidget']}, ipykernel {kernel}"
    return Capability(name, True, seen)


def _installed(packages: Mapping[str, str], package: str, use: str, remedy: str) -> Capability:
    if package in packages:
        return Capability(package, True, f"{package} {packages[package]}: {use}")
    return Capability(package, False, f"{package} is not installed: {use}", remedy)


# -- readers ---------------------------------------------------------------------------------


def _torch_build() -> TorchBuild | None:
    """Version and CUDA of the torch that would be imported, read from its file, not imported."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "version"):
        return TorchBuild(str(torch.__version__), torch.version.cuda, torch.version.hip)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
        values = _assigned_constants(text)
        return TorchBuild(values["__version__"] or "unknown", values.get("cuda"), values.get("hip"))
    except (OSError, SyntaxError, KeyError):
        version = _version("torch")
        return TorchBuild(version) if version else None


def _assigned_constants(text: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Constant):
            constant = node.value.value
            text_or_none = None if constant is None else str(constant)
            values |= {t.id: text_or_none for t in targets if isinstance(t, ast.Name)}
    return values


def _gpus_for(build: TorchBuild | None) -> tuple[Gpu, ...]:
    """The GPUs that this torch can use: none for a CPU build."""
    return _gpu.gpus() if build is not None and build.cuda else ()


_PROBE = """
import json, torch
gpus = []
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        gpus.append([p.name, p.total_memory, [p.major, p.minor]])
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(), "gpus": gpus,
}))
"""


def _probe_torch() -> tuple[dict[str, Any] | None, str | None]:
    """Ask torch in a fresh Python: its answer, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_PROBE_TIMEOUT_S:.0f} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer, None
    said = done.stderr.strip().splitlines()
    return None, said[-1] if said else f"its process ended with code {done.returncode}"


def _merged_gpus(told: list[list[Any]], from_driver: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """What torch lists is the truth about order and visibility; the driver's adds its version."""
    driver = from_driver[0].driver if from_driver else ""
    return tuple(
        Gpu(index, name, int(memory), (int(cc[0]), int(cc[1])), driver, "torch")
        for index, (name, memory, cc) in enumerate(told)
    )


@functools.cache
def _versions() -> Mapping[str, str]:
    build = _torch_build()
    versions = {"python": platform.python_version(), "perfkit": __version__}
    if build is not None:
        versions["torch"] = build.version
        gpus = _gpus_for(build)
        if gpus and build.cuda:
            versions |= {"cuda": build.cuda, "driver": gpus[0].driver}
    return versions


@functools.cache
def _default_device() -> str:
    gpus = _gpus_for(_torch_build())
    return gpus[0].name if gpus else "cpu"


def _packages() -> dict[str, str]:
    found = {name: _version(name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for a version that does not start with numbers."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return 0, 0
    return int(parts[0]), int(parts[1])


def _dotted(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"
