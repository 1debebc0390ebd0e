"""Rounds of a sweep on the workers of an executor: a process pool, a cluster's client.

A round runs whole on one worker, one point after the other, so that the points that are compared
with each other ran on one machine, in turns. A round that is lost with its worker is repeated once.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from perfkit.experiment.process.portable import Packed
from perfkit.experiment.process.result import RunResult
from perfkit.experiment.process.session import Session

__all__ = ["Round", "RoundRuns", "overlaps", "rounds_on"]

# Lost for good after so many attempts.
_ATTEMPTS = 2


@dataclass(frozen=True)
class Round:
    """A round to run; travels to a worker.

    Attributes:
        number: of the round, from 0.
        workload: by value.
        settings: that it reads.
        points: (index, values) in the order in which they run.
        options: of the session: seconds, step_timeout_s, start_timeout_s, warmup, seed.
    """

    number: int
    workload: Packed
    settings: tuple[Any, ...]
    points: tuple[tuple[int, Mapping[str, Any]], ...]
    options: Mapping[str, Any]


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
    began_s = time.time()
    found = []
    with Session(one.workload, one.settings, **one.options) as session:
        for index, values in one.points:
            began = time.monotonic()
            run = session.run(**values)
            found.append((index, run, time.monotonic() - began))
    made = RoundRuns(one.number, tuple(found), began_s, time.time(), platform.node())
    data: bytes = cloudpickle.dumps(made)
    return data


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
                error = future.exception()
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
