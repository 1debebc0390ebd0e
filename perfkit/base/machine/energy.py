"""Counters of energy: Intel's and AMD's of the CPU (RAPL), and NVML's of NVIDIA GPUs.

Each counts joules since some moment in the past, of a whole package or board and everything that
runs on it, so that two readings give the energy in between. Linux shows RAPL below
``/sys/class/powercap``, since 2020 to root alone (CVE-2020-8694: it leaks secrets), and virtual
machines and most containers not at all. NVML has the counter since Volta; other makers' devices
are not read.

Sources: Linux, Documentation/power/powercap; NVML API reference,
``nvmlDeviceGetTotalEnergyConsumption`` (millijoules since the driver was loaded).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.base.device import in_use
from perfkit.base.machine.gpu_state import _asked, _nvml
from perfkit.base.printable import printable

_POWERCAP = Path("/sys/class/powercap")
_MOST_GPUS = 16


@dataclass(frozen=True)
class EnergyReading:
    """All counters at one moment.

    Attributes:
        joules: what is counted, e.g. ``"CPU package 0"``, ``"GPU 0"`` → its counter in J.
        wraps_at: the same → after how many joules it begins anew; missing where it does not.
        unread: why a counter that is there cannot be read, one sentence each.
    """

    joules: Mapping[str, float]
    wraps_at: Mapping[str, float]
    unread: tuple[str, ...] = ()


def read_energy() -> EnergyReading:
    """The counters that this process may read; those of GPUs on which it has a context.

    Never raises.
    """
    joules: dict[str, float] = {}
    wraps: dict[str, float] = {}
    unread: list[str] = []
    try:
        _read_rapl(joules, wraps, unread)
    except Exception:  # a kernel that shows something else says nothing
        joules, wraps = {}, {}
    with contextlib.suppress(Exception):  # a driver that fails says nothing
        joules.update(_of_gpus())
    return EnergyReading(joules, wraps, tuple(dict.fromkeys(unread)))


def joules_between(before: EnergyReading, after: EnergyReading) -> dict[str, float]:
    """What each counter that both readings have counted in between, in J."""
    found = {}
    for name, now in after.joules.items():
        if name not in before.joules:
            continue
        spent = now - before.joules[name]
        if spent < 0:  # it began anew: once, in less than a minute
            spent += after.wraps_at.get(name, 0.0)
        if spent >= 0:
            found[name] = spent
    return found


def _read_rapl(joules: dict[str, float], wraps: dict[str, float], unread: list[str]) -> None:
    """The packages, and their memory where it is counted apart."""
    for folder in sorted(_POWERCAP.glob("*-rapl:*")):
        try:
            kind = (folder / "name").read_text().strip()
        except OSError:
            continue
        number = folder.name.partition(":")[2].partition(":")[0]
        if kind.startswith("package"):
            name = f"CPU package {printable(kind.partition('-')[2] or number, 8)}"
        elif kind == "dram":
            name = f"memory of package {printable(number, 8)}"
        else:
            continue  # psys holds the packages, core and uncore are in them
        try:
            joules[name] = int((folder / "energy_uj").read_text()) / 1e6
            wraps[name] = int((folder / "max_energy_range_uj").read_text()) / 1e6
        except PermissionError:
            unread.append("the CPU counts its energy (RAPL), but only root may read it")
        except (OSError, ValueError):
            continue


def _of_gpus() -> dict[str, float]:
    device = in_use()
    if device.is_cpu or (nvml := _nvml()) is None:
        return {}
    found = {}
    for index in device.devices()[:_MOST_GPUS]:
        millijoules = _of_gpu(nvml, device.uuid(index))
        if millijoules is not None:
            found[f"GPU {index}"] = millijoules / 1e3
    return found


def _of_gpu(nvml: Any, uuid: str | None) -> float | None:
    if uuid is None:
        return None
    handle = _asked(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
    if handle is None:
        return None
    found = _asked(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    return None if found is None else float(found)
