"""Data sets and loaders, as their objects show them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch

from perfkit.advice.findings import Finding, amdahl, fact
from perfkit.advice.state import alive, state
from perfkit.base.by_rows import by_rows, changes_alike
from perfkit.base.machine._host import memory_bytes
from perfkit.base.python_objects import as_arrays, copied_bytes
from perfkit.base.source import line_of, name_of, only_line_with
from perfkit.base.words import fmt_bytes, fmt_count, fmt_s, fmt_share, plural
from perfkit.measure.live import Live

# A worker that copies less does not seem to grow. Of all workers so much is worth a word, or this
# part of the memory.
_SOME_BYTES, _MANY_BYTES, _MUCH_MEMORY = 4 * 2**20, 100 * 2**20, 0.1
# Below this share of padding, sorting or cutting batches gains less than it costs.
_LEAST_PADDING = 0.3
# Starting the workers again is worth a word from this share of the run on.
_LEAST_STARTS, _MANY_STARTS = 0.05, 8
# Samples of a table: smaller ones cost more to fetch and collate than to copy.
_SMALL_SAMPLE_BYTES = 4096
_LEAST_BATCH = 16
# To keep an item gains nothing where it takes less to make; of memory, what may be kept.
_LEAST_ITEM_S, _MOST_KEPT = 3e-5, 0.25
# Views of what is so many times larger.
_VIEW = 4
# What an item takes beside its numbers: its tensors are Python objects.
_OBJECT_BYTES = 1024
# Objects of a data set that are looked at for what they hold.
_MOST_HELD = 256
# Each tensor from a worker has a file descriptor of its own, some 50 µs; of fewer nobody knows.
_MANY_TENSORS = 64

_LOADER = r"\bDataLoader\("


@state
def not_sharded(live: Live) -> Iterator[Finding]:
    """Each worker of an iterable data set yields all of it: the first batches of two are equal."""
    from torch.utils.data import IterableDataset

    for use, loader in alive(live.loaders):
        n, is_iterable = loader.num_workers, isinstance(loader.dataset, IterableDataset)
        if n < 2 or not (use.equal_batches and is_iterable):
            continue
        yield fact(
            "iterable-not-sharded",
            f"Each of the {n} workers yields the whole data set: every example comes {n} times an "
            "epoch",
            (f"the first two batches of {name_of(loader.dataset)}, of two workers, were the same",),
            "def __iter__(self):\n"
            "    info = torch.utils.data.get_worker_info()\n"
            "    first, step = (0, 1) if info is None else (info.id, info.num_workers)\n"
            "    for shard in range(first, self.n_shards, step):  # this worker's part",
            line=line_of(type(loader.dataset).__iter__),
            acts_on=("data wait",),
            gain=(float(n), f"an epoch has 1/{n} of the steps"),
            changes=f"an epoch has 1/{n} of the steps, with each example once",
        )


@state
def python_objects(live: Live) -> Iterator[Finding]:
    """Workers read many Python objects: each reading copies the page that it is on."""
    for _, loader in alive(live.loaders):
        most = many_objects(loader) if loader.num_workers else None
        if most is None:
            continue
        each_bytes, name, held = most
        all_bytes = each_bytes * loader.num_workers
        if all_bytes < min(_MANY_BYTES, _MUCH_MEMORY * memory_bytes()):
            continue
        what = f"self.{name} of {name_of(loader.dataset)}" if name else "the data set"
        yield fact(
            "python-objects-in-workers",
            f"{plural(loader.num_workers, 'worker')} copy a data set of Python objects, page by "
            f"page: about {fmt_bytes(all_bytes)}",
            (
                f"{what} is a {type(held).__name__} of {fmt_count(len(held))}, about "
                f"{fmt_bytes(each_bytes)}: reading an object writes its reference count, so each "
                "worker gets its own copy of the page",
            ),
            "# one array or tensor has one reference count: its pages stay shared\n"
            + as_arrays(f"self.{name}" if name else "data", held),
            line=line_of(type(loader.dataset).__init__) or only_line_with(_LOADER),
        )


def many_objects(loader: Any) -> tuple[int, str, Any] | None:
    """What each worker copies of the largest container of its data set, the container's name, and
    it; None for little.
    """
    import multiprocessing

    context = loader.multiprocessing_context or multiprocessing
    if str(context.get_start_method()) != "fork":  # spawned workers copy all at once
        return None
    kinds, dataset = (list, dict, tuple), loader.dataset
    held = {"": dataset} if isinstance(dataset, kinds) else getattr(dataset, "__dict__", {})
    some = [(name, one) for name, one in list(held.items())[:64] if isinstance(one, kinds)]
    n_bytes, name = max(((round(copied_bytes(one)), name) for name, one in some), default=(0, ""))
    return None if n_bytes < _SOME_BYTES else (n_bytes, name, held[name])


@state
def restarted(live: Live) -> Iterator[Finding]:
    """Workers are started anew for each epoch, or an epoch is begun for each batch."""
    run_s = live.ended_s - live.began_s
    for use, loader in alive(live.loaders):
        if use.n_starts < 2 or use.start_s < _LEAST_STARTS * run_s:
            continue
        has_length = hasattr(loader.dataset, "__len__")
        is_often = has_length and use.n_starts > max(live.n_steps / 2, _MANY_STARTS)
        share = min(use.start_s / run_s, 1.0)
        # that of an evaluation goes through all of it
        if is_often and use.n_seen <= 2 * use.n_starts and len(loader) > 2:
            yield fact(
                "epoch-for-each-batch",
                "The loader begins a new epoch for each batch",
                (
                    f"{use.n_starts} began in {plural(live.n_steps, 'step')}, each with the order "
                    f"of {plural(len(loader.dataset), 'item')}: {fmt_share(share)} of the run",
                ),
                "def forever(loader):\n    while True:\n        yield from loader\n"
                "batches = forever(loader)  # once, before the loop\n"
                "batch = next(batches)  # in it: each item comes once an epoch",
                line=only_line_with(r"\bnext\(\s*iter\(") or only_line_with(_LOADER),
                acts_on=("data wait",),  # no bound: the order is made with the first batch
            )
            continue
        if loader.persistent_workers or not loader.num_workers:
            continue
        yield fact(
            "workers-restarted",
            f"{plural(loader.num_workers, 'worker')} are started again for every epoch: "
            f"{fmt_share(share)} of the run",
            (
                f"{use.n_starts} starts, each with its first batch, took {fmt_s(use.start_s)} of "
                f"{fmt_s(run_s)}",
            ),
            "loader = DataLoader(..., persistent_workers=True)",
            line=only_line_with(_LOADER) or line_of(type(loader.dataset)),
            acts_on=("data wait",),
            gain=amdahl(share),
        )


@state
def many_tensors(live: Live) -> Iterator[Finding]:
    """Each tensor of a batch crosses from the worker by itself."""
    for use, loader in alive(live.loaders):
        if not loader.num_workers or use.n_tensors < _MANY_TENSORS:
            continue
        yield fact(
            "many-tensors",
            f"A batch is {fmt_count(use.n_tensors)} tensors, and each crosses from its worker by "
            "itself",
            (
                "each has its own shared memory and file descriptor, sent and opened one after the "
                "other; more workers do not make the receiving side faster",
            ),
            "def collate(examples):  # a tensor for each field, and where each example ends\n"
            "    fields = {name: torch.cat([e[name] for e in examples]) for name in examples[0]}\n"
            "    return fields, torch.tensor([len(next(iter(e.values()))) for e in examples])\n"
            "boxes = fields['boxes'].split(lengths.tolist())  # in the loop: views, no copies",
            line=line_of(loader.collate_fn) or only_line_with(_LOADER),
            acts_on=("data wait",),
        )


@state
def made_anew(live: Live) -> Iterator[Finding]:
    """The same items are made in each epoch, and that takes time."""
    for use, loader in alive(live.loaders):
        items = use.items
        if items is None or not items.are_same or items.item_s < _LEAST_ITEM_S:
            continue
        dataset = loader.dataset
        if _generator_in(dataset) is not None or not hasattr(dataset, "__len__"):
            continue
        n, one_bytes = len(dataset), items.item_bytes
        dataset = _own(dataset)
        line = line_of(type(dataset).__getitem__) or only_line_with(_LOADER)
        if items.kept_bytes > _VIEW * one_bytes:
            yield fact(
                "items-of-views",
                f"Each item is {fmt_bytes(one_bytes)} of tensors of {fmt_bytes(items.kept_bytes)} "
                "that are made for it",
                ("all of them is read, or made, anew for each item, of which the rest is unused",),
                "torch.save(part.clone(), path)  # a view is written with its whole tensor\n"
                "# and of what is not written here, read or make the part alone",
                line=line,
                acts_on=("data wait",),
            )
            continue
        size = f"{plural(n, 'item')} of {fmt_bytes(one_bytes)}: {fmt_bytes(n * one_bytes)}"
        yield fact(
            "items-made-anew",
            f"{name_of(dataset)} makes the same items anew in each epoch",
            (
                f"{plural(items.n_compared, 'item')} that came in two epochs were the same, and no "
                f"random number was drawn for them; {fmt_s(items.item_s)} an item or more",
                f"{size} to keep",
            ),
            "items = [dataset[i] for i in range(len(dataset))]  # once, before the loop\n"
            f"loader = DataLoader(items, ...)  # {size}"
            if n * (one_bytes + _OBJECT_BYTES) < memory_bytes() * _MOST_KEPT
            else f"# too much for memory ({size}, and objects):\n"
            "# write what __getitem__ makes to a file once (np.lib.format.open_memmap)\n"
            'rows = np.load("items.npy", mmap_mode="r")  # in __init__',
            line=line,
            acts_on=("data wait",),
        )


@state
def row_by_row(live: Live) -> Iterator[Finding]:
    """A table in memory is read a row at a time."""
    for _, loader in alive(live.loaders):
        dataset = loader.dataset
        is_small = (loader.batch_size or 0) < _LEAST_BATCH
        if is_small or hasattr(dataset, "__getitems__") or not hasattr(dataset, "__len__"):
            continue
        if not (columns := _columns_of(dataset)):
            continue
        n = len(dataset)
        names = [name for name, _ in columns]
        row_bytes = sum(getattr(value, "nbytes", 0) for _, value in columns) // max(n, 1)
        if row_bytes > _SMALL_SAMPLE_BYTES:
            continue
        yield fact(
            "row-by-row",
            "A table that is in memory is read a row at a time",
            (
                f"{name_of(dataset)} indexes {' and '.join(names[:4])} {loader.batch_size} times a "
                f"batch, {fmt_bytes(row_bytes)} each, and the loader stacks them again",
            ),
            by_rows(dataset, names[:4]),
            line=line_of(type(dataset).__getitem__) or only_line_with(_LOADER),
            acts_on=("data wait",),
        )


def _own(dataset: Any) -> Any:
    while type(dataset).__module__.startswith("torch.") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset  # a Subset
    return dataset


def _columns_of(dataset: Any) -> list[tuple[str, Any]]:
    """Tensors and arrays of it that have a row for each sample; none if it calls others."""
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    held = getattr(dataset, "__dict__", {})
    if isinstance(held.get("tensors"), tuple) and type(dataset).__name__ == "TensorDataset":
        return [(f"tensors[{i}]", tensor) for i, tensor in enumerate(held["tensors"])]
    if code is None or (set(code.co_names) - set(held) and not changes_alike(dataset)):
        return []
    return [
        (name, value)
        for name, value in held.items()
        if name in code.co_names
        and getattr(value, "shape", None)
        and len(value.shape)
        and len(value) == len(dataset)
    ]


# Generators of random numbers → the same, anew in a worker.
_SEEDED: dict[type, str] = {
    np.random.Generator: "np.random.default_rng(info.seed)",
    np.random.RandomState: "np.random.RandomState(info.seed % 2**32)",
    random.Random: "random.Random(info.seed)",
    torch.Generator: "torch.Generator().manual_seed(info.seed)",
}


@state
def own_generator(live: Live) -> Iterator[Finding]:
    """A remark on workers: a generator of the data set's own is copied, and they draw the same."""
    for _, loader in alive(live.loaders):
        found = _generator_in(loader.dataset)
        if found is None or loader.worker_init_fn is not None:
            continue
        path, made = found
        yield fact(
            "generator-copied",
            "Workers draw the same random numbers",
            (),
            f"def seed(_):  # each worker has a copy of {path[1:]}, and draws the same numbers\n"
            "    info = torch.utils.data.get_worker_info()\n"
            f"    info.dataset{path} = {made}\n"
            "# DataLoader(..., worker_init_fn=seed)",
            beside=r"\bnum_workers=[1-9]",
        )
        return


def _generator_in(dataset: Any) -> tuple[str, str] | None:
    """The way to a generator of random numbers that the data set holds, and the code for one."""
    held = ((path, one, kind) for path, one in held_by(dataset) for kind in _SEEDED)
    return next(((path, _SEEDED[kind]) for path, one, kind in held if isinstance(one, kind)), None)


def held_by(dataset: Any) -> list[tuple[str, Any]]:
    """The data set and the first things that it holds, such as transforms, with the way to each."""
    todo = [("", dataset)]
    for path, one in todo:
        if len(todo) > _MOST_HELD or isinstance(one, type | ModuleType):
            continue
        if isinstance(one, list | tuple):
            todo += [(f"{path}[{i}]", part) for i, part in enumerate(one[:_LEAST_BATCH])]
        else:
            held = getattr(one, "__dict__", {})
            todo += [(f"{path}.{name}", part) for name, part in held.items()]
    return todo


@state
def padding_of_batches(live: Live) -> Iterator[Finding]:
    """Much of each batch is padding."""
    for use in live.loaders.values():
        found, loader = use.padding, use.ref()
        if found is None or found.share < _LEAST_PADDING:
            continue
        # what depends on pairs of positions shrinks with the square
        longest = found.longest
        to_longest = longest < (1 - _LEAST_PADDING / 2) * found.length
        left = longest / found.length if to_longest else 1 - found.share
        collate = getattr(loader, "collate_fn", None)
        makes_items = getattr(type(_own(getattr(loader, "dataset", None))), "__getitem__", None)
        yield fact(
            "padding",
            f"{fmt_share(found.share)} of each batch is padding"
            + (", up to a fixed length" if to_longest else ""),
            (
                f"{found.rows} rows of {found.length} positions, the longest of {longest}; the "
                f"rest is {found.value:g}, and the model computes it",
            ),
            found.cut(collate)
            + "\n# then rows of like length together: sort by length within every few batches"
            if to_longest
            else "# rows of like length in one batch: a batch_sampler that sorts by length within\n"
            "# every few batches, and shuffles the batches",
            line=line_of(collate) or line_of(makes_items) or only_line_with(_LOADER),
            acts_on=("forward", "backward"),
            leaves=left * left,
            changes="" if to_longest else "which examples share a batch",
        )


@state
def open_files(live: Live) -> Iterator[Finding]:
    """Forked workers share one open file, and its position."""
    for _, loader in alive(live.loaders):
        if not loader.num_workers or not hasattr(loader.dataset, "__dict__"):
            continue
        for name, value in vars(loader.dataset).items():
            if not _is_open_file(value):
                continue
            yield fact(
                "open-file-in-workers",
                "An open file of the data set is shared by all workers",
                (
                    f"self.{name} of {name_of(loader.dataset)} is a {type(value).__name__}, opened "
                    "before the workers begin: they read at one common position, and take turns",
                ),
                "def __getitem__(self, i):\n"
                f"    if self.{name} is None:  # opened where it is used: once in each worker\n"
                f"        self.{name} = open_it(self.path)",
                line=line_of(type(loader.dataset).__init__),
            )


# Kinds of open files that are not of io.
_FILES = (
    "h5py._hl.files.File", "zipfile.ZipFile", "tarfile.TarFile", "sqlite3.Connection",
    "lmdb.Environment", "builtins.Environment",
)  # fmt: skip


def _is_open_file(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not (value.closed or isinstance(value, io.BytesIO | io.StringIO))
    return f"{type(value).__module__}.{type(value).__qualname__}" in _FILES
