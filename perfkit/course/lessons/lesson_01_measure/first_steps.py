"""How long the first steps of a training take, in processes that have computed nothing before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.base.errors import MeasurementError, UsageError
from perfkit.experiment.process.portable import pack

__all__ = ["first_steps"]

_TIMEOUT_S = 120


def first_steps(
    make_step: Callable[[], Callable[[], Any]], *, processes: int = 5, steps: int = 30
) -> npt.NDArray[np.float64]:
    """Time the first steps of several fresh processes.

    Args:
        make_step: builds everything and returns a function that does one step. It travels by
            value: a function of the notebook will do.
        processes: how many, one after the other. Where the system cannot fork (Windows) each
            imports torch anew.
        steps: of each.

    Returns:
        milliseconds, processes × steps; on a GPU each step ends with a synchronisation.
        torch has as many threads there as here.

    Raises:
        UsageError: fewer than one process or step.
        WorkloadNotPortableError: ``make_step`` cannot travel.
        MeasurementError: a process failed; the message has the end of what it said.
    """
    if processes < 1 or steps < 1:
        raise UsageError(f"processes and steps must be at least 1, got {processes!r} and {steps!r}")
    import torch

    program = [
        sys.executable,
        "-m",
        "perfkit.course.lessons.lesson_01_measure._first_steps_program",
    ]
    packed = pack(make_step)
    rows: list[list[float]] = []
    while len(rows) < processes:
        # a program that forks does all; one that cannot does one
        asked = processes - len(rows)
        try:
            done = subprocess.run(
                [*program, str(asked), str(steps), str(torch.get_num_threads())],
                input=packed,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"{asked} × {steps} first steps took longer than {_TIMEOUT_S} s: ask for fewer"
            ) from None
        if done.returncode or not done.stdout.strip():
            said = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
            raise MeasurementError("a process that timed first steps failed: " + " / ".join(said))
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"[")]
    return np.array(rows)
