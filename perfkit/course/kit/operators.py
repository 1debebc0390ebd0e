"""How many operators a piece of code asks for: a count, which no clock can blur.

A host that calls thousands of small operators is busy with calling, on a CPU as in front of a GPU,
where each of them is at least one launch. So the number by itself says what a rewrite saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perfkit.base.arguments import check_function
from perfkit.base.errors import MeasurementError
from perfkit.base.torch_compat import WAS_LOST, dispatch_mode_class

# They set memory aside and compute nothing; a GPU launches nothing for them.
_ONLY_MEMORY = ("empty", "new_empty", "_unsafe_view")


@dataclass(frozen=True)
class OperatorCount:
    """The operators of one call.

    Attributes:
        total: operators that compute or copy something. Views and empty tensors do not count.
        by_name: the same by name, e.g. ``"aten::add"``, most often called first.
    """

    total: int
    by_name: Mapping[str, int]


def count_operators(step: Callable[[], object]) -> OperatorCount:
    """Call ``step`` once and count the operators that it asks for, backward passes included.

    Counted are torch's operators as they reach a device, after autograd: a layer may be several,
    and a backward pass has its own. Where code is compiled, what is inside one of its kernels is
    not seen. Counting takes some 10 µs an operator.

    Args:
        step: a function without arguments; its result is discarded. Whatever it raises is raised.

    Raises:
        UsageError: ``step`` cannot be called without arguments.
        MeasurementError: ``step`` ended a dispatch mode that began before.

    Example::

        >>> x = torch.rand(8)
        >>> count_operators(lambda: x.add(1).mul(2)).total
        2
    """
    check_function("step", step)
    counts: Counter[str] = Counter()
    with _mode(counts) as mode:
        step()
    if mode.was_lost:
        raise MeasurementError(WAS_LOST)
    by_name = dict(counts.most_common())
    return OperatorCount(sum(by_name.values()), MappingProxyType(by_name))


def _mode(counts: Counter[str]) -> Any:

    class Count(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            if not func.is_view and not name.startswith(_ONLY_MEMORY):
                counts[f"{func.namespace}::{name}"] += 1
            return func(*args, **(kwargs or {}))

    return Count()
