"""How often a piece of code asks other processes for something: a count, which no clock can blur.

Each collective is a wait for the slowest process and a trip over the network, so the number and
the bytes of a step say what accumulating, bucketing or sharding saves, also on a machine that has
only one process to ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perfkit.base.arguments import check_function, check_whole
from perfkit.base.errors import MeasurementError, MissingError, UsageError
from perfkit.base.torch_compat import (
    WAS_LOST,
    dispatch_mode_class,
    fake_group_store,
    group_of_name,
    inner_tensors,
)

# c10d: torch.distributed and DDP; the others: functional collectives, which FSDP's and DTensor's
# newer code asks for
_NAMESPACES = frozenset({"c10d", "c10d_functional", "_c10d_functional", "_dtensor"})
# they wait for an earlier one, or mark its result
_ASK_NOBODY = ("wait_tensor", "_wrap_tensor_autograd")
_MOST_RANKS = 65_536
# A model may die right after its group. Were it the last to hold the group, torch would wait for a
# thread of gloo while it holds Python's lock, which that thread may need to end (torch 2.13).
_last_group: Any = None


@dataclass(frozen=True)
class CollectiveCount:
    """The collectives of one call, as this process asked for them.

    Attributes:
        total: their number.
        total_bytes: bytes of the tensors that were given to them, inputs and outputs; for an
            all-reduce, which works in place, the bytes of its tensor.
        by_name: their number by name, e.g. ``"c10d::allreduce_"``, most frequent first.
        sent_bytes: bytes that a rank sends for them, mean of the group, if they go round a ring:
            of ``n`` ranks, 2 (n - 1)/n of what an all-reduce is given, (n - 1)/n of what an
            all-gather ends with, a reduce-scatter or all-to-all begins with, or a broadcast passes
            on; all of a ``send``. A ring sends the least that is possible; a library may choose
            another way for small tensors. ``None`` if a collective is of another kind.
    """

    total: int
    total_bytes: int
    by_name: Mapping[str, int]
    sent_bytes: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A count travels between processes, which its read-only mapping alone would not."""
        return _again, (self.total, self.total_bytes, dict(self.by_name), self.sent_bytes)


def _again(
    total: int, total_bytes: int, by_name: dict[str, int], sent_bytes: int | None
) -> CollectiveCount:
    return CollectiveCount(total, total_bytes, MappingProxyType(by_name), sent_bytes)


def count_collectives(step: Callable[[], object]) -> CollectiveCount:
    """Call ``step`` once and count the collectives that it asks for, backward passes included.

    It needs a process group, such as :func:`group_of_one` or :func:`pretended_group`. After its
    first backward pass a DistributedDataParallel model agrees on its buckets, with collectives of
    their own: let two steps pass before you count.

    Args:
        step: a function without arguments; its result is discarded. Whatever it raises is raised.

    Raises:
        UsageError: ``step`` cannot be called without arguments.
        MeasurementError: ``step`` ended a dispatch mode that began before.
    """
    check_function("step", step)
    counts: Counter[str] = Counter()
    sizes: list[int] = []
    sent: list[float | None] = []
    with _mode(counts, sizes, sent) as mode:
        step()
    if mode.was_lost:
        raise MeasurementError(WAS_LOST)
    by_name = dict(counts.most_common())
    known = [one for one in sent if one is not None]
    return CollectiveCount(
        sum(by_name.values()),
        sum(sizes),
        MappingProxyType(by_name),
        round(sum(known)) if len(known) == len(sent) else None,
    )


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group with this process alone; a group that exists already is used instead.

    Code for several processes runs in it and asks for the same collectives as among many: what a
    DistributedDataParallel model asks for depends on its parameters, not on the number of
    processes. Nothing is sent.

    Raises:
        MissingError: this torch is built without gloo, or gloo cannot start here.
    """
    global _last_group
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        yield
        return
    if not dist.is_available() or not dist.is_gloo_available():
        raise MissingError("counting collectives in one process needs a torch built with gloo")
    store = dist.HashStore()  # type: ignore[attr-defined]
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        _last_group = dist.group.WORLD
    except RuntimeError as error:  # the name of this host leads nowhere, for instance
        said = str(error).strip().splitlines()[0][:160]
        raise MissingError(
            f"gloo cannot start here ({said}); naming a network interface may help: set the "
            "environment variable GLOO_SOCKET_IFNAME=lo"
        ) from None
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def pretended_group(ranks: int, *, rank: int = 0) -> Iterator[None]:
    """A process group in which all others are pretended: this process alone, as one of ``ranks``.

    FSDP2, tensor parallelism and pipelines ask in it for what they ask among so many processes, so
    :func:`count_collectives` counts it without them. Nothing is sent, and what a collective
    returns is not what the others would have sent: gradients and losses mean nothing. A
    DistributedDataParallel model needs :func:`group_of_one` instead.

    Args:
        ranks: how many the group has, 1 to 65,536.
        rank: which of them this process is.

    Raises:
        UsageError: a number that cannot be, or a process group exists already.
        MissingError: this torch has no such group.
    """
    import torch.distributed as dist

    check_whole("ranks", ranks, 1, _MOST_RANKS)
    check_whole("rank", rank, 0, ranks - 1)
    if not dist.is_available():
        raise MissingError("a pretended group needs a torch built with torch.distributed")
    if dist.is_initialized():
        raise UsageError(
            "a process group exists already; end it first (torch.distributed."
            "destroy_process_group()), or count in it"
        )
    try:
        store = fake_group_store()
    except ImportError as error:
        raise MissingError(f"this torch has no pretended process group ({error})") from None
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _mode(counts: Counter[str], sizes: list[int], sent: list[float | None]) -> Any:
    class Count(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            if func.namespace in _NAMESPACES and not name.startswith(_ASK_NOBODY):
                counts[f"{func.namespace}::{name}"] += 1
                sizes.append(_nbytes((args, kwargs)))
                sent.append(_sent(name, func.namespace, args))
            return func(*args, **(kwargs or {}))

    return Count()


def _sent(name: str, namespace: str, args: Any) -> float | None:
    """Bytes that a rank sends, mean of the ring; None for a kind that is not known."""
    in_place = namespace == "c10d"  # with the output first, and the group as an object
    if name == "send":
        return _nbytes(args[0])
    if name.startswith(("recv", "barrier", "monitored_barrier")):
        return 0
    n = _group_size(args)
    if n is None or any(inner_tensors(one) is not None for one in _tensors(args)):
        return None  # of sparse tensors, each rank has others
    rest = (n - 1) / n
    if name.startswith(("allreduce", "all_reduce")):
        return 2 * rest * _nbytes(args[0])
    if name.startswith("broadcast"):
        return rest * _nbytes(args[0])
    if name.startswith(("allgather", "_allgather", "all_gather")):
        return (n - 1) * _nbytes(args[1 if in_place else 0])
    if name.startswith(("reduce_scatter", "_reduce_scatter", "alltoall", "all_to_all")):
        return rest * _nbytes(args[1 if in_place else 0])
    return None


def _nbytes(given: Any) -> int:
    """Of a sparse tensor those of its indices and values."""
    return sum(
        tensor.nbytes if parts is None else _nbytes(parts)
        for tensor in _tensors(given)
        for parts in [inner_tensors(tensor)]
    )


def _tensors(given: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]


def _group_size(args: Any) -> int | None:
    """How many ranks the group has that is among the arguments, as an object or by its name."""
    import torch
    import torch.distributed as dist

    for one in args:
        if isinstance(one, torch.ScriptObject):
            try:
                return int(dist.ProcessGroup.unbox(one).size())
            except (RuntimeError, TypeError):  # the kind of reduction comes as such an object, too
                continue
    names = [one for one in args if isinstance(one, str)]
    group = group_of_name(names[-1]) if names else None
    return None if group is None else int(group.size())
