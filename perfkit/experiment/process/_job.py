"""What the kernel sends to the process of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.experiment.process import _fingerprint


@dataclass(frozen=True)
class Job:
    """What the kernel sends: plain values and the packed workload.

    Attributes:
        workload: pickled by cloudpickle.
        values: the value of every setting.
        seed: seed of torch's, numpy's and Python's random numbers.
        sys_path, cwd, environment: the kernel's, so that its modules and files are found.
        threads: torch's thread count in the kernel; None if torch is not loaded there.
        watched_steps: number of first steps whose gradients are recorded.
        sources: lines of notebook cells by file name, for tracebacks.
        scratch: a folder that the kernel removes after the run.
        phases: whether to record where the time of the steps in live windows goes.
    """

    workload: bytes
    values: Mapping[str, Any]
    seed: int
    sys_path: list[str] = field(default_factory=list)
    cwd: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, list[str]] = field(default_factory=dict)
    threads: int | None = None
    watched_steps: int = _fingerprint.STEPS
    scratch: str = ""
    phases: bool = False

    @property
    def world_size(self) -> int:
        """How many processes it asks for."""
        return int(self.values.get("world_size", 1))


@dataclass(frozen=True)
class Ticket:
    """What each rank reads: the job, and where rank 0 finds the pipes to the kernel."""

    job: Job
    pid: int
    commands_fd: int
    events_fd: int
