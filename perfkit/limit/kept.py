"""Measured peaks, kept in the user's folder: one file for each machine and device."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from perfkit.base.arguments import check_text, shown
from perfkit.base.device import here, in_use, of
from perfkit.base.errors import MissingError, PerfkitError, UsageError
from perfkit.base.files import write_atomically
from perfkit.base.home import folder
from perfkit.base.machine import machine_sentence
from perfkit.base.structs import as_struct
from perfkit.limit.measured import measured_peaks
from perfkit.limit.peaks import Peaks

_SCHEMA = "perfkit.peaks/1"


def peaks(
    device: str | None = None, *, again: bool = False, folder: str | os.PathLike[str] | None = None
) -> Peaks:
    """The best that this machine reaches: measured once, in some seconds, then kept.

    FLOP/s of matrix products in each number format, memory at several working sets, copies between
    host and device, the disk, and the time to start an operator. With these known, ``%torchprof``
    also says how far a step is from its lower bound on this machine.

    Peaks measured while the machine was busy are too low: they are kept, but measured again
    when you next ask for them.

    Args:
        device: ``"cpu"`` or a place such as ``"cuda:1"``; by default the accelerator if torch sees
            one, else the CPU.
        again: measure again, even if there are peaks of this machine.
        folder: whose disk to measure; by default the current folder.

    Returns:
        A :class:`perfkit.limit.peaks.Peaks`. Print it for a table with the data sheet next to it.

    Raises:
        UsageError: ``device`` is not a string, or ``folder`` is not a folder.
        MissingError: torch is not installed, or sees no such device.
        MeasurementError: nothing could be measured.

    Example::

        >>> found = perfkit.peaks()
        >>> found.flop_per_s["float32"].flop_per_s.best
    """
    check_text("device", device)
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise UsageError(f"folder is {shown(folder)}; give the path of a folder")
    if folder is not None and not os.path.isdir(folder):  # noqa: PTH112 - also a pipe's name
        raise UsageError(f"folder is {shown(folder)}, which is not a folder here")
    known = None if again else kept_peaks(device)
    if known is not None and not known.is_spoiled:
        return known
    found = measured_peaks(device, folder)
    if found.provenance.kind == "measured here":
        try:
            _keep(found)
        except UsageError as error:  # they took some seconds: they are told all the same
            return replace(
                found, notes=(*found.notes, f"not kept, so the next call measures again: {error}")
            )
    return found


def kept_peaks(device: str | None = None) -> Peaks | None:
    """The peaks of this machine that were measured before; None if there are none. Never raises.

    On the CPU those of as many threads as torch uses now. Imports torch.

    Args:
        device: as for :func:`peaks`.
    """
    try:
        content = json.loads(_path(*_which(device)).read_bytes())
        if content.pop("schema", None) != _SCHEMA:
            return None
        return as_struct(content, Peaks)
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        PerfkitError,
        RuntimeError,
        ImportError,
    ):
        return None


def peaks_in_use() -> Peaks | None:
    """The kept peaks of the accelerator that this process uses, else of its CPU; None without.

    Initialises no device; never raises.
    """
    try:
        device = in_use()
        place = "cpu" if device.is_cpu else device.place(device.current())
    except (RuntimeError, AssertionError):  # a device that has failed
        return None
    return kept_peaks(place)


def _which(device: str | None) -> tuple[str, int]:
    """Name of a device and torch's number of threads."""
    import torch

    kind = here() if device is None else of(device)
    if kind.is_cpu:
        return "cpu", int(torch.get_num_threads())
    if not kind.is_available():
        raise MissingError(f"torch sees no {kind.label} device")
    number = "" if device is None else device.partition(":")[2]
    return kind.name(int(number) if number.isdigit() else kind.current()), 0


def _keep(found: Peaks) -> None:
    path = _path(found.device, found.threads if found.device == "cpu" else 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep the peaks in {path.parent}: {error.strerror}") from None
    plain = {"schema": _SCHEMA, **asdict(found)}
    text = msgspec.json.format(msgspec.json.encode(plain), indent=1)
    write_atomically(path, lambda part: part.write_bytes(text))


def _path(device: str, threads: int) -> Path:
    """A name that tells the device, and a digest that tells the machine."""
    whole = f"{device}|{threads}|{machine_sentence()}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:10]
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:40]
    return folder() / "peaks" / f"{name}-{digest}.json"
