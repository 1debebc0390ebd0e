"""Lesson 19: listings that are run, two clocks around one step, and a loader behind its queue."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.data import DataLoader, Dataset

# The queue fills while nobody takes a batch: as long as the workers need, and this much more.
_TO_FILL = 1.5
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Listing:
    """What became of a listing.

    Attributes:
        name: of the listing.
        state: ``"runs"``, ``"raises"``, ``"runs, another result"``, or ``"not tried"`` where a
            package that it needs is not installed.
        said: what it computed, or the exception with its first line.
    """

    name: str
    state: Literal["runs", "raises", "runs, another result", "not tried"]
    said: str

    def __str__(self) -> str:
        return f"{self.name:<24} {self.state}: {self.said}"


def run_listing(name: str, listing: Callable[[], tuple[bool, str]], *, needs: str = "") -> Listing:
    """Run a listing once and tell what became of it. Its warnings are not shown.

    Args:
        name: of the listing.
        listing: returns whether its result is what its article says, and the result in words.
        needs: an optional package; where it is missing, the listing was not tried.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            right, said = listing()
    except ModuleNotFoundError as error:
        if needs and (error.name or "").partition(".")[0] == needs:
            return Listing(name, "not tried", f"{needs} is not installed here")
        return Listing(name, "raises", f"ModuleNotFoundError: {error}")
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return Listing(name, "raises", f"{type(error).__name__}: {first}")
    return Listing(name, "runs" if right else "runs, another result", said)


@dataclass(frozen=True)
class Clocked:
    """Two clocks around the same steps, in ms a step.

    Attributes:
        read_ms: median of a stopwatch around each step, without a wait of its own.
        true_ms: time of all steps with one wait at the end, over their number.
    """

    read_ms: float
    true_ms: float


def clocked(step: Callable[[], object], wait: Callable[[], object], *, n: int = 6) -> Clocked:
    """Time ``n`` steps with both clocks at once, after one step that does not count.

    Args:
        step: one step; it may leave work in the device's queue.
        wait: returns when the device has done all work.
        n: number of steps.
    """
    step()
    wait()
    begin = time.perf_counter()
    read = []
    for _ in range(n):
        start = time.perf_counter()
        step()
        read.append(1e3 * (time.perf_counter() - start))
    wait()
    return Clocked(statistics.median(read), 1e3 * (time.perf_counter() - begin) / n)


class SlowBatches(Dataset[torch.Tensor]):
    """Batches that each take a worker ``ms`` milliseconds of sleep.

    Args:
        n: number of batches.
        ms: a worker's time for one.
    """

    def __init__(self, n: int, ms: float) -> None:
        self.n, self.ms = n, ms

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int) -> torch.Tensor:
        if at >= self.n:
            raise IndexError(at)
        time.sleep(self.ms / 1e3)
        return torch.tensor([float(at)])


def steps_behind_a_queue(
    *,
    n: int = 64,
    batch_ms: float = 40.0,
    step_ms: float = 2.0,
    workers: int = 2,
    prefetch_factor: int = 8,
) -> list[float]:
    """Milliseconds of each step of a loop whose loader had time to fill its queue before.

    Both the loader and the step sleep; the workers and the queue are torch's own.

    Args:
        n: steps.
        batch_ms: a worker's time for a batch.
        step_ms: the time of a step that has its batch.
        workers, prefetch_factor: as for ``DataLoader``.
    """
    loader = DataLoader(
        SlowBatches(n, batch_ms),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        timeout=_PATIENCE_S,
    )
    batches = iter(loader)  # the workers begin here
    time.sleep(_TO_FILL * prefetch_factor * batch_ms / 1e3)
    found = []
    for _ in range(n):
        start = time.perf_counter()
        next(batches)
        time.sleep(step_ms / 1e3)
        found.append(1e3 * (time.perf_counter() - start))
    return found
