"""What grows from step to step, by how much, and what holds it.

Three things are watched: the tensors, the autograd graphs, which belong to no tensor, and the
process as a whole, its heap and its resident memory, in which all else would show.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base import torch_compat
from perfkit.base.arguments import check_function, check_whole
from perfkit.base.device import in_use
from perfkit.base.display import Shown
from perfkit.base.machine import Provenance, stamp
from perfkit.base.plain import fields
from perfkit.base.progress import Progress
from perfkit.base.uninterrupted import surely
from perfkit.base.user_code import where
from perfkit.base.words import fmt_count
from perfkit.memory.holders import held_among, holder_of
from perfkit.memory.places import source_of

if TYPE_CHECKING:
    from torch import Tensor

    from perfkit.memory.ledger import Block, Place
    from perfkit.memory.survey import Survey
    from perfkit.memory.tracker import Tracker

#: Steps before the counted ones: optimizer state, caches and the last batch appear in them.
_WARM_UP = 3
#: How often what is alive is looked at. A size that only varies grows 8 times in a row by
#: chance once in 8! = 40 320.
_LOOKS = 8
_MOST_STEPS = 10**9  # what a float still divides exactly
#: Memory of the process comes and goes for many reasons: it grows if it never fell from look to
#: look, rose in nearly all of them, and by more a step than caches do by chance.
_RISES = 5
_RISE_FROM_BYTES = 1024
#: Storages below this are not worth a word about a view on them.
_VIEW_FROM_BYTES = 64 * 1024
#: A view that shows less than this share of its storage keeps mostly what nobody sees.
_VIEW_SHARE = 0.25
#: Chains of referrers cost a look at all objects for each of their links.
_MOST_CHAINS = 8
#: Python 3.12 starts with some 400 frozen objects; gc.freeze() with torch loaded more than 100,000.
_FROZEN_BY_PYTHON = 5000


@dataclass(frozen=True)
class Leak:
    """Memory that one holder gathers step by step.

    Attributes:
        holder: the way to it from a name that the user knows: ``losses[…] → graph``; empty
            where no way was found.
        bytes_per_step: growth.
        nbytes: what it held at the end of what was made during the counted steps.
        lines: where that was made, most bytes first: ``train.py:12  loss = …``.
        through_graph: held by an autograd graph, not by a tensor variable itself.
        n_storages: how many storages that were.
    """

    holder: str
    bytes_per_step: float
    nbytes: int
    lines: tuple[str, ...]
    through_graph: bool
    n_storages: int


@dataclass(frozen=True)
class SmallView:
    """A small tensor that keeps a much larger storage alive: a view, or the mean of a loss.

    ``F.mse_loss`` on a CPU returns a number in a storage as large as its input (seen in torch
    2.13), and so do ``smooth_l1_loss`` and ``soft_margin_loss``.

    Attributes:
        holder: the way to it from a name that the user knows; empty where none was found.
        shape: of the largest tensor on that storage.
        view_bytes: what it shows.
        storage_bytes: what is kept, by each.
        n_tensors: how many of this shape keep a storage of this size each.
    """

    holder: str
    shape: tuple[int, ...]
    view_bytes: int
    storage_bytes: int
    n_tensors: int = 1


@dataclass(frozen=True)
class LeakReport(Shown):
    """What :func:`find_leaks` found.

    Attributes:
        leaks: most growth first; empty if no tensor memory grows.
        views: small tensors on large storages that are alive at the end, those alike as one.
        n_steps: counted steps.
        bytes_per_step: growth of all tensors, in bytes a step.
        nodes_per_step: nodes by which the autograd graphs grow; 0 where they do not grow
            steadily. A graph belongs to no tensor: its nodes are in no figure of tensor memory.
        graph_holder: the way to the tensor that leads to most of the nodes; empty where the
            graphs do not grow, or no way was found.
        heap_bytes_per_step: by how much the process's heap grew (memory handed out by malloc: CPU
            tensors, nodes of graphs, and what else C++ keeps); 0 where it did not grow steadily,
            None where the C library does not tell.
        resident_bytes_per_step: the same of its resident memory, which also has Python's objects
            but does not show what takes the place of something that was freed.
        alive_bytes: steps after which was looked, and the memory of all tensors then.
        containers: lists, dicts and sets that gained at least one entry a step: the way to each
            from a name that the user knows, and entries a step.
    """

    leaks: tuple[Leak, ...]
    views: tuple[SmallView, ...]
    n_steps: int
    bytes_per_step: float
    warnings: tuple[str, ...]
    provenance: Provenance
    nodes_per_step: float = 0.0
    graph_holder: str = ""
    heap_bytes_per_step: float | None = None
    resident_bytes_per_step: float = 0.0
    containers: tuple[tuple[str, float], ...] = ()
    alive_bytes: tuple[tuple[int, int], ...] = ()

    @property
    def process_bytes_per_step(self) -> float:
        """Growth of the process by its heap, else by its resident memory; 0 if neither grew."""
        return self.heap_bytes_per_step or self.resident_bytes_per_step

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types."""
        return fields(self, type="leaks")


def find_leaks(step: Callable[[], Any], steps: int = 20) -> LeakReport:
    """Run ``step()`` several times and report what memory grows per step, and what holds it.

    Three steps warm up, then ``steps`` are counted. Memory from a source line is a leak if more and
    more of it stays: from more steps, or of larger size. A bounded buffer that is not yet full
    after ``steps`` steps looks the same.

    Besides tensors, it counts the nodes of autograd graphs (``total = total + loss`` keeps all of
    them), and reads the heap and the resident memory of the process.

    Args:
        step: a function without arguments; its result is discarded.
        steps: number of steps to count, at least 8.

    Returns:
        A :class:`LeakReport`: the growing lines with bytes per step and what holds them. Print it.

    Raises:
        UsageError: ``step`` is not a function, or ``steps`` is too small. What ``step`` raises
            propagates.

    Example::

        >>> losses, model = [], torch.nn.Linear(256, 256)
        >>> print(perfkit.find_leaks(lambda: losses.append(model(torch.rand(64, 256)).sum())))
    """
    check_function("step", step)
    check_whole("steps", steps, _LOOKS, _MOST_STEPS)
    with Progress("find_leaks") as progress:
        return _watched(step, steps, progress)


def _watched(step: Callable[[], Any], steps: int, progress: Progress) -> LeakReport:
    from perfkit.base.process_memory import heap_bytes, resident_bytes
    from perfkit.memory.containers import ContainerSizes
    from perfkit.memory.graphs import GraphSize
    from perfkit.memory.survey import survey, tensor_ids
    from perfkit.memory.tracker import Tracker

    for number in range(1, _WARM_UP + 1):
        step()
        progress.line("warm-up", share=number / (_WARM_UP + steps))
    gc.collect()
    tracker = Tracker()
    graphs = GraphSize()
    first_node = torch_compat.sequence_number_reader()()
    nodes: list[int] = []
    resident: list[int] = []
    heap: list[int | None] = []
    made_in: dict[int, int] = {}
    looks: list[tuple[int, dict[Place, _Alive]]] = []
    at = {round((i + 1) * steps / _LOOKS) for i in range(_LOOKS)}
    sizes = ContainerSizes()
    try:
        tracker.start()
        with _only_new_garbage():
            for number in range(1, steps + 1):
                step()
                if progress.is_due:
                    progress.line(
                        f"step {fmt_count(number)} of {fmt_count(steps)}",
                        share=(_WARM_UP + number) / (_WARM_UP + steps),
                    )
                # only of what lives: the address of one that died may be another's next
                made_in = {id(b): made_in.get(id(b), number) for b in tracker.living()}
                tracker.fold()  # so that what grows is not our own book
                if number in at:
                    gc.collect()
                    looks.append((number, _alive(tracker, made_in)))
                    nodes.append(graphs.nodes())
                    heap.append(heap_bytes())
                    resident.append(resident_bytes())
        python = tensor_ids()
        seen = survey()
        leaking = [place for place in looks[-1][1] if _grows(place, looks)]
        totals = [sum(alive.nbytes for alive in look.values()) for _, look in looks]
        apart = looks[-1][0] - looks[0][0]
        finder = _Holders(seen, python)
        leaks = finder.leaks(leaking, looks) if leaking else ()
        ended_early = finder.ended_early
        views = finder.views()
        graph_grows = all(a < b for a, b in itertools.pairwise(nodes))
        graph_holder = finder.graph_holder(first_node) if graph_grows else ""
        del seen, finder
        containers = sizes.grown(steps)
    finally:
        surely(tracker.stop)
    looked_at = [number for number, _ in looks]
    warnings = []
    if tracker.instrument.failure is not None:
        warnings.append(tracker.instrument.failure.sentence())
    if tracker.was_lost:
        warnings.append(torch_compat.WAS_LOST)
    if ended_early:
        warnings.append(
            f"only {_MOST_CHAINS} holders were searched for; leaks without one may share a row"
        )
    return LeakReport(
        leaks=leaks,
        views=views,
        n_steps=steps,
        bytes_per_step=(totals[-1] - totals[0]) / apart,
        warnings=tuple(warnings),
        # a GPU that is there but that nothing has used had no part in it
        provenance=stamp(device="cpu" if in_use().is_cpu else None),
        nodes_per_step=(nodes[-1] - nodes[0]) / apart if graph_grows else 0.0,
        graph_holder=graph_holder,
        heap_bytes_per_step=_steady_rise(looked_at, heap),
        resident_bytes_per_step=_steady_rise(looked_at, resident) or 0.0,
        containers=containers,
        alive_bytes=tuple(zip(looked_at, totals, strict=True)),
    )


def _steady_rise(steps: list[int], nbytes: Sequence[int | None]) -> float | None:
    """Bytes a step; 0 where they did not rise steadily, None where they are not known."""
    later = zip(steps[1:], nbytes[1:], strict=True)  # the first look still warms up
    looks = [(step, size) for step, size in later if size is not None]
    rises = [b - a for (_, a), (_, b) in itertools.pairwise(looks)]
    if len(rises) < _RISES:
        return None
    if min(rises) < 0 or sum(rise > 0 for rise in rises) < _RISES:
        return 0.0
    growth = sum(rises) / (looks[-1][0] - looks[0][0])
    return growth if growth >= _RISE_FROM_BYTES else 0.0


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Have the collector pass over what lives already: torch alone has some 300,000 objects.

    If you have frozen objects yourself, nothing is frozen: yours could not be told from ours later.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        yield
        return
    try:
        gc.freeze()
        yield
    finally:
        gc.unfreeze()  # referrers are found among what is not frozen


@dataclass
class _Alive:
    """What one line made in the counted steps and is still there."""

    blocks: list[Block]
    n_steps: int
    nbytes: int


def _alive(tracker: Tracker, made_in: dict[int, int]) -> dict[Place, _Alive]:
    groups: dict[Place, list[Block]] = {}
    for block in tracker.living():
        groups.setdefault(block.line, []).append(block)
    return {
        place: _Alive(blocks, len({made_in[id(b)] for b in blocks}), sum(b.nbytes for b in blocks))
        for place, blocks in groups.items()
    }


def _grows(place: Place, looks: list[tuple[int, dict[Place, _Alive]]]) -> bool:
    nothing = _Alive([], 0, 0)
    found = [look.get(place, nothing) for _, look in looks]
    sizes = [alive.nbytes for alive in found]
    ever_larger = all(a < b for a, b in itertools.pairwise(sizes))
    # from ever more steps: in each quarter of the run some has come to stay
    steps = [alive.n_steps for alive in found[1::2]]
    ever_more = all(a < b for a, b in itertools.pairwise(steps))
    return ever_larger or ever_more


class _Holders:
    """The tensors that keep storages alive, by themselves or through their graphs."""

    def __init__(self, seen: Survey, python: set[int]) -> None:
        """``python``: the tensors that were objects before the graphs were asked for theirs."""
        self.ended_early = False  # a leak has no name, and one was no longer looked for
        self._seen = seen
        self._direct: dict[int, list[Tensor]] = {}
        self._through: dict[int, Tensor] = {}
        self._shown: dict[int, int] = {}
        self._storages: dict[int, Any] = {}
        tensors = {id(tensor): tensor for tensor, _ in seen.tensors}
        self._tensors = [t for key, t in tensors.items() if key in python]
        from perfkit.memory.storages import shown_bytes, storages_of

        for tensor in tensors.values():
            for storage in storages_of(tensor) or ():
                key = id(storage)
                self._storages[key] = storage
                self._shown[key] = max(self._shown.get(key, 0), shown_bytes(tensor))
        for tensor in self._tensors:
            for storage in storages_of(tensor) or ():
                self._direct.setdefault(id(storage), []).append(tensor)
        # from the ends of the graphs: torch keeps the object of a tensor in the middle of one,
        # also if no variable has it
        with_graph = [t for t in self._tensors if t.grad_fn is not None]
        inner = _inner_nodes(with_graph)
        nodes: set[Any] = set()
        for tensor in sorted(with_graph, key=lambda t: t.grad_fn in inner):
            for storage in _in_graph(tensor, nodes):
                self._through.setdefault(id(storage), tensor)

    def graph_holder(self, made_from: int) -> str:
        """The name of the tensor that leads to most of the nodes with this number or later."""
        from perfkit.memory.graphs import nodes_of

        with_graph = [t for t in self._tensors if t.grad_fn is not None]
        inner = _inner_nodes(with_graph)
        with_graph.sort(key=lambda t: t.grad_fn in inner)
        sizes = nodes_of(with_graph, made_from)
        largest = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        return next((n for i in largest[:3] if (n := self._name(with_graph[i], {}))), "")

    def leaks(
        self, leaking: list[Place], looks: list[tuple[int, dict[Place, _Alive]]]
    ) -> tuple[Leak, ...]:
        first, last = looks[0], looks[-1]
        steps = last[0] - first[0]
        joined: dict[tuple[str, bool], list[tuple[Place, float, _Alive]]] = {}
        leaking.sort(key=lambda place: -last[1][place].nbytes)
        names: dict[int, str] = {}
        for place in leaking:
            alive = last[1][place]
            before = first[1].get(place)
            growth = (alive.nbytes - (before.nbytes if before else 0)) / steps
            for part in self._by_way(alive.blocks):
                nbytes = sum(b.nbytes for b in part)
                found = self._holder(part, names)
                share = growth * nbytes / alive.nbytes
                joined.setdefault(found, []).append((place, share, _Alive(part, 0, nbytes)))
        return tuple(
            sorted(
                (
                    Leak(
                        holder=holder,
                        bytes_per_step=sum(growth for _, growth, _ in parts),
                        nbytes=sum(alive.nbytes for _, _, alive in parts),
                        lines=tuple(_called(place) for place, _, _ in parts),
                        through_graph=through,
                        n_storages=sum(len(alive.blocks) for _, _, alive in parts),
                    )
                    for (holder, through), parts in joined.items()
                ),
                key=lambda leak: -leak.bytes_per_step,
            )
        )

    def _by_way(self, blocks: list[Block]) -> list[list[Block]]:
        """Those that are in a graph, and those that are not."""
        ways: dict[bool, list[Block]] = {}
        for block in blocks:
            storage = block()
            ways.setdefault(id(storage) in self._through, []).append(block)
        return list(ways.values())

    def _holder(self, blocks: list[Block], names: dict[int, str]) -> tuple[str, bool]:
        """The name of what holds these, by the oldest: it should have been freed long ago."""
        refused = False
        for block in blocks:
            storage = block()
            if storage is None:
                continue
            root = self._through.get(id(storage))
            direct = self._direct.get(id(storage), ())
            del storage
            name = self._name(root, names) if root is not None else ""
            if name:
                return f"{name} → graph", True
            refused |= name is None
            for tensor in direct:
                name = self._name(tensor, names)
                if name:
                    return name, False
                refused |= name is None
        self.ended_early |= refused
        return "", False

    def _name(self, tensor: Tensor, names: dict[int, str]) -> str | None:
        """Empty where no way was found, None where none was looked for any more."""
        if id(tensor) not in names:
            if len(names) >= _MOST_CHAINS:
                return None
            names[id(tensor)] = holder_of(tensor, self._ours()) or ""
        return names[id(tensor)]

    def _ours(self) -> Iterable[object]:
        yield self
        yield vars(self)
        yield self._seen
        yield vars(self._seen)
        yield from vars(self).values()
        yield from vars(self._seen).values()
        yield from self._seen.tensors
        yield from self._direct.values()

    def _held_bases(self) -> set[int]:
        """``id`` of the tensors with views that are held for themselves.

        torch keeps the object of a base for its views, also if nobody else has it.
        """
        bases = {id(t._base) for key in self._direct for t in self._small(key)}
        return held_among(bases - {id(None)}, self._ours())

    def _small(self, key: int) -> list[Tensor]:
        """The tensors that show little of a large storage."""
        from perfkit.memory.storages import shown_bytes

        nbytes = self._storages[key].nbytes()
        if nbytes < _VIEW_FROM_BYTES:
            return []
        return [t for t in self._direct[key] if shown_bytes(t) <= _VIEW_SHARE * nbytes]

    def views(self) -> tuple[SmallView, ...]:
        from perfkit.memory.storages import shown_bytes

        held = self._held_bases()
        found: dict[tuple[tuple[int, ...], int, int], list[Tensor]] = {}
        names: dict[int, str] = {}
        for key, tensors in self._direct.items():
            nbytes = self._storages[key].nbytes()
            small = self._small(key)
            if not small:
                continue
            bases = {id(t._base) for t in small}
            larger = [t for t in tensors if shown_bytes(t) > _VIEW_SHARE * nbytes]
            if any(id(t) not in bases or id(t) in held for t in larger):
                continue
            if not larger and self._shown[key] > _VIEW_SHARE * nbytes:
                continue  # a graph has all of it
            tensor = max(small, key=lambda t: t.numel())
            alike = (tuple(tensor.shape), shown_bytes(tensor), nbytes)
            found.setdefault(alike, []).append(tensor)
        views = [
            SmallView(
                holder=next(filter(None, (self._name(t, names) for t in tensors)), ""),
                shape=shape,
                view_bytes=shown,
                storage_bytes=kept,
                n_tensors=len(tensors),
            )
            for (shape, shown, kept), tensors in found.items()
        ]
        return tuple(sorted(views, key=lambda view: -view.storage_bytes * view.n_tensors))


def _inner_nodes(tensors: list[Tensor]) -> set[Any]:
    """The nodes that other nodes of these tensors' graphs lead to."""
    from perfkit.memory.survey import MAX_NODES

    inner: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    known = set(waiting)
    while waiting and len(known) < MAX_NODES:
        for following, _ in waiting.pop().next_functions:
            if following is not None:
                inner.add(following)
                if following not in known:
                    known.add(following)
                    waiting.append(following)
    return inner


def _in_graph(tensor: Tensor, known: set[Any]) -> Iterable[Any]:
    """The storages that this tensor's graph keeps, as far as no other graph was seen to."""
    from perfkit.memory.storages import storages_of
    from perfkit.memory.survey import MAX_NODES

    waiting = [tensor.grad_fn]
    while waiting and len(known) < MAX_NODES:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        for saved in torch_compat.saved_tensors(node):
            yield from storages_of(saved) or ()
        waiting += [following for following, _ in node.next_functions]


def _called(place: Place) -> str:
    file, line, function = place
    if not file:
        return function
    return f"{where(file, line)}  {source_of(file, line)}".rstrip()
