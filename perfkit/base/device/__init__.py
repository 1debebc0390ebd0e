"""The one place that knows devices: CUDA and ROCm, MPS, XPU, and the CPU as the null device.

Everything else asks what :func:`here` or :func:`in_use` returns, once, and then that
:class:`Device`. Importing this imports no torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from perfkit.base.device.accelerator import Mps, Xpu
from perfkit.base.device.cuda import Cuda
from perfkit.base.device.kind import Device, GraphedStep, ProfilerNames

__all__ = [
    "Device",
    "GraphedStep",
    "ProfilerNames",
    "accelerators",
    "here",
    "in_use",
    "is_capturing",
    "known",
    "of",
    "pattern",
    "place_of",
    "profiler_names",
    "register",
]

# by type, those registered last first, and the CPU last
_known: dict[str, Device] = {kind.type: kind for kind in (Cuda(), Mps(), Xpu(), Device())}


def known() -> tuple[Device, ...]:
    """All kinds of device, those registered last first, and the CPU last."""
    return tuple(_known.values())


def register(device: Device) -> Callable[[], None]:
    """Make a kind of device known, in place of one of the same type; returns how to undo it."""
    replaced = _known.get(device.type)
    _remember(device)

    def undo() -> None:
        if _known.get(device.type) is device:
            del _known[device.type]
            _remember(*filter(None, [replaced]))

    return undo


def _remember(*first: Device) -> None:
    new = {device.type: device for device in first}
    others = {kind: device for kind, device in _known.items() if kind not in new}
    _known.clear()
    _known.update(new | others)
    pattern.cache_clear()


def accelerators() -> tuple[Device, ...]:
    """All kinds but the CPU, whether they are here or not."""
    return tuple(device for device in known() if not device.is_cpu)


def of(type_or_place: str) -> Device:
    """The kind of this type or place (``"cuda"``, ``"cuda:1"``).

    A type that perfkit does not know gets the null device's answers under its own name.
    """
    kind = type_or_place.partition(":")[0]
    found = _known.get(kind)
    if found is None:
        found = Device()
        found.type, found.label = kind, kind.upper()
    return found


def here() -> Device:
    """The accelerator that torch can use on this machine; else the CPU. Imports torch."""
    return next(device for device in _known.values() if device.is_available())


def in_use() -> Device:
    """The accelerator that this process uses already; else the CPU.

    Neither imports torch nor initialises a device.
    """
    return next(device for device in _known.values() if device.is_initialised())


def is_capturing() -> bool:
    """Whether a step is being captured into a graph now, so that waiting is forbidden.

    Initialises nothing. Asked in every step, so only devices that have graphs are asked.
    """
    for device in _known.values():  # noqa: SIM110 - a generator takes longer
        if device.has_graphs and device.is_capturing():
            return True
    return False


@functools.cache
def pattern(attribute: str) -> re.Pattern[str]:
    """The regular expression of an attribute of :class:`ProfilerNames`, over all known devices.

    A trace may come from any machine, so it is read with the names of all of them.
    """
    parts = []
    for names in profiler_names():
        value: str | tuple[str, ...] = getattr(names, attribute)
        parts.append(value if isinstance(value, str) else "|".join(f"^{one}" for one in value))
    return re.compile("|".join(part for part in parts if part) or r"(?!)")


def place_of(type_number: int, index: int) -> str:
    """The place of a device that a trace names by its number in ``c10::DeviceType``.

    Numbers that perfkit does not know are called ``device<number>``.
    """
    if type_number <= 0:
        return "cpu"
    for device in accelerators():
        if device.profiler is not None and type_number in device.profiler.type_numbers:
            return device.place(index)
    return f"device{type_number}:{index}"


def profiler_names() -> tuple[ProfilerNames, ...]:
    """What the profiler calls things, for each kind of device that it records."""
    return tuple(d.profiler for d in _known.values() if d.profiler is not None)
