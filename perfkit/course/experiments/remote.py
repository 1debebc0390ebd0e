"""Lesson 05: a remote store: faster devices (A4), a local copy (C3), a cache (C4).

The distance is a sleep before each response of a server on this machine. Requests and bytes are
counted; all times are simulated, because the sleep sets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perfkit.advice.profiling import profile as profiled
from perfkit.course.ledger.recording import Context, Figure, Outcome, experiment
from perfkit.course.lessons.lesson_05_remote_data.lesson import decode, make_samples, pack, unpack
from perfkit.course.lessons.lesson_05_remote_data.store import Store
from perfkit.measure.compare import compare

LESSON = "05-remote-data"
LATENCY_MS = 10.0
_N, _BATCH = 64, 8
_FEW = _BATCH  # samples per timed call
_OLD_MS, _NEW_MS = 20.0, 10.0  # a step on the two simulated devices
_NEEDS = ("aiohttp", "fsspec")
_STATED = f"with {LATENCY_MS:g} ms added to each request"


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Samples read one by one from any file system that fsspec knows."""

    def __init__(self, paths: list[str], files: Any) -> None:
        self.paths, self.files = paths, files

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return decode(self.files.cat_file(self.paths[index]))


class _Places:
    """The same samples in a store, and the ways to read them."""

    def __init__(self, folder: Path, seed: int) -> None:
        import fsspec

        self.far, self.near = folder / "far", folder / "near"
        self.far.mkdir()
        self.near.mkdir()
        self.keys = make_samples(self.far, _N, seed=seed)
        shards = pack(self.far, self.keys, per_shard=_BATCH)
        self.store = Store(self.far, latency_ms=LATENCY_MS)
        self.urls = [self.store.url(key) for key in self.keys]
        self.shards = [self.store.url(key) for key in shards]
        self.near_paths = [str(self.near / key) for key in self.keys]
        self.http = fsspec.filesystem("http", skip_instance_cache=True)
        self.disk = fsspec.filesystem("file")
        self.cache = fsspec.filesystem(
            "simplecache",
            target_protocol="http",
            cache_storage=str(folder / "cache"),
            skip_instance_cache=True,
        )

    def remote(self, n: int = _N) -> Files:
        return Files(self.urls[:n], self.http)

    def cached(self, n: int = _N) -> Files:
        return Files(self.urls[:n], self.cache)

    def local(self, n: int = _N) -> Files:
        return Files(self.near_paths[:n], self.disk)

    def copy(self, n: int = _N) -> None:
        self.http.get(self.urls[:n], self.near_paths[:n])

    def read_shards(self) -> None:
        for url in self.shards:
            for _, data in unpack(self.http.cat_file(url)):
                decode(data)


@contextmanager
def _places(context: Context) -> Iterator[_Places]:
    places = _Places(context.folder, context.seed)
    try:
        yield places
    finally:
        places.store.close()


def _read(data: Files, step_ms: float = 0.0) -> None:
    """One pass over the samples; a sleep simulates each step."""
    for _ in DataLoader(data, _BATCH):
        time.sleep(step_ms / 1e3)


def _trainer(data: Files, device: str) -> Callable[[], None]:
    """Two epochs of a small network over these samples."""

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(32, 4),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(2):
            for pictures, labels in DataLoader(data, _BATCH):
                optimizer.zero_grad()
                outputs = model(pictures.to(device).float() / 255)
                nn.functional.cross_entropy(outputs, labels.to(device)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    return train


def _waits(data: Files, device: str) -> tuple[str, float]:
    """The verdict of perfkit on a training with these samples, and its share of data wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is small: more threads would only wait for each other
    try:
        profile = profiled(_trainer(data, device), steps=4, warmup=2, lines=False)
    finally:
        torch.set_num_threads(threads)
    return profile.diagnosis.bound_by, profile.breakdown.shares()["data wait"]


@experiment("A4", lesson=LESSON, title="a device twice as fast before a slow store", needs=_NEEDS)
def faster_device(context: Context) -> Outcome:
    """The devices are simulated: each step sleeps. The verdicts are for a real network."""
    with _places(context) as places:
        places.copy()
        bound, far_wait = _waits(places.remote(), context.device)
        _, near_wait = _waits(places.local(), context.device)
        budget_s = context.budget_s / 3
        far, near = places.remote(_FEW), places.local(_FEW)
        at_store = compare(
            lambda: _read(far, _OLD_MS),
            lambda: _read(far, _NEW_MS),
            names=("store, old device", "store, new device"),
            budget_s=budget_s,
        )
        at_disk = compare(
            lambda: _read(near, _OLD_MS),
            lambda: _read(near, _NEW_MS),
            names=("local, old device", "local, new device"),
            budget_s=budget_s,
        )
        swapped = compare(
            lambda: _read(far, _NEW_MS),
            lambda: _read(near, _OLD_MS),
            names=("store, new device", "local, old device"),
            budget_s=budget_s,
        )
    waiting = _BATCH * LATENCY_MS
    return Outcome(
        holds=bound == "data" and near_wait < far_wait and swapped.ratio > 1,
        figures={
            "store_ratio": Figure.of(at_store, kind="simulated"),
            "store_predicted_ratio": Figure(
                (waiting + _OLD_MS) / (waiting + _NEW_MS), "×", kind="predicted"
            ),
            "local_ratio": Figure.of(at_disk, kind="simulated"),
            "old_local_ratio": Figure.of(swapped, kind="simulated"),
            "store_wait_share": Figure(far_wait, "1", kind="simulated"),
            "local_wait_share": Figure(near_wait, "1", kind="simulated"),
        },
        headline="store_ratio",
        sentence=f"Simulated: a device twice as fast makes the loop {at_store.ratio:.2f}× as fast "
        f"before a store {_STATED}, and is {swapped.ratio:.1f}× as slow there as the old one with "
        "a local disk.",
    )


@experiment("C3", lesson=LESSON, title="a store against a copy on the local disk", needs=_NEEDS)
def local_copy(context: Context) -> Outcome:
    with _places(context) as places:
        copying = places.store.count(places.copy)
        afterwards = places.store.count(lambda: _read(places.local()))
        far, near = places.remote(_FEW), places.local(_FEW)
        timed = compare(
            lambda: _read(far),
            lambda: _read(near),
            names=("store", "local copy"),
            budget_s=context.budget_s / 2,
        )
        once = compare(
            lambda: _read(far),
            lambda: places.copy(_FEW),
            names=("reading from the store", "copying the same"),
            budget_s=context.budget_s / 2,
        )
    return Outcome(
        holds=afterwards.requests == 0 and timed.ratio > 1,
        figures={
            "copy_requests": Figure(copying.requests, "1", kind="exact"),
            "epoch_requests": Figure(afterwards.requests, "1", kind="exact"),
            "epoch_ratio": Figure.of(timed, kind="simulated"),
            "copy_ratio": Figure.of(once, kind="simulated"),
        },
        headline="epoch_ratio",
        sentence=f"Simulated: a local copy is read {timed.ratio:.0f}× as fast as a store "
        f"{_STATED}, and copying is {once.ratio:.1f}× as fast as reading once, because a copy asks "
        "for several files at a time; the copy then asks the store for nothing (counted).",
    )


@experiment("C4", lesson=LESSON, title="a read-through cache before a store", needs=_NEEDS)
def read_through_cache(context: Context) -> Outcome:
    with _places(context) as places:
        none = places.store.count(lambda: _read(places.remote()))
        cold = places.store.count(lambda: _read(places.cached()))
        warm = places.store.count(lambda: _read(places.cached()))
        shards = places.store.count(places.read_shards)
        far, near = places.remote(_FEW), places.cached(_FEW)
        timed = compare(
            lambda: _read(far),
            lambda: _read(near),
            names=("no cache", "cache, warm"),
            budget_s=context.budget_s,
        )
    return Outcome(
        holds=warm.requests == 0 and cold.requests >= none.requests == _N and timed.ratio > 1,
        figures={
            "warm_ratio": Figure.of(timed, kind="simulated"),
            "uncached_requests": Figure(none.requests, "1", kind="exact"),
            "cold_requests": Figure(cold.requests, "1", kind="exact"),
            "warm_requests": Figure(warm.requests, "1", kind="exact"),
            "shard_requests": Figure(shards.requests, "1", kind="exact"),
            "uncached_bytes": Figure(none.bytes, "B", kind="exact"),
        },
        headline="warm_ratio",
        sentence=f"An epoch from a warm cache asks a store {_STATED} for nothing (counted) and is "
        f"{timed.ratio:.0f}× as fast (simulated); a cold one asks {cold.requests} times, without a "
        f"cache it is {none.requests}.",
    )
