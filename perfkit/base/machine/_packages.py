"""What is installed: which torch would be imported, without importing it, and which packages."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

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


# Other distribution names of the same packages: torch's nightly builds, and Windows.
_ALSO_CALLED = {"triton": ("pytorch-triton", "triton-windows")}


def installed() -> dict[str, str]:
    """Name → version of the installed ones."""
    found = {}
    for name in _PACKAGES:
        for called in (name, *_ALSO_CALLED.get(name, ())):
            seen = version(called)
            if seen is not None:
                found[name] = seen
                break
    return found


def version(package: str) -> str | None:
    """The installed version of a package, or ``None``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for a version that does not start with numbers."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return 0, 0
    return int(parts[0]), int(parts[1])


# Importing torch from a cold disk can take half a minute; if it takes longer, something hangs.
_PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class TorchBuild:
    """The torch that this Python would import.

    Attributes:
        version: e.g. ``"2.13.0+cpu"``.
        cuda: the CUDA version it was built with; ``None`` for a CPU build.
        hip: the ROCm version, likewise.
        cpu_capability: the vector code that torch uses on this CPU, e.g. ``"AVX512"``; only known
            to :func:`doctor`.
        threads: its default number of threads; only known to :func:`doctor`.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    cpu_capability: str | None = None
    threads: int | None = None


def torch_build() -> TorchBuild | None:
    """Version and CUDA of the torch that would be imported, read from its files."""
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
        installed = version("torch")
        return TorchBuild(installed) if installed else None


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


_PROBE = """
import json, sys
sys.path.append(sys.argv[1])
import torch
from perfkit.base.device import here
gpu = here()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(),
    "gpus": [
        [gpu.type, gpu.name(i), gpu.total_bytes(i) or 0, gpu.compute_capability(i)]
        for i in range(gpu.count())
    ],
}))
"""
# so that the new process finds perfkit where this one did
_ROOT = str(Path(__file__).parents[3])


def probe_torch() -> tuple[dict[str, Any] | None, str | None]:
    """Ask torch in a new Python process; return its answer, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, _ROOT],
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
