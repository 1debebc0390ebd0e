"""What loader workers come to own of data that their parent holds.

A forked worker shares its parent's pages until somebody writes to them; then it gets a copy of
that page (4 KiB) for itself. Python writes to every object that it touches: its reference count
lies in the object. So reading a list of small objects copies the list, worker by worker. The
bytes of a tensor, an array or a file map have no such counts in them.

Only forked workers share so. The ones that are spawned (the only kind on Windows, the default on
macOS) get a pickled copy of the data from the start; torch sends tensors through shared memory.
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
from perfkit.show._text import table

__all__ = ["WorkerPages", "why_unavailable", "worker_pages"]

_WAIT_S = 60.0


@dataclass(frozen=True, repr=False)
class WorkerPages:
    """Bytes that each worker came to own by reading everything once.

    Attributes:
        data_bytes: by arm, what the parent holds, as told.
        grown: by arm, growth of the unique set size of each worker.
    """

    data_bytes: Mapping[str, int]
    grown: Mapping[str, tuple[int, ...]]

    def per_worker(self, name: str) -> float:
        """Mean growth of a worker in bytes."""
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
    """Why this cannot be measured here; empty where it can."""
    if sys.platform != "linux":
        return f"{sys.platform} does not fork its workers: each gets a copy, or shared memory"
    return ""


def worker_pages(arms: Mapping[str, tuple[Any, int]], *, workers: int = 2) -> WorkerPages:
    """Fork workers that read every item of the data, and measure their own pages (psutil's USS).

    All workers of an arm read and are measured while the others stand still, so a page that they
    share counts for none of them. Python's cyclic garbage collector is off in the workers: its
    passes would write to every container of the parent, whatever the arm.

    Args:
        arms: name → (data, how many bytes it is). Data has ``len`` and items that are bytes or
            tensors; the largest element of a tensor is sought, so that its bytes are read.
        workers: how many at a time.

    Raises:
        UsageError: fewer than two workers (a page of a map that only one process reads counts as
            its own).
        MissingError: this platform does not fork.
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
                # Python 3.12 warns of any fork beside threads; a DataLoader forks just so
                warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
                process.start()
            theirs.close()
            running.append((process, ours))
        pipes = [pipe for _, pipe in running]
        # what a worker touches to answer and to measure itself is there before the first figure
        _answers(pipes, "warm")
        _answers(pipes, "measure")
        before = _answers(pipes, "measure")
        _answers(pipes, "read")
        after = _answers(pipes, "measure")
    finally:
        # all ends first: a later worker inherited our end of an earlier one's pipe
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
    """In the worker: obey until the parent closes its end."""
    import psutil
    import torch

    parents_end.close()
    gc.disable()
    torch.set_num_threads(1)  # the parent's thread pool did not come along
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
        # NumPy's maximum needs no memory of its own; torch's reductions leave some behind
        total += len(item) if isinstance(item, bytes) else int(item.numpy().max())
    return total
