"""How much of their parent's data loader workers copy.

A forked worker shares its parent's pages until someone writes to one; then it gets its own copy of
that page (4 KiB). Python writes to every object it touches, because the reference count is in the
object. So reading a list of small objects copies the list, once per worker. The bytes of a tensor,
an array or a memory-mapped file contain no reference counts.

Only forked workers share pages. Spawned workers (the only kind on Windows, the default on macOS)
get a pickled copy of the data from the start; torch sends tensors through shared memory.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.base.words import fmt_bytes
from perfkit.show.plain_text import table

_WAIT_S = 60.0


@dataclass(frozen=True, repr=False)
class WorkerPages:
    """Bytes that each worker copied by reading everything once.

    Attributes:
        data_bytes: arm → bytes that the parent holds, as given.
        grown: arm → growth of each worker's unique set size, in bytes.
    """

    data_bytes: Mapping[str, int]
    grown: Mapping[str, tuple[int, ...]]

    def per_worker(self, name: str) -> float:
        """Mean growth per worker, in bytes."""
        found = self.grown[name]
        return sum(found) / len(found)

    def __repr__(self) -> str:
        rows = [
            (
                name,
                fmt_bytes(self.data_bytes[name]),
                fmt_bytes(self.per_worker(name)),
                f"{self.per_worker(name) / self.data_bytes[name]:.2f} ×",
            )
            for name in self.grown
        ]
        return table(("held as", "data", "own pages, each worker", "of the data"), rows)


def why_unavailable() -> str:
    """Why this cannot be measured here; empty if it can."""
    if sys.platform != "linux":
        return f"{sys.platform} does not fork its workers: each gets a copy, or shared memory"
    return ""


def worker_pages(arms: Mapping[str, tuple[Any, int]], *, workers: int = 2) -> WorkerPages:
    """Fork workers that read every item of the data, and measure their own pages (psutil's USS).

    All workers of an arm are measured while the others are idle, so a page that they share counts
    for none of them. Python's cyclic garbage collector is off in the workers, because it would
    write to every container of the parent in every arm.

    Args:
        arms: name → (data, its size in bytes). Data has ``len`` and items that are bytes or
            tensors; workers look for the largest element of a tensor, so that its bytes are read.
        workers: number of workers at a time.

    Raises:
        UsageError: there are fewer than two workers (a mapped page that only one process reads
            counts as its own).
        MissingError: this platform cannot fork.
        MeasurementError: a worker died or did not answer.
    """
    if workers < 2:
        raise UsageError(f"worker_pages needs at least two workers, not {workers}")
    reason = why_unavailable()
    if reason:
        raise MissingError(reason)
    grown = {name: _measure(data, workers) for name, (data, _) in arms.items()}
    return WorkerPages({name: size for name, (_, size) in arms.items()}, grown)


def _measure(data: Any, workers: int) -> tuple[int, ...]:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    gc.collect()
    running: list[tuple[Any, Any]] = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_read_all, args=(data, theirs, ours), daemon=True)
            with warnings.catch_warnings():
                # Python 3.12 warns about any fork with threads; a DataLoader forks the same way
                warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
                process.start()
            theirs.close()
            running.append((process, ours))
        pipes = [pipe for _, pipe in running]
        # pages that a worker needs to answer and measure itself are touched before the first figure
        _answers(pipes, "warm")
        _answers(pipes, "measure")
        before = _answers(pipes, "measure")
        _answers(pipes, "read")
        after = _answers(pipes, "measure")
    finally:
        # close all ends first: a later worker inherited our end of an earlier one's pipe
        for _, pipe in running:
            pipe.close()
        for process, _ in running:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
    return tuple(max(b - a, 0) for a, b in zip(before, after, strict=True))


def _answers(pipes: list[Any], order: str) -> list[int]:
    """Send an order to all workers, then wait for all of them."""
    for pipe in pipes:
        pipe.send(order)
    found = []
    for pipe in pipes:
        try:
            if not pipe.poll(_WAIT_S):
                raise MeasurementError(f"a worker did not answer within {_WAIT_S:g} s")
            found.append(pipe.recv())
        except EOFError:
            raise MeasurementError("a worker died while it read the data") from None
    return found


def _read_all(data: Any, pipe: Any, parents_end: Any) -> None:
    """In the worker: execute orders until the parent closes its end."""
    import psutil
    import torch

    parents_end.close()
    gc.disable()
    torch.set_num_threads(1)  # a fork does not copy the parent's thread pool
    process = psutil.Process()
    try:
        while True:
            order = pipe.recv()
            if order == "measure":
                pipe.send(int(process.memory_full_info().uss))
            else:
                _read(data, len(data) if order == "read" else min(len(data), 1))
                pipe.send(0)
    except (EOFError, KeyboardInterrupt):
        return


def _read(data: Any, count: int) -> int:
    total = 0
    for i in range(count):
        item = data[i]
        # NumPy's maximum allocates nothing; torch's reductions leave some memory behind
        total += len(item) if isinstance(item, bytes) else int(item.numpy().max())
    return total
