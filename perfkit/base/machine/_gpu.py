"""List GPUs by asking the driver instead of torch.

Asking torch for a GPU's name initialises CUDA, after which the process can no longer fork
DataLoader workers that use CUDA. The driver's library (NVML, through the package ``nvidia-ml-py``)
and its program ``nvidia-smi`` give the same information without that.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, replace
from typing import Any

from perfkit.base.machine._host import _output

_QUERY = "uuid,name,memory.total,compute_cap,driver_version"
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may use.

    Attributes:
        index: its index among the GPUs that CUDA shows, from 0.
        memory_bytes: its total memory.
        compute_capability: e.g. ``(9, 0)``; ``None`` if the driver does not report it.
        driver: the driver's version, e.g. ``"580.65.06"``.
        source: who reported it: ``"NVML"``, ``"nvidia-smi"`` or ``"torch"``.
        type: torch's type of the device, e.g. ``"cuda"``.
    """

    index: int
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None
    driver: str
    source: str
    type: str = "cuda"

    def at_least(self, major: int, minor: int = 0) -> bool:
        """Whether its compute capability is known and at least ``major.minor``."""
        capability = self.compute_capability
        return capability is not None and capability >= (major, minor)


def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs visible under ``CUDA_VISIBLE_DEVICES``; empty if there are none."""
    return _visible(_all(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def _all() -> list[tuple[str, Gpu]]:
    """(uuid, GPU) pairs of all GPUs known to the driver."""
    found = _from_nvml()
    return _from_nvidia_smi() if found is None else found


def _from_nvml() -> list[tuple[str, Gpu]] | None:
    """(uuid, GPU) pairs from NVML, or ``None`` if its Python package or library is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            gpu = Gpu(
                index=index,
                name=_text(nvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                compute_capability=(int(major), int(minor)),
                driver=driver,
                source="NVML",
            )
            found.append((_text(nvml.nvmlDeviceGetUUID(handle)), gpu))
        return found
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _from_nvidia_smi() -> list[tuple[str, Gpu]]:
    listing = _output(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
    return _parse_smi(listing)


def _parse_smi(listing: str) -> list[tuple[str, Gpu]]:
    """Parse the output of ``nvidia-smi --query-gpu``, skipping messages between its lines."""
    found: list[tuple[str, Gpu]] = []
    for line in listing.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5 or not cells[0].startswith("GPU-"):
            continue
        uuid, name, mib, capability, driver = cells
        major, _, minor = capability.partition(".")
        known = major.isdigit() and minor.isdigit()
        gpu = Gpu(
            index=len(found),
            name=name,
            memory_bytes=int(mib) * _MIB if mib.isdigit() else 0,
            compute_capability=(int(major), int(minor)) if known else None,
            driver=driver,
            source="nvidia-smi",
        )
        found.append((uuid, gpu))
    return found


def _visible(found: list[tuple[str, Gpu]], wanted: str | None) -> tuple[Gpu, ...]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does: in its order, up to the first bad entry."""
    if wanted is None:
        return tuple(gpu for _, gpu in found)
    chosen: list[Gpu] = []
    for entry in wanted.split(","):
        entry = entry.strip()
        if entry.isdigit():
            match = [gpu for _, gpu in found[int(entry) : int(entry) + 1]]
        elif entry.startswith("MIG-"):
            match = _part_of(entry, found)
        else:
            match = [gpu for uuid, gpu in found if entry and uuid.startswith(entry)]
        if len(match) != 1:
            break
        chosen.append(replace(match[0], index=len(chosen)))
    return tuple(chosen)


def _part_of(entry: str, found: list[tuple[str, Gpu]]) -> list[Gpu]:
    """The MIG instance that CUDA shows for this entry; its memory is unknown.

    Older drivers include the GPU's name (``MIG-GPU-…/1/0``), newer ones do not (``MIG-…``). Then
    any GPU represents it, if all are of the same kind.
    """
    whole = [gpu for uuid, gpu in found if entry.startswith(f"MIG-{uuid}/")]
    if not whole and len({gpu.name for _, gpu in found}) == 1:
        whole = [gpu for _, gpu in found[:1]]
    return [replace(gpu, name=f"{gpu.name} (MIG)", memory_bytes=0) for gpu in whole]


def _text(value: str | bytes) -> str:
    # Older NVML bindings return bytes.
    return value.decode() if isinstance(value, bytes) else value
