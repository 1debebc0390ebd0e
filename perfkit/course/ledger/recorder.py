"""What a recording needs around it: a device, a folder, doubts, and an end of all its processes."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from perfkit.base.errors import MissingError, UsageError
from perfkit.base.files import try_writing
from perfkit.base.machine import facts
from perfkit.base.printable import printable
from perfkit.base.words import fmt_share
from perfkit.course.ledger.claims import claims
from perfkit.course.ledger.criteria import Criterion
from perfkit.course.ledger.records import BUSY as BUSY_SAID
from perfkit.course.ledger.records import Device, Record

_LONGEST_REASON = 300
MARK = "PERFKIT_RECORDING"  # in the environment of everything that a lesson starts
_BUSY = 0.25  # share of the processors in use beforehand that is noted in the record
BUSY_LOOK_S = 0.3
_SWEEPS = 20


State = Literal["recorded", "kept", "not decided", "skipped", "played", "failed"]


@dataclass(frozen=True)
class Done:
    """The result for one claim of a lesson that ran.

    Attributes:
        criterion: the claim as the lesson tests it.
        state: ``"recorded"``, ``"kept"`` (the machine was busy, so that the record of a quiet one
            stays), ``"not decided"`` (the evidence is too thin), ``"skipped"`` (this machine lacks
            something), ``"played"`` (it ran on a played GPU, so nothing was written) or
            ``"failed"``.
        reason: why nothing was written; empty if it was recorded.
        record: the record, if one was written.
        path: its file.
        seconds: how long its cell ran.
        details: traceback, if it failed.
    """

    criterion: Criterion
    state: State
    reason: str = ""
    record: Record | None = None
    path: Path | None = None
    seconds: float = 0.0
    details: str = ""


def this_device(claim: str, wanted: str | None = None) -> Device:
    """The device on which a claim is settled on this machine.

    By default claims with a GPU part use a GPU, and claims about several GPUs use several; all
    others run on the CPU with GPUs hidden.

    Raises:
        MissingError: a GPU was asked for and there is none.
    """
    machine = facts()
    n = len(machine.gpus)
    if wanted is None:
        known = claims().get(claim)
        parts = set(known.where) if known is not None else set()
        on_gpu = ("gpu" in parts and n) or ("multi" in parts and n > 1)
        wanted = machine.gpus[0].type if on_gpu else "cpu"
    if wanted == "cpu":
        return Device(machine.cpu, "cpu", 0)
    if not n or machine.gpus[0].type != wanted:
        raise MissingError(
            f"there is no GPU here that torch could use ({wanted}); see `perfkit doctor`"
        )
    return Device(machine.gpus[0].name, wanted, n)


def check_writable(folder: Path) -> None:
    """Make the folder, before lessons run for minutes.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        try_writing(folder)
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write records into {folder}: {reason}") from None


def doubts(busy: float) -> tuple[str, ...]:
    """Reasons to doubt what was measured while this share of the processors was in use."""
    if busy < _BUSY:
        return ()
    return (f"{BUSY_SAID}: {fmt_share(busy)} of its processors, with nothing of perfkit running",)


def kill_marked(mark: str) -> None:
    """Kill every process with this mark in its environment, and what it forks meanwhile."""
    for _ in range(_SWEEPS):  # a process forked meanwhile is found in the next round
        left = [p for p in psutil.process_iter() if _is_marked(p, mark)]
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=0.5)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return (
            process.environ().get(MARK) == mark
            and process.status() != psutil.STATUS_ZOMBIE
            and process.pid != os.getpid()
        )
    except (psutil.Error, OSError):
        return False


def line(text: Any) -> str:
    """The text on one line, printable and not too long."""
    return printable(" ".join(str(text).split()), _LONGEST_REASON)
