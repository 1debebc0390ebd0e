"""How long the first steps of a training take, in processes that start cold."""

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

_TIMEOUT_S = 300


def first_steps(
    make_step: Callable[[], Callable[[], Any]], *, processes: int = 5, steps: int = 30
) -> npt.NDArray[np.float64]:
    """Time the first steps in several fresh processes.

    Args:
        make_step: builds everything and returns a function that runs one step. It is pickled by
            value, so it may be defined in the notebook.
        processes: number of processes, one after the other. If the system cannot fork (Windows),
            each imports torch.
        steps: steps per process.

    Returns:
        Milliseconds, shape processes × steps; on a GPU each step ends with a synchronisation.
        torch uses as many threads there as here.

    Raises:
        UsageError: fewer than one process or step.
        WorkloadNotPortableError: ``make_step`` cannot be sent to another process.
        MeasurementError: a process failed; the message has the end of its output.
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
        # one program that forks runs all; otherwise each program runs one
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
