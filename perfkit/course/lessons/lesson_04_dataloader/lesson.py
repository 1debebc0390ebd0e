"""Lesson 04: counts what DataLoader workers hold and do; the exercise on shares."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from perfkit.course.kit.exercise import Exercise, NotYet
from perfkit.course.kit.message import Message
from perfkit.course.kit.picture import Picture, picture

#: How the lesson starts its workers. A class defined in a notebook needs ``fork``; a class from a
#: module works with any start method.
START = "fork" if sys.platform.startswith("linux") else None

# Workers are idle when nothing was loaded for this long. Fewer batches than predicted may also mean
# that a worker has not had a core yet, so then wait longer.
_SETTLED_S = 0.3
_STARVED_S = 4.0
_LONGEST_S = 20.0


class Counted(Dataset[Any]):
    """Tensors of one size, with a count over all processes of how many were loaded.

    Args:
        n: number of samples.
        shape: shape of each, float32.
    """

    def __init__(self, n: int, shape: Sequence[int]) -> None:
        self.n, self.shape = n, tuple(shape)
        self.loaded = multiprocessing.get_context(START).Value("q", 0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.loaded.get_lock():
            self.loaded.value += 1
        return torch.zeros(self.shape)


@dataclass(frozen=True)
class Ahead:
    """What a loader holds in advance once its workers are idle.

    Attributes:
        batches: batches loaded but not taken.
        nbytes: bytes of their tensors.
        shared_bytes: growth of the machine's shared memory, without the batch that was taken
            (includes other programs' use); None if it cannot be read.
    """

    batches: int
    nbytes: int
    shared_bytes: int | None


def batches_ahead(
    *, workers: int, prefetch: int, batch_size: int = 4, shape: Sequence[int] = (1,)
) -> Ahead:
    """Take one batch from a loader, wait until its workers are idle, and count."""
    before = _shared_memory()
    enough = 2 * workers * prefetch + 4
    data = Counted(enough * batch_size, shape)
    loader = DataLoader(
        data,
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        multiprocessing_context=START,
    )
    batches = iter(loader)
    taken = next(batches)
    deadline = time.monotonic() + _LONGEST_S
    last, since = -1, time.monotonic()
    predicted = (workers * prefetch + 1) * batch_size
    while time.monotonic() < deadline:
        if data.loaded.value != last:
            last, since = data.loaded.value, time.monotonic()
        elif time.monotonic() - since > (_SETTLED_S if last >= predicted else _STARVED_S):
            break
        time.sleep(0.01)
    ahead = last // batch_size - 1
    after = _shared_memory()
    shared = None if before is None or after is None else after - before - taken.nbytes
    del batches
    return Ahead(ahead, ahead * taken.nbytes, shared)


def draw_ahead(arms: Sequence[tuple[int, int]], held: Sequence[Ahead]) -> Picture:
    """Bars of the bytes predicted, dots for the shared memory measured.

    Args:
        arms: (workers, prefetch_factor) for each bar.
        held: results of :func:`batches_ahead`, in the same order.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 2.6), layout="constrained", facecolor="white")
    ax = figure.subplots()
    names = [f"{workers} × {prefetch}" for workers, prefetch in arms]
    sizes = [ahead.nbytes / 1e6 for ahead in held]
    label = "predicted: workers × prefetch × batch"
    ax.bar(names, sizes, width=0.5, label=label, color="#0072b2")
    found = [
        (name, ahead.shared_bytes / 1e6)
        for name, ahead in zip(names, held, strict=True)
        if ahead.shared_bytes is not None
    ]
    if found:
        label = "measured here: growth of shared memory"
        ax.plot(*zip(*found, strict=True), "o", label=label, color="#d55e00")
    ax.set(ylabel="MB", xlabel="workers × prefetch_factor")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    predicted = "; ".join(f"{n}: {size:.1f} MB" for n, size in zip(names, sizes, strict=True))
    measured = "; ".join(f"{name}: {size:.1f} MB" for name, size in found) or "not read here"
    return picture(
        figure,
        alt=f"Workers × prefetch_factor. Bars, predicted: {predicted}. "
        f"Dots, growth of shared memory: {measured}.",
    )


def _shared_memory() -> int | None:
    """Bytes of shared memory in use, which holds tensors from workers (Linux)."""
    try:
        return shutil.disk_usage("/dev/shm").used
    except OSError:
        return None


class Numbers(IterableDataset[int]):
    """The numbers 0 … n - 1; each worker gets all of them."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.n))


class Stream(IterableDataset[int]):
    """The numbers 0 … n - 1, of which each worker of each rank reads its share.

    Args:
        n: how many numbers.
        share: ``share(n, rank, ranks, worker, workers)`` returns the numbers for this worker.
        rank, ranks: index and number of training processes.
    """

    def __init__(
        self, n: int, share: Callable[..., Iterable[int]], *, rank: int = 0, ranks: int = 1
    ) -> None:
        self.n, self.share, self.rank, self.ranks = n, share, rank, ranks

    def __iter__(self) -> Any:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(self.share(self.n, self.rank, self.ranks, worker, workers))


def read_by_all(
    n: int, share: Callable[..., Iterable[int]], *, ranks: int, workers: int
) -> Counter[int]:
    """How often each number is read in one epoch over all ranks, each with its own loader."""
    seen: Counter[int] = Counter()
    for rank in range(ranks):
        data = Stream(n, share, rank=rank, ranks=ranks)
        loader = DataLoader(
            data, batch_size=None, num_workers=workers, multiprocessing_context=START
        )
        seen.update(int(number) for number in loader)
    return seen


Answer = Callable[..., Iterable[int]]

_CASES = ((12, 1, 1), (12, 1, 3), (12, 2, 2), (13, 2, 3), (5, 3, 2), (3, 4, 2))


def _shares(answer: Answer, n: int, ranks: int, workers: int) -> list[list[int]]:
    shares = []
    for rank in range(ranks):
        for worker in range(workers):
            given = answer(n, rank, ranks, worker, workers)
            if given is None:
                raise NotYet("your function returns nothing yet: return the numbers to read")
            if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
                raise NotYet(f"return a range or a list of numbers, got {type(given).__name__}")
            shares.append([int(number) for number in given])
    return shares


def _show(answer: Answer) -> Message:
    shares = _shares(answer, 12, 2, 2)
    names = [f"rank {r}, worker {w}" for r in range(2) for w in range(2)]
    return Message(
        "12 samples, 2 ranks with 2 workers each",
        items=tuple(f"{name}: {share}" for name, share in zip(names, shares, strict=True)),
    )


def _check(answer: Answer) -> list[str]:
    for n, ranks, workers in _CASES:
        who = f"{n} samples, {ranks} ranks, {workers} workers each"
        shares = _shares(answer, n, ranks, workers)
        seen = Counter(number for share in shares for number in share)
        strange = sorted(set(seen) - set(range(n)))
        if strange:
            raise NotYet(f"{who}: there is no sample {strange[0]}")
        doubled = sorted(number for number, times in seen.items() if times > 1)
        if doubled:
            number = doubled[0]
            raise NotYet(f"{who}: sample {number} is read {seen[number]} times")
        lost = sorted(set(range(n)) - set(seen))
        if lost:
            raise NotYet(f"{who}: sample {lost[0]} is never read")
        sizes = [len(share) for share in shares]
        if max(sizes) - min(sizes) > 1:
            raise NotYet(
                f"{who}: one worker reads {max(sizes)} samples and another {min(sizes)}; shares "
                "may differ by one"
            )
    seen = read_by_all(12, answer, ranks=2, workers=2)
    if seen != Counter(range(12)):
        raise NotYet("in real workers some samples are read twice or not at all")
    return [
        "in six arrangements, one worker of one rank reads each sample, once",
        "shares differ by at most one sample",
        "two real loaders with two workers each agree",
    ]


share_of = Exercise(
    "each sample once",
    spec=(
        "share(n, rank, ranks, worker, workers) returns the numbers, of 0 … n - 1, that one "
        "worker of one rank reads.",
        "Together, all workers of all ranks read each number exactly once.",
        "Shares differ by at most one number.",
    ),
    hints=(
        "Give every worker of every rank a number of its own: how many readers are there, and "
        "which of them is this?",
        "There are ranks * workers readers, and this is number rank * workers + worker.",
        "range(start, stop, step) takes every step-th number: which start, and which step?",
    ),
    show=_show,
    check=_check,
)
