"""Memory that grows with the steps, or with the batches of an evaluation, and what keeps it.

The candidates are asked in the order in which they are usual. Objects are gone through only while
memory grows.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import inspect
import itertools
import re
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from perfkit.advice.findings import Finding, fact
from perfkit.advice.line_kinds import GROWS
from perfkit.advice.state import alive, state_of_now
from perfkit.advice.state.calls import profiles_all_along
from perfkit.advice.state.data import held_by, many_objects
from perfkit.base.source import (
    first_line_with,
    line_of,
    lines_with,
    name_of,
    only_line_with,
    shown_line,
)
from perfkit.base.words import fmt_bytes, plural
from perfkit.measure.live import Live
from perfkit.measure.memory_looks import Rise, free_rise, of_workers, own_rise, rise
from perfkit.memory.graphs import nodes_of
from perfkit.memory.holders import holder_of
from perfkit.memory.stays import Stays
from perfkit.memory.storages import shown_bytes, storages_of

_KINDS = (list, dict, set, collections.deque)
# A container gains something in so many of the steps, at least.
_MOST_STEPS = 0.5
# Of entries: at least so many, and at most; of what each holds; and how many containers are named.
_LEAST_ENTRIES, _MOST_ENTRIES, _MOST_PARTS, _MOST_NAMES = 24, 4096, 64, 3
# What is seen explains what grows if it is so much of it.
_EXPLAINS = 0.5
# Looks at objects may take so much of the run.
_MOST_OF_THE_RUN = 0.02
# Kept graphs double from look to look, as steps do.
_DOUBLES = 1.5
# A view keeps so many times what it shows.
_VIEW = 4
# pyplot itself warns from 20 on (rcParams["figure.max_open_warning"]), where warnings are shown.
_MANY_FIGURES = 8
# Longer steps are not traced: that makes Python some five times as slow.
_TRACED_S = 1.0
# Python's own allocator gives out no larger ones.
_MOST_OF_A_BLOCK = 512


@dataclass
class _Keeper:
    """A container that gains entries with the steps, or a tensor that grows.

    Attributes:
        name: the way to it from a variable; empty where none was found.
        n_seen: the last entries, which the rest is about.
        storages: bytes that tensors and arrays keep, each once, by address.
    """

    kind: str
    n: int
    per_step: float
    name: str = ""
    is_bounded: bool = False
    n_seen: int = 1
    shown_bytes: float = 0.0
    storages: dict[int, float] = field(default_factory=dict)
    other_bytes: float = 0.0
    tensor: weakref.ref[Tensor] | None = None
    with_graph: bool = False

    @property
    def entry_bytes(self) -> float:
        """That an entry keeps, about."""
        return (sum(self.storages.values()) + self.other_bytes) / self.n_seen

    @property
    def last_name(self) -> str:
        """The variable or attribute itself, of the way to it."""
        found = re.findall(r"[A-Za-z_]\w*", self.name.partition("[")[0].partition(" ")[0])
        return found[-1] if found else ""

    def explains(self, grown: Rise) -> bool:
        """Whether it is most of what grows."""
        return self.entry_bytes * self.per_step >= _EXPLAINS * grown.per_step

    def add(self, value: Any, weight: float = 1.0, depth: int = 2) -> None:
        """Add an object and, of it, the first things that it holds for all of them."""
        self.other_bytes += weight * sys.getsizeof(value, 0)
        if isinstance(value, Tensor):
            self.tensor = weakref.ref(value)
            self.with_graph |= value.grad_fn is not None
            self.shown_bytes += weight * shown_bytes(value)
            for storage in storages_of(value) or ():
                self.storages[storage.data_ptr()] = weight * storage.nbytes()
        elif isinstance(value, np.ndarray):
            self.shown_bytes += weight * value.nbytes
            base = value
            while isinstance(base.base, np.ndarray):
                base = base.base
            self.other_bytes -= weight * value.nbytes * (base is value)
            if not isinstance(value, np.memmap):
                self.storages[id(base)] = weight * base.nbytes
        elif depth:
            held = value if isinstance(value, (*_KINDS, tuple)) else getattr(value, "__dict__", ())
            values = held.values() if isinstance(held, dict) else held
            parts = list(itertools.islice(values, _MOST_PARTS))
            for part in parts:
                self.add(part, weight * len(held) / len(parts), depth - 1)


@dataclass
class _Objects:
    """What there was at one look.

    Attributes:
        sizes, storages: of containers by ``id``, and how many of each size tensors had.
        nodes, blocks: of autograd graphs, and those that Python's own allocator had handed out.
        keeper: what explains the growth, of this look or an earlier one.
        more_nodes, more_blocks: by how much these grew, a step; 0 for graphs that do not double.
    """

    step: int
    sizes: dict[int, int]
    storages: collections.Counter[int]
    nodes: int
    blocks: int
    took_s: float = 0.0
    keeper: _Keeper | None = None
    more_nodes: float = 0.0
    more_blocks: float = 0.0


@state_of_now
def memory_grows(live: Live) -> Iterator[Finding]:
    """Memory grows with the steps."""
    if profiles_all_along(live):
        return
    suspect, whose = own_rise(live.memory, intervals=2)
    if suspect is None:
        if (freed := free_rise(live.memory)) is not None:
            yield fact(
                "memory-grows",
                "Memory that is freed and stays with malloc grows by "
                f"{fmt_bytes(freed.per_step)} with each step",
                (
                    f"{_rose(freed, 'step')}: small pieces in use hold the freed ones around them; "
                    "what the program uses does not grow",
                ),
                "# before the start: another allocator, or every large block given back at once\n"
                "# LD_PRELOAD=libjemalloc.so.2\n# MALLOC_MMAP_THRESHOLD_=1000000",
            )
        return
    seen = _look_at_objects(live, "steps", suspect)
    grown, whose = own_rise(live.memory)
    if grown is None:
        return
    # what nothing explains may be a cache that fills
    sure, _ = own_rise(live.memory, intervals=4)
    keeper = seen.keeper
    if keeper is not None and keeper.is_bounded and keeper.explains(sure or grown):
        return
    found = _in_a_buffer(live, sure or grown) or _kept(
        sure or grown, f"memory of {whose}", "step", seen
    )
    if found is not None:
        yield found
    elif sure is not None and (
        seen.more_blocks * _MOST_OF_A_BLOCK >= _EXPLAINS * sure.per_step
        or rise([(x.step, x.heap_bytes) for x in live.memory if x.heap_bytes], intervals=4)
    ):  # else what was asked for long ago is used page by page
        yield _unexplained(live, sure, whose, seen)


@state_of_now
def evaluation_accumulates(live: Live) -> Iterator[Finding]:
    """Memory grows with the batches of an evaluation."""
    before = live.kept.get("accumulates")
    if live.in_evaluation:
        suspect = own_rise(live.evaluated, intervals=2, first=2)[0]
        if suspect is not None:
            seen = _look_at_objects(live, "evaluation", suspect)
            grown, _ = own_rise(live.evaluated, first=2)
            found = grown and _kept(grown, "memory", "batch of the evaluation", seen)
            keeper = seen.keeper
            if found and keeper is not None and keeper.name and keeper.tensor is not None:
                before = live.kept["accumulates"] = found, live.n_steps, keeper.tensor
    if before is None or not live.looks_at_evaluation:
        return
    found, n_steps, kept = before
    if live.n_steps > n_steps and kept() is not None:
        # what training goes on with was no evaluation, but, say, episodes to learn from
        live.looks_at_evaluation = False
        return
    yield found


def _rose(grown: Rise, each: str) -> str:
    return (
        f"from {fmt_bytes(grown.before_bytes)} at {each} {grown.first} to "
        f"{fmt_bytes(grown.after_bytes)} at {grown.last}"
    )


def _in_a_buffer(live: Live, grown: Rise) -> Finding | None:
    """A module's buffer that is computed from itself, with the graph of each step attached."""
    buffers = (
        (name, type(module).__name__)
        for _, model in alive(live.modules)
        for module in itertools.islice(model.modules(), _MOST_ENTRIES)
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.grad_fn is not None
    )
    known = live.kept["buffer"] = next(buffers, live.kept.get("buffer"))
    if known is None:
        return None
    name, kind = known
    return fact(
        "graphs-kept",
        f"{name} of {kind} keeps the graph of every step: memory grows by "
        f"{fmt_bytes(grown.per_step)} with each",
        (f"{_rose(grown, 'step')}; this buffer leads to a graph",),
        "with torch.no_grad():  # what is no part of the loss needs no graph\n"
        f"    self.{name} = ...  # or of values that are .detach()ed",
        line=first_line_with(rf"\bself\.{re.escape(name)}\s*[-+*/]?=[^=]"),
    )


def _kept(grown: Rise, whose: str, each: str, seen: _Objects) -> Finding | None:
    """What Python's objects explain of it; None where they do not."""
    rose = _rose(grown, each.partition(" ")[0])
    grows = f"{whose} grows by {fmt_bytes(grown.per_step)} with each {each}"
    keeper = seen.keeper
    of_graphs = seen.more_nodes >= 1.0 and keeper is not None and not keeper.name
    if keeper is None or of_graphs or not (keeper.explains(grown) or keeper.with_graph):
        if seen.more_nodes < 1.0:
            return None
        total = only_line_with(
            r"^\s*([\w.]+)\s*(\+=|=\s*\1\s*\+)(?!.*\.(item|detach)\()"
            r".*(\b\w*loss\w*\b|criterion\(|_entropy\()"
        )
        return fact(
            "graphs-kept",
            f"A tensor that is carried on keeps the graph of every {each}: {grows}",
            (f"{rose}; graphs grew by {plural(round(seen.more_nodes), 'node')} a step",),
            "total += loss.item()  # a number; a sum of losses keeps the graphs of all of them"
            if total
            else "state = state.detach()  # what one step hands on to the next",
            line=total,
        )
    name, called = keeper.last_name, keeper.name or f"A {keeper.kind}"
    entry = fmt_bytes(keeper.entry_bytes)
    has = f"{rose}; it has {plural(keeper.n, 'entry', 'entries')}"
    if not keeper.explains(grown):
        rule, title = "graphs-kept", f"{called} keeps the graph of every {each}"
        told = f"{has} that lead to a graph"
        what_to_do = f"{name or 'losses'}.append(loss.item())  # a number, without its graph"
    elif sum(keeper.storages.values()) >= max(_VIEW * keeper.shown_bytes, keeper.other_bytes):
        rule = "views-kept"
        title = f"{called} keeps whole tensors for the small parts of them that it shows"
        told = (
            f"{rose}; an entry is a view of {fmt_bytes(keeper.shown_bytes / keeper.n_seen)}, and "
            f"keeps {entry}: all of the tensor that it was cut from, in checkpoints, too"
        )
        copy = "clone" if keeper.tensor is not None else "copy"
        what_to_do = (
            f"{name or 'kept'}.append(batch[i].{copy}())  # memory of its own, in place of a view"
        )
    elif re.search(r"\bcycle\b", keeper.name) and keeper.tensor is not None:
        rule, title = "tensors-kept", "itertools.cycle keeps every batch of the first epoch"
        told = f"{has} of about {entry} each: {keeper.name}; later epochs are these batches again"
        what_to_do = (
            "def forever(loader):  # in place of cycle(loader): new batches, and none is kept\n"
            "    while True:\n"
            "        yield from loader"
        )
    elif keeper.tensor is not None:
        rule = "tensors-kept"
        title = f"{keeper.name or 'Something'} keeps tensors of every {each}"
        graphs = "; they lead to autograd graphs, which keep more" if keeper.with_graph else ""
        told, what_to_do = f"{has} of about {entry} each{graphs}", GROWS.what_to_do
        if " → cache of " in keeper.name:
            what_to_do = "@functools.lru_cache(maxsize=64)  # or none: an epoch reads each once"
    else:
        rule = "objects-kept"
        entries = plural(max(round(keeper.per_step), 1), "entry", "entries")
        title, told = f"{called} gains {entries} with each {each}", f"{has} of about {entry} each"
        what_to_do = (
            f"# of {name}, what the result needs: numbers, not the objects that they are of;\n"
            "# where it is a cache or a history, with a bound"
        )
    return fact(rule, f"{title}: {grows}", (told,), what_to_do, line=_where_added(keeper))


def _unexplained(live: Live, grown: Rise, whose: str, seen: _Objects) -> Finding:
    grows = f"memory of {whose} grows by {fmt_bytes(grown.per_step)} with each step"
    rose = _rose(grown, "step")
    pyplot = sys.modules.get("matplotlib._pylab_helpers")
    if pyplot is not None and (n := len(pyplot.Gcf.figs)) >= _MANY_FIGURES:
        return fact(
            "figures-kept",
            f"{n} figures of matplotlib are open: {grows}",
            (f"{rose}; pyplot keeps each figure until it is closed",),
            "plt.close(fig)  # after it is saved\n"
            "# or one figure, made once: fig.clear() before each picture",
            line=only_line_with(r"\b(plt|pyplot)\.(figure|subplots)\("),
        )
    traced = _traced(live)
    if traced.line is not None and (
        _EXPLAINS * grown.per_step <= traced.per_step <= _VIEW * grown.per_step
    ):
        line = shown_line(*traced.line)
        return fact(
            "memory-grows",
            f"What this line makes stays in memory: {grows}",
            (
                f"{rose}; of what this line made in steps {traced.first} to {traced.last}, "
                f"{fmt_bytes(traced.per_step)} a step is still there (tracemalloc)",
            ),
            GROWS.what_to_do
            if GROWS.fits(line)
            else "print(gc.get_referrers(it))  # after the step: what holds it\n"
            "# let go of it there, keep the numbers that the result needs, or give it a bound",
            line=line,
        )
    python = "no line was traced: perfkit run does so, where steps below 1 s go on for a while"
    if traced.last:
        python = (
            f"in steps {traced.first} to {traced.last} no line made what stays (tracemalloc): a "
            "library written in C or C++ keeps it, or one block of Python's is lengthened at times"
        )
    elif seen.more_blocks >= 1.0:
        python = f"Python's objects grow by {plural(round(seen.more_blocks), 'block')} a step"
    return fact(
        "memory-grows",
        f"{grows[0].upper()}{grows[1:]}, and tensors do not explain it",
        (
            f"{rose}; no profiler of the program's own is on, no tensor, list or "
            "dict that perfkit sees explains it, no graph is kept",
            python,
        ),
        "# what C or C++ keeps: oneDNN, for one, something for each shape of inputs on a CPU\n"
        "# ONEDNN_PRIMITIVE_CACHE_CAPACITY=16 python ...",
    )


def _traced(live: Live) -> Stays:
    """What lines were seen to make in the steps after memory was known to grow."""
    traced: Stays | None = live.kept.get("stays")
    if traced is None:
        is_quick = time.perf_counter() - live.began_s < _TRACED_S * live.n_steps
        traced = live.kept["stays"] = Stays(starts=is_quick and live.traces_until >= 0)
        live.undo.append(traced.stop)
    elif not live.in_evaluation:
        traced.step_ended(live.n_steps)
    if traced.is_on:
        live.traces_until = live.n_steps + 1
    return traced


@state_of_now
def workers_grow(live: Live) -> Iterator[Finding]:
    """The loader's workers grow, and no large container of the data set explains it."""
    looks = of_workers(live.memory)
    last, found = live.kept.get("workers", (None, ()))
    # at the end the loaders may be gone, and nothing is new
    if looks and last != looks[-1]:
        found = _of_workers(looks, [one for use, one in alive(live.loaders) if use.n_workers])
        live.kept["workers"] = looks[-1], found
    yield from found


def _of_workers(looks: list[tuple[int, int]], loaders: list[Any]) -> tuple[Finding, ...]:
    """What workers keep; without a cache that is seen only a rise that no heap's start explains."""
    if rise(looks) is None:
        return ()
    dataset = loaders[0].dataset if loaders else None
    cache, line = _cache_of(dataset)
    grown = rise(looks, intervals=3 if cache else 5)
    if grown is None or any(map(many_objects, loaders)):
        return ()
    name = "the data set" if dataset is None else name_of(dataset)
    grows = f"by {fmt_bytes(grown.per_step)} a step"
    went = f"the workers' own memory went {_rose(grown, 'step')}"
    return (
        fact(
            "workers-grow",
            f"{cache} gains entries in each worker, without a bound: they grow {grows}"
            if cache
            else f"The loader's workers grow {grows}",
            (
                went
                if cache
                else f"{went}: {name} keeps something of each sample, or reads many Python "
                "objects, whose pages are copied then, or malloc keeps what it frees",
            ),
            "@functools.lru_cache(maxsize=16)  # a bound; each worker has a cache of its own\n"
            f"def read(path):  # in place of {cache.partition(' of ')[0] or 'what grows'}\n"
            "    ...",
            line=line or line_of(getattr(type(dataset), "__getitem__", None)),
        ),
    )


_FILLS = re.compile(
    r"(?<![\w.])(?P<self>self\.)?(?P<name>\w+)"
    r"(\[[^\]=]+\]\s*=[^=]|\.(append|add|setdefault|update|extend)\()"
)


def _cache_of(dataset: Any) -> tuple[str, str | None]:
    """What the data set, or what it holds and calls, adds to and never takes out of; and where."""
    owners: dict[type, Any] = {}
    for _, one in held_by(dataset):
        owners.setdefault(type(one), one)
    todo = [(x, one) for kind, x in owners.items() for one in vars(kind).values() if line_of(one)]
    lines_of: list[tuple[Any, Any, list[str], int]] = []
    for owner, one in todo:
        asked = getattr(one, "cache_parameters", None)
        if asked is not None and asked().get("maxsize", 0) is None:
            return one.__name__, line_of(one)
        function = inspect.unwrap(getattr(one, "__func__", one))
        if function.__name__ == "__init__":
            continue
        with contextlib.suppress(OSError, TypeError):  # a notebook's, or of Cython
            lines_of.append((owner, function, *inspect.getsourcelines(function)))
            called = (function.__globals__.get(name) for name in function.__code__.co_names)
            todo += [
                (None, other)
                for other in called
                if line_of(other) and all(other is not known for _, known in todo)
            ]
    text = "".join(line for _, _, lines, _ in lines_of for line in lines)
    for owner, function, lines, first in lines_of:
        for number, line in enumerate(lines, first):
            fills = _FILLS.search(line.partition("#")[0])
            if fills is None:
                continue
            own, name = fills["self"] or "", fills["name"]
            filled = getattr(owner, name, {}) if own else function.__globals__.get(name)
            cache = re.escape(own + name)
            bounded = rf"len\({cache}\)|del {cache}\b|{cache}\.(pop\w*|clear)\("
            if isinstance(filled, _KINDS) and not re.search(bounded, text):
                of = f" of {name_of(owner)}" if own else ""
                return f"{own}{name}{of}", shown_line(function.__code__.co_filename, number)
    return "", None


# --- what there is ----------------------------------------------------------------------------


def _look_at_objects(live: Live, what: str, grown: Rise) -> _Objects:
    """Go through all objects, and compare with the last time; once a look."""
    before: _Objects | None = live.kept.get(what)
    step = grown.last
    began_s = time.perf_counter()
    if before is not None and (
        before.step == step or before.took_s > _MOST_OF_THE_RUN * (began_s - live.began_s)
    ):
        return before
    objects = gc.get_objects()
    containers = [c for c in objects if type(c) in _KINDS and len(c) >= step // 4]
    of_tensors = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    tensors = [one for one in objects if type(one) in of_tensors]
    del objects
    by_size = _by_size(tensors)
    found = live.kept[what] = _Objects(
        step,
        {id(c): _n_filled(c) for c in containers},
        collections.Counter({size: len(some) for size, some in by_size.items()}),
        sum(nodes_of(tensors)),
        sys.getallocatedblocks(),
    )
    if before is None or before.step >= step:
        return found
    apart = step - before.step
    sizes = found.sizes
    pairs = ((c, sizes[id(c)] - before.sizes.get(id(c), sizes[id(c)])) for c in containers)
    gaining = [(c, n / apart) for c, n in pairs if n >= _MOST_STEPS * apart]
    least = _EXPLAINS * grown.per_step
    ours = (containers, tensors, by_size, *by_size.values(), gaining, *gaining)
    found.keeper = (
        _container(gaining, least, ours)
        or _tensor(by_size, before, found, least * apart, ours)
        or before.keeper
    )
    if found.nodes >= _DOUBLES * before.nodes:
        found.more_nodes = (found.nodes - before.nodes) / apart
    found.more_blocks = (found.blocks - before.blocks) / apart
    found.took_s = time.perf_counter() - began_s
    return found


def _by_size(tensors: Iterable[Tensor]) -> dict[int, list[Tensor]]:
    """By the size of their storages a tensor of each."""
    known = {
        storage.data_ptr(): (storage.nbytes(), tensor)
        for tensor in tensors
        for storage in storages_of(tensor) or ()
    }
    found: dict[int, list[Tensor]] = {}
    for size, tensor in known.values():
        found.setdefault(size, []).append(tensor)
    return found


def _container(
    gaining: list[tuple[Any, float]], least: float, ours: tuple[Any, ...]
) -> _Keeper | None:
    """Of these the one that explains it by its bytes, or keeps graphs, or has most bytes."""
    looked = []
    for container, per_step in gaining:
        # the last ones, of whole steps: parts of one batch share its memory
        n = min(max(round(2 * per_step), _LEAST_ENTRIES), _MOST_ENTRIES)
        values = container.values() if isinstance(container, dict) else container
        last = values if isinstance(values, set) else reversed(values)
        entries = list(itertools.islice((one for one in last if one is not None), n))
        keeper = _Keeper(
            type(container).__name__, len(container), per_step, n_seen=max(len(entries), 1)
        )
        for entry in entries:
            keeper.add(entry)
        looked.append((keeper, container))

    def rank(one: tuple[_Keeper, Any]) -> tuple[bool, bool, float]:
        keeper = one[0]
        most = keeper.entry_bytes * keeper.per_step >= least
        return most, keeper.with_graph, keeper.entry_bytes

    looked.sort(key=rank, reverse=True)
    for keeper, container in looked[:_MOST_NAMES]:
        keeper.name = holder_of(container, (looked, *looked, *ours)) or ""
        if keeper.name or keeper.tensor is not None:
            keeper.is_bounded = _is_bounded(container, keeper)
            return keeper
    return None


def _n_filled(container: Any) -> int:
    """Its entries; of a list that was made for more of them those that are there."""
    if type(container) is list and container and container[-1] is None:
        return sum(one is not None for one in container)
    return len(container)


def _is_bounded(container: Any, keeper: _Keeper) -> bool:
    """Whether it gets no longer, or a line of the program limits or shortens it."""
    last = keeper.last_name
    bound = rf"\blen\([\w.]*\b{last}\)\s*[<>]|\b{last}\.(pop\w*|clear)\(|\bdel\b.*\b{last}\["
    return (
        getattr(container, "maxlen", None) is not None
        or _n_filled(container) < len(container)
        or bool(last and any(lines_with(bound)))
    )


def _tensor(
    by_size: dict[int, list[Tensor]],
    before: _Objects,
    now: _Objects,
    least: float,
    ours: tuple[Any, ...],
) -> _Keeper | None:
    """A tensor of the size that grew most; it has a name if a line or each step makes it grow."""
    more = {size: size * (len(some) - before.storages[size]) for size, some in by_size.items()}
    total = sum(size * n for size, n in now.storages.items())
    was = sum(size * n for size, n in before.storages.items())
    size = max(more, key=lambda one: more[one], default=0)
    if total - was < least or more.get(size, 0) < least:
        return None
    some = by_size[size]
    tensor = some[len(some) // 2]  # neither one of the set-up nor of the last step
    apart = now.step - before.step
    keeper = _Keeper(Tensor.__name__, len(some), 1.0, holder_of(tensor, ours) or "")
    keeper.add(tensor)
    keeper.storages = {0: (total - was) / apart}
    keeper.shown_bytes = keeper.storages[0]
    are_many = len(some) - before.storages[size] >= _MOST_STEPS * apart
    # of many a variable has the last one alone
    if re.fullmatch(r"\w+( \(.*\))?", keeper.name) if are_many else not _where_added(keeper):
        keeper.name = ""
    return keeper


def _where_added(keeper: _Keeper) -> str | None:
    if re.search(r"\bcycle\b", keeper.name):
        return only_line_with(r"\bcycle\(")
    name = keeper.last_name
    if not name:
        return None
    of_function = re.search(r"\(in (\w+)\)", keeper.name)
    # of losses.append(loss) and losses.append(loss.item()) the second keeps a number
    number = r"(?!.*\.(item|tolist)\(\)\)+\s*$)" if keeper.tensor is not None else ""
    return only_line_with(
        rf"^{number}.*\b{name}(\.(append|appendleft|extend|add|update|setdefault)\(|\[[^\]]*\]\s*=[^=]"
        rf"|\s*\+=|\s*=.*\b(cat|concat\w*|[vh]?stack|append)\(.*\b{name}\b)",
        within=of_function[1] if of_function else "",
    )
