"""Rounds of a sweep on the workers of an executor: a process pool, a cluster's client.

A round runs whole on one worker, one point after the other, so that the points that are compared
with each other ran on one machine, in turns. A round that is lost with its worker is repeated once.

A pool knows neither to stop what it runs nor to end when its own process is killed. So a round that
runs in a child of the sweep's process looks whether that still waits for it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from perfkit.base.errors import WorkloadError
from perfkit.experiment.process.portable import Packed
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.process.session import Session

# Lost for good after so many attempts.
_ATTEMPTS = 2
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Round:
    """A round to run; travels to a worker.

    Attributes:
        number: of the round, from 0.
        workload: by value.
        settings: that it reads.
        points: (index, values) in the order in which they run.
        options: of the session: seconds, step_timeout_s, start_timeout_s, warmup, seed.
        caller: process id of the sweep.
        folder: is there while the sweep waits for the round.
    """

    number: int
    workload: Packed
    settings: tuple[Any, ...]
    points: tuple[tuple[int, Mapping[str, Any]], ...]
    options: Mapping[str, Any]
    caller: int
    folder: Path


@dataclass(frozen=True)
class RoundRuns:
    """What came of it.

    Attributes:
        number: of the round.
        runs: (index of the point, its run, how many seconds it took).
        began_s, ended_s: by the worker's ``time.time``.
        host: name of its machine, to tell it from one of the same kind; not shown.
    """

    number: int
    runs: tuple[tuple[int, RunResult, float], ...] = field(repr=False)
    began_s: float = 0.0
    ended_s: float = 0.0
    host: str = ""

    @property
    def machine(self) -> str:
        """On which it ran, in words."""
        provenance = self.runs[0][1].provenance
        return f"{provenance.machine}, {provenance.device}"


def run_round(order: bytes) -> bytes:
    """In a worker: run the points of a round in turn."""
    one: Round = cloudpickle.loads(order)
    _check_awaited(one)
    began_s = time.time()
    found = []
    with Session(one.workload, one.settings, **one.options) as session, _watched(one, session):
        for index, values in one.points:
            _check_awaited(one)
            began = time.monotonic()
            run = session.run(**values)
            found.append((index, run, time.monotonic() - began))
    made = RoundRuns(one.number, tuple(found), began_s, time.time(), platform.node())
    data: bytes = cloudpickle.dumps(made)
    return data


def _check_awaited(one: Round) -> None:
    if _is_in_child(one) and not one.folder.exists():
        raise WorkloadError("the sweep has ended before this round")


def _is_in_child(one: Round) -> bool:
    """Whether this is a child of the sweep's process, as a pool's worker is.

    A cluster's worker may be on another machine, and somebody else ends it.
    """
    return os.getppid() == one.caller


@contextlib.contextmanager
def _watched(one: Round, session: Session) -> Iterator[None]:
    """Stop the run when the sweep no longer waits for it, and end with the sweep's process."""
    if not _is_in_child(one):
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_EVERY_S):
            if not _is_in_child(one):
                os._exit(1)  # the run's process ends with this one
            if not one.folder.exists():
                session.stop()

    watching = threading.Thread(target=watch, name="perfkit-round", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def rounds_on(
    executor: Executor, rounds: Sequence[Round], tell: Callable[[str], None]
) -> Iterator[RoundRuns]:
    """Run them on the executor's workers; each as it ends, whatever its number.

    Args:
        executor: any that takes functions by reference and bytes.
        rounds: what to run.
        tell: takes a sentence about each round that was lost for good.
    """
    pending: dict[Future[bytes], tuple[Round, int]] = {}

    def submit(one: Round, attempt: int) -> None:
        try:
            future = executor.submit(run_round, cloudpickle.dumps(one))
        except RuntimeError as error:  # BrokenExecutor, or it was shut down
            tell(_lost(one, error))
        else:
            pending[future] = one, attempt

    for one in rounds:
        submit(one, 1)
    try:
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                one, attempt = pending.pop(future)
                error = CancelledError() if future.cancelled() else future.exception()
                if error is None:
                    found: RoundRuns = cloudpickle.loads(future.result())
                    yield found
                elif attempt < _ATTEMPTS:
                    submit(one, attempt + 1)
                else:
                    tell(_lost(one, error))
    finally:
        for future in pending:  # interrupted: what has not begun does not begin
            future.cancel()


def _lost(one: Round, error: BaseException) -> str:
    if isinstance(error, CancelledError):
        return f"round {one.number + 1} was cancelled"
    said = " ".join(str(error).split())[:160]
    return f"round {one.number + 1} was lost with its worker ({type(error).__name__}: {said})"


def overlaps(rounds: Sequence[RoundRuns]) -> int:
    """How many of them ran while another one ran on the same machine."""
    n = 0
    for one in rounds:
        n += any(
            other is not one
            and (other.host, other.machine) == (one.host, one.machine)
            and other.began_s < one.ended_s
            and one.began_s < other.ended_s
            for other in rounds
        )
    return n
