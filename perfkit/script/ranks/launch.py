"""A workload on several ranks of this machine: torchrun starts them, the results are gathered."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle

from perfkit.base.errors import (
    MissingError,
    WorkloadError,
    WorkloadFailedError,
    WorkloadHungError,
    WorkloadKilledError,
)
from perfkit.base.machine._host import usable_cpus
from perfkit.base.scratch import scratch_folder
from perfkit.base.words import fmt_count, fmt_ms, plural
from perfkit.experiment.process.portable import pack, sources
from perfkit.script.options import Options
from perfkit.script.ranks.child import Parcel, Stopped
from perfkit.script.ranks.heartbeat import Status, quiet_s
from perfkit.script.ranks.joint import RankedRun, joint
from perfkit.script.ranks.launcher import TorchRun

_LOOK_EVERY_S = 0.2
_TOLD_EVERY_S = 0.5
_KEPT_LINES = 200
_OTHERS_END_S = 10.0


@dataclass(frozen=True, eq=False)
class LaunchedRun(RankedRun):
    """The report on a workload that was launched, with what it returned.

    Attributes:
        values: what it returned, by rank; None of a generator that was stopped.
        failures: of each attempt that torchrun restarted, who ended it.
    """

    values: tuple[Any, ...] = field(default=(), repr=False)
    output: str = field(default="", repr=False)
    failures: tuple[str, ...] = ()


def run_workload(
    workload: Callable[..., Any],
    values: Mapping[str, Any],
    *,
    ranks: int,
    backend: str,
    options: Options,
    hang_s: float,
    hosts: int = 1,
    restarts: int = 0,
    on_output: Callable[[str], None],
    on_live: Callable[[str, float | None], None],
) -> LaunchedRun:
    """Run it as :func:`perfkit.launch` says; whatever happens, no process of it is left.

    Args:
        on_live: takes a line on all ranks and the seconds that are left, None where nobody knows,
            twice a second.
    """
    _check_torch(backend)
    settings = pack(dict(values), "settings")
    n_steps = options.warmup + 2 * options.steps
    parcel = Parcel(pack(workload), sources(workload), settings, backend, sys.path, n_steps)
    with scratch_folder() as folder:
        (folder / "workload").write_bytes(pickle.dumps(parcel))
        typed = [
            *("-m", "perfkit", "run", "--quiet"),
            *("--steps", str(options.steps), "--warmup", str(options.warmup)),
            *("-m", "perfkit.script.ranks.child", str(folder)),
        ]
        environment = _environment(ranks, restarts)
        jobs: list[TorchRun] = []
        with contextlib.closing(_Output(folder / "output", on_output)) as output:
            try:
                for meets in _meetings(hosts, restarts):
                    job = TorchRun(
                        ranks // hosts, typed, folder,
                        output=output.file, environment=environment, meets=meets,
                    )  # fmt: skip
                    jobs.append(job)
                to_make = n_steps if inspect.isgeneratorfunction(workload) else None
                hung = _attend(jobs, ranks, hang_s, output.pass_on, on_live, to_make)
            finally:
                for job in jobs:  # all get the signal, then each the time to end
                    job.process.terminate()
                for job in jobs:
                    job.end()
            output.pass_on()
        said = "\n".join(output.tail)
        job = next((j for j in jobs if j.process.returncode), jobs[0])
        failures = tuple(
            joint(attempt, range(ranks), ranks).sentence for attempt in job.attempts[:-1]
        )
        report = joint(job.attempt, range(ranks), ranks, hung=hung)
        failure = _failure(report, job, folder, said, hung=hung)
        if failure is not None:
            raise failure
        # a rank that has left by sys.exit() has left no value
        paths = [folder / f"value{rank}" for rank in range(ranks)]
        returned = [cloudpickle.loads(p.read_bytes()) if p.exists() else None for p in paths]
        told = [f"restarted after attempt {n}: {said}" for n, said in enumerate(failures, 1)]
        stopped = [
            f"the workload is a generator, and was stopped after {plural(one.n_steps, 'step')}, "
            f"when {fmt_count(options.steps)} were recorded (steps=): it returned nothing; a "
            "function without yield runs to its end"
            for one in returned
            if isinstance(one, Stopped)
        ]
        program = getattr(workload, "__name__", type(workload).__name__)
        report = replace(report, program=program, warnings=(*told, *report.warnings, *stopped[:1]))
        return LaunchedRun(
            **report.__dict__,
            values=tuple(None if isinstance(one, Stopped) else one for one in returned),
            output=said,
            failures=failures,
        )


class _Output:
    """What the ranks print, in a file: each line is passed on, and the last ones are kept."""

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self.file = path.open("ab")
        self._read, self._part = path.open("rb"), b""
        self._on_line = on_line
        self.tail: deque[str] = deque(maxlen=_KEPT_LINES)

    def close(self) -> None:
        self.file.close()
        self._read.close()

    def pass_on(self) -> None:
        *lines, self._part = (self._part + self._read.read()).split(b"\n")
        for line in lines:
            self.tail.append(line.decode(errors="replace"))
            self._on_line(self.tail[-1])


def _meetings(hosts: int, restarts: int) -> list[list[str]]:
    """What each torchrun is told about the others."""
    again = ["--max-restarts", str(restarts)]
    if hosts == 1:
        return [["--standalone", *again]]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = [
        *("--nnodes", str(hosts), "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", f"perfkit-{os.getpid()}-{port}"),
        *("--local-addr", "127.0.0.1"),
        *again,
    ]
    return [said] * hosts


def _check_torch(backend: str) -> None:
    import torch.distributed as dist

    if not dist.is_available() or (backend == "gloo" and not dist.is_gloo_available()):
        raise MissingError(
            "several ranks need a torch that is built with torch.distributed and gloo; the wheels "
            "of pytorch.org are"
        )


def _environment(ranks: int, restarts: int = 0) -> dict[str, str]:
    """So that the ranks find this perfkit, installed or not, and share the cores."""
    home = str(Path(__file__).absolute().parents[3])
    given = os.environ.get("PYTHONPATH", "")
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(usable_cpus() // ranks, 1))
    found = {"OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(filter(None, (home, given)))}
    if restarts:
        # In the store that torchrun shares with its ranks, those that it starts anew may find the
        # addresses of the ones before them (github.com/pytorch/pytorch/issues/135712).
        found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return found


def _attend(
    jobs: list[TorchRun],
    ranks: int,
    hang_s: float,
    pass_on: Callable[[], None],
    on_live: Callable[[str, float | None], None],
    n_steps: int | None,
) -> bool:
    """Until each torchrun has ended, or nothing moves any more, which is True."""
    job = jobs[0]
    began_s = told_s = time.monotonic()
    attempt = job.attempt
    failed_s: float | None = None
    while any(one.process.poll() is None for one in jobs):
        pass_on()
        now_s = time.monotonic()
        if attempt != job.attempt:  # started anew: the new ranks get their time to join
            attempt, began_s = job.attempt, now_s
        if any(one.process.returncode for one in jobs):
            # a torchrun that failed leaves the others without the store through which they meet
            failed_s = now_s if failed_s is None else failed_s
            if now_s - failed_s > _OTHERS_END_S:
                return False
        if now_s - told_s >= _TOLD_EVERY_S:
            told_s = now_s
            statuses = list(job.statuses().values())
            on_live(*(_line(statuses, n_steps) if statuses else (f"{ranks} ranks start", None)))
            still_s = quiet_s([s for s in statuses if not s.ended], time.time())
            if len(statuses) < ranks:
                still_s = now_s - began_s
            if still_s >= hang_s:
                return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _line(statuses: list[Status], n_steps: int | None) -> tuple[str, float | None]:
    """Words, and the seconds until a generator has made ``n_steps`` on each rank."""
    first = statuses[0]
    done = [s.n_steps for s in statuses]
    said = [f"step {fmt_count(max(done))}"]
    left_s = None
    if first.step_ms is not None:
        said.append(f"{fmt_ms(first.step_ms)} a step")
        left_s = n_steps and max(n_steps - min(done), 0) * first.step_ms / 1e3
    return " · ".join((*said, f"{len(statuses)} ranks")), left_s


def _failure(
    report: RankedRun, job: TorchRun, folder: Path, output: str, *, hung: bool
) -> WorkloadError | None:
    if not hung and job.process.returncode == 0:
        return None
    first = report.culprits[0] if report.culprits else None
    text, headline = "", ""
    if first is not None and (path := folder / f"error{first}").exists():
        text = path.read_text(encoding="utf-8")
        headline = text.strip().splitlines()[-1][:200]
    if hung:
        return WorkloadHungError(report.sentence, text or output)
    ended = next((r.ended for r in report.ranks if r.rank == first), "")
    if ended == "died":
        return WorkloadKilledError(report.sentence, output)
    if first is not None:
        return WorkloadFailedError(f"{report.sentence} {headline}".strip(), text or output)
    return WorkloadFailedError(
        f"torchrun ended with exit code {job.process.returncode}, and no rank said why: see the "
        "output",
        output,
    )
