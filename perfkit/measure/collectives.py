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
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import check_function
from perfkit.base.errors import MissingError
from perfkit.base.torch_compat import dispatch_mode_class

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CollectiveCount", "count_collectives", "group_of_one"]

# c10d: torch.distributed and DDP; the others: functional collectives, which FSDP's and DTensor's
# newer code asks for
_NAMESPACES = frozenset({"c10d", "c10d_functional", "_c10d_functional", "_dtensor"})
# they wait for an earlier one, or mark its result
_ASK_NOBODY = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class CollectiveCount:
    """The collectives of one call, as this process asked for them.

    Attributes:
        total: their number.
        total_bytes: bytes of the tensors that were given to them, inputs and outputs; for an
            all-reduce, which works in place, the bytes of its tensor.
        by_name: their number by name, e.g. ``"c10d::allreduce_"``, most frequent first.
    """

    total: int
    total_bytes: int
    by_name: Mapping[str, int]


def count_collectives(step: Callable[[], object]) -> CollectiveCount:
    """Call ``step`` once and count the collectives that it asks for, backward passes included.

    It needs a process group, such as :func:`group_of_one`. After its first backward pass a
    DistributedDataParallel model agrees on its buckets, with collectives of their own: let two
    steps pass before you count.

    Args:
        step: a function without arguments; its result is discarded. Whatever it raises is raised.

    Raises:
        UsageError: ``step`` cannot be called without arguments.
    """
    check_function("step", step)
    counts: Counter[str] = Counter()
    sizes: list[int] = []
    with _mode(counts, sizes):
        step()
    by_name = dict(counts.most_common())
    return CollectiveCount(sum(by_name.values()), sum(sizes), MappingProxyType(by_name))


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group with this process alone; a group that exists already is used instead.

    Code for several processes runs in it and asks for the same collectives as among many: what a
    DistributedDataParallel model asks for depends on its parameters, not on the number of
    processes. Nothing is sent.

    Raises:
        MissingError: this torch is built without gloo, or gloo cannot start here.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        yield
        return
    if not dist.is_available() or not dist.is_gloo_available():
        raise MissingError("counting collectives in one process needs a torch built with gloo")
    store = dist.HashStore()  # type: ignore[attr-defined]
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
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


def _mode(counts: Counter[str], sizes: list[int]) -> TorchDispatchMode:
    import torch
    from torch.utils._pytree import tree_leaves

    class Count(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            if func.namespace in _NAMESPACES and not name.startswith(_ASK_NOBODY):
                counts[f"{func.namespace}::{name}"] += 1
                tensors = tree_leaves((args, kwargs))
                sizes.append(sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor)))
            return func(*args, **(kwargs or {}))

    mode: TorchDispatchMode = Count()
    return mode
