"""Lesson 04: what workers gain and hold (A8, A10, B1, B2, C5, D5), and who reads what (D6)."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from perfkit.course.experiments._loader_workloads import (
    BATCH,
    Pictures,
    decoded_pictures,
    training_step,
)
from perfkit.course.kit.threads import one_thread
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.course.lessons.lesson_04_dataloader.lesson import (
    START,
    Numbers,
    batches_ahead,
    read_by_all,
)
from perfkit.experiment.compare.knee import Knee
from perfkit.measure.compare import compare

LESSON = "04-dataloader"
# One batch of the source: 32 pictures of 512 × 512 as float32, masks as int64.
_BATCH_BYTES = 32 * 512 * 512 * (3 * 4 + 8)
_N = 24  # pictures per timed call
_ROUNDS = 30_000  # rounds of the pure-Python transform: a few milliseconds


class Slow(Dataset[torch.Tensor]):
    """Samples that take ``ms`` to load without a core: a sleep simulates a disk or network."""

    def __init__(self, n: int, ms: float, *, uneven: bool = False) -> None:
        self.n, self.ms, self.uneven = n, ms, uneven

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        late = self.uneven and index % 32 == 31
        time.sleep(self.ms * (40 if late else 1) / 1e3)
        return torch.full((8,), float(index))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_python(index: int) -> int:
    """A pure-Python transform, which holds the interpreter all the time."""
    total = 0
    for i in range(_ROUNDS):
        total = (total * 31 + i * index) & 0xFFFF
    return total


class PurePython(Dataset[int]):
    """Samples transformed by :func:`in_python`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return in_python(index)


def _loader(data: Dataset[Any], workers: int, **kwargs: Any) -> DataLoader[Any]:
    if workers:
        kwargs = {"persistent_workers": True, "multiprocessing_context": START, **kwargs}
    return DataLoader(data, batch_size=BATCH, num_workers=workers, **kwargs)


def _drained(loader: DataLoader[Any]) -> None:
    for _ in loader:
        pass


def _epoch(loader: DataLoader[Any], step_ms: float) -> None:
    """An epoch in which a sleep simulates each step: times with it are simulated."""
    for _ in loader:
        time.sleep(step_ms / 1e3)


def _trained(loader: DataLoader[Any], step: Callable[[torch.Tensor], None]) -> None:
    for pictures in loader:
        step(pictures)


@contextlib.contextmanager
def _ended(*loaders: DataLoader[Any]) -> Iterator[None]:
    """Shut down the loaders' workers afterwards, even if the kernel keeps running."""
    try:
        yield
    finally:
        for loader in loaders:
            iterator, loader._iterator = loader._iterator, None
            if iterator is not None:
                iterator._shutdown_workers()  # type: ignore[attr-defined]


@experiment("A8", lesson=LESSON, title="batches that workers hold, predicted and measured")
def memory_of_workers(context: Context) -> Outcome:
    shape = (3, 128, 128)
    found = {
        (workers, prefetch): batches_ahead(workers=workers, prefetch=prefetch, shape=shape)
        for workers, prefetch in ((1, 1), (1, 2), (2, 2), (2, 4))
    }
    as_predicted = all(w * p == ahead.batches for (w, p), ahead in found.items())
    figures = {
        "batch_bytes": Figure(_BATCH_BYTES, "B", kind="exact"),
        "batches_per_worker": Figure(found[1, 2].batches, "1", kind="exact"),
        "eight_workers_bytes": Figure(8 * 2 * _BATCH_BYTES, "B", kind="predicted"),
        "source_bytes": Figure(8 * _BATCH_BYTES, "B", kind="predicted"),
    }
    shared = found[2, 4].shared_bytes
    if shared is not None:
        figures["shared_ratio"] = Figure(shared / found[2, 4].nbytes, "×")
    return Outcome(
        holds=as_predicted,
        figures=figures,
        headline="batches_per_worker",
        sentence="Workers hold workers × prefetch_factor batches (counted). The source counts one "
        f"batch a worker: its 1,336 MB for 8 workers are {8 * 2 * _BATCH_BYTES / 1e6:,.0f} MB with "
        "the usual prefetch_factor of 2 (predicted).",
    )


@experiment("A10", lesson=LESSON, title="the number of workers by measurement", needs=["PIL"])
def by_measurement(context: Context) -> Outcome:
    from perfkit.experiment.compare.sweep import sweep

    found = sweep(
        decoded_pictures,
        {"num_workers": [0, 1, 2, 4]},
        budget_s=max(6.0, context.budget_s),
        seed=context.seed,
        say=False,
    )
    knee: Knee = found.knee("num_workers")
    return Outcome(
        holds=knee.value > 0 and 0 not in knee.undecided,
        figures={"knee": Figure(knee.value, "1"), "best": Figure(knee.best, "1")},
        headline="knee",
        sentence=f"{knee.sentence} It depends on sample, step and cores.",
    )


@experiment("B1", lesson=LESSON, title="a DataLoader against a loop by hand", needs=["PIL"])
def by_hand(context: Context) -> Outcome:
    data, step = Pictures(_N), training_step()

    def hand_loop() -> None:
        order = list(range(len(data)))
        random.Random(context.seed).shuffle(order)
        for start in range(0, len(order), BATCH):
            step(torch.stack([data[i] for i in order[start : start + BATCH]]))

    none, two = _loader(data, 0, shuffle=True), _loader(data, 2, shuffle=True)
    with _ended(two), one_thread():
        alone, beside = (
            compare(
                hand_loop,
                lambda loader=loader: _trained(loader, step),  # type: ignore[misc]
                names=("loop by hand", name),
                budget_s=context.budget_s / 2,
                seed=context.seed,
            )
            for loader, name in ((none, "DataLoader"), (two, "DataLoader, 2 workers"))
        )
    return Outcome(
        holds=beside.low > 1,
        figures={"no_workers_ratio": Figure.of(alone), "time_ratio": Figure.of(beside)},
        headline="time_ratio",
        sentence=f"Against a loop by hand, a DataLoader without workers is {alone.ratio:.2f}× as "
        f"fast, and with two workers, which decode beside the step, {beside.ratio:.2f}×.",
    )


@experiment("B2", lesson=LESSON, title="two workers against none", needs=["PIL"])
def with_workers(context: Context) -> Outcome:
    data, step = Pictures(_N), training_step()
    none, two = _loader(data, 0), _loader(data, 2)
    with _ended(two), one_thread():
        timed = compare(
            lambda: _trained(none, step),
            lambda: _trained(two, step),
            names=("no workers", "2 workers"),
            budget_s=context.budget_s,
            seed=context.seed,
        )
    return Outcome(
        holds=timed.low > 1,
        figures={"time_ratio": Figure.of(timed)},
        headline="time_ratio",
        sentence=f"Two workers that decode beside the step make it {timed.ratio:.2f}× as fast "
        f"on {_cores()} cores.",
    )


@experiment("C5", lesson=LESSON, title="decoding beside the step, and how far ahead", needs=["PIL"])
def asynchronously(context: Context) -> Outcome:
    """Decoding beside the step is measured; the effect of depth on late samples is simulated."""
    data, step = Pictures(_N), training_step()
    inside, worker = _loader(data, 0), _loader(data, 1)
    late = Slow(64, 1.0, uneven=True)
    shallow, deep = _loader(late, 1, prefetch_factor=1), _loader(late, 1, prefetch_factor=8)
    with _ended(worker, shallow, deep):
        with one_thread():
            beside = compare(
                lambda: _trained(inside, step),
                lambda: _trained(worker, step),
                names=("in the step", "beside it"),
                budget_s=context.budget_s / 2,
                seed=context.seed,
            )
        depth = compare(
            lambda: _epoch(shallow, 10.0),
            lambda: _epoch(deep, 10.0),
            names=("1 batch ahead", "8 batches ahead"),
            budget_s=context.budget_s / 2,
            seed=context.seed,
        )
    return Outcome(
        holds=beside.low > 1,
        figures={
            "time_ratio": Figure.of(beside),
            "depth_ratio": Figure.of(depth, kind="simulated"),
        },
        headline="time_ratio",
        sentence=f"Decoding in one worker beside the step makes it {beside.ratio:.2f}× as fast; "
        f"simulated late samples: 8 batches ahead are {depth.ratio:.2f}× as fast as 1.",
    )


@experiment("D5", lesson=LESSON, title="threads against processes for pure Python")
def threads_or_processes(context: Context) -> Outcome:
    data = PurePython(32)
    processes = _loader(data, 2)

    def threads() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(in_python, range(32)))

    def alone() -> None:
        for index in range(32):
            in_python(index)

    with _ended(processes):
        by_threads = compare(
            alone,
            threads,
            names=("one thread", "two threads"),
            budget_s=context.budget_s / 3,
            seed=context.seed,
        )
        by_processes = compare(
            alone,
            lambda: _drained(processes),
            names=("one process", "two workers"),
            budget_s=context.budget_s / 3,
            seed=context.seed,
        )
        beside = compare(
            threads,
            lambda: _drained(processes),
            names=("two threads", "two workers"),
            budget_s=context.budget_s / 3,
            seed=context.seed,
        )
    return Outcome(
        holds=beside.low > 1,
        figures={
            "threads_ratio": Figure.of(by_threads),
            "processes_ratio": Figure.of(by_processes),
            "processes_to_threads_ratio": Figure.of(beside),
            "cores": Figure(_cores(), "1", kind="exact"),
        },
        headline="processes_ratio",
        sentence=f"Two processes run pure Python {by_processes.ratio:.2f}× as fast as one thread "
        f"does, two threads of one interpreter {by_threads.ratio:.2f}×.",
    )


@experiment("D6", lesson=LESSON, title="an IterableDataset read by several workers")
def duplicates(context: Context) -> Outcome:
    def all_of_them(n: int, *_: int) -> range:
        return range(n)

    def own_share(n: int, rank: int, ranks: int, worker: int, workers: int) -> range:
        return range(rank * workers + worker, n, ranks * workers)

    doubled = read_by_all(12, all_of_them, ranks=2, workers=2)
    once = read_by_all(12, own_share, ranks=2, workers=2)
    return Outcome(
        holds=set(doubled.values()) == {4} and set(once.values()) == {1},
        figures={
            "times_read": Figure(max(doubled.values()), "1", kind="exact"),
            "times_read_shared": Figure(max(once.values()), "1", kind="exact"),
        },
        headline="times_read",
        sentence="Without shares, two ranks with two workers each read every sample four times.",
    )


def plain_numbers(n: int, workers: int) -> list[int]:
    """What a loader with this many workers returns for an IterableDataset without shares."""
    data: IterableDataset[int] = Numbers(n)
    with warnings.catch_warnings():
        # torch warns about the wrong length, which is the point here
        warnings.simplefilter("ignore")
        loader = DataLoader(
            data,
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=START if workers else None,
        )
        return sorted(int(x) for x in itertools.chain(loader))
