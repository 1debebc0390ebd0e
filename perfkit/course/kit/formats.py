"""In which number format a step computes, and what it keeps for its backward pass.

Under ``torch.autocast`` each operator decides for itself, by lists that differ from device to
device. Loss and gradients do not show it: both are float32 again. So ask the operators.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfkit.base.arguments import check_function
from perfkit.base.display import Shown
from perfkit.base.errors import MeasurementError
from perfkit.base.torch_compat import WAS_LOST, dispatch_mode_class
from perfkit.base.words import fmt_bytes, fmt_count, plural
from perfkit.show.document import Document, Table, document_for

if TYPE_CHECKING:
    import torch

_CAST = "_to_copy"
# parts of the names of what moves numbers or sets memory aside, and computes nothing
_MOVES = ("copy", "clone", "view", "empty", "stack", "cat")


@dataclass(frozen=True)
class FormatCount(Shown):
    """The number formats of one call.

    Attributes:
        operators: operator, e.g. ``"aten::mm"`` → format of its result, e.g. ``"bfloat16"`` → how
            often. Views, copies, and results that are no floating-point numbers do not count.
        casts: copies from one floating-point format to another.
        saved_bytes: format → bytes kept for the backward pass, each storage once, without
            parameters. Floating-point numbers only. By module:
            :func:`~perfkit.memory.kept.kept_for_backward`.
    """

    operators: Mapping[str, Mapping[str, int]]
    casts: int
    saved_bytes: Mapping[str, int]

    @property
    def total_saved_bytes(self) -> int:
        """Bytes kept for the backward pass, in all formats."""
        return sum(self.saved_bytes.values())

    def of(self, *names: str) -> dict[str, int]:
        """Format → number of these operators, e.g. ``of("aten::mm", "aten::addmm")``."""
        found: Counter[str] = Counter()
        for name in names:
            found.update(self.operators.get(name, {}))
        return dict(sorted(found.items()))


def count_formats(step: Callable[[], object]) -> FormatCount:
    """Call ``step`` once and note the format of each operator, backward passes included.

    Counted are torch's operators as they reach a device, after autocast and autograd. Where code
    is compiled, what is inside one of its kernels is not seen. What is kept for the backward pass
    lives until the call ends, also if the step would have freed it earlier.

    Args:
        step: a function without arguments; its result is discarded. Whatever it raises is raised.

    Raises:
        UsageError: ``step`` cannot be called without arguments.
        MeasurementError: ``step`` ended a dispatch mode that began before.
        RuntimeError: torch's own, where ``step`` uses ``torch.func.grad``, ``vjp``, ``jacrev`` or
            ``hessian``, or runs where saved-tensors hooks are off: what a graph keeps cannot be
            seen there.

    Example::

        >>> layer, x = torch.nn.Linear(8, 8), torch.rand(4, 8)
        >>> def step():
        ...     with torch.autocast("cpu", dtype=torch.bfloat16):
        ...         layer(x)
        >>> dict(count_formats(step).operators["aten::addmm"])
        {'bfloat16': 1}
    """
    import torch

    check_function("step", step)
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    saved = _Saved()
    casts: Counter[str] = Counter()
    with (
        torch.autograd.graph.saved_tensors_hooks(saved.keep, _same),
        _mode(operators, casts) as mode,
    ):
        step()
    if mode.was_lost:
        raise MeasurementError(WAS_LOST)
    by_name = sorted(operators.items(), key=lambda item: -item[1].total())
    return FormatCount(
        MappingProxyType({name: MappingProxyType(dict(found)) for name, found in by_name}),
        casts.total(),
        MappingProxyType(saved.by_format()),
    )


class _Saved:
    """Storages that a graph keeps, and the format in which each was first seen."""

    def __init__(self) -> None:
        # the storage itself, so that its address is not used again
        self._kept: dict[int, tuple[Any, str]] = {}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        made_from = tensor if tensor._base is None else tensor._base
        is_parameter = made_from.is_leaf and made_from.requires_grad
        if tensor.is_floating_point() and not is_parameter:
            storage = tensor.untyped_storage()
            self._kept.setdefault(storage._cdata, (storage, _format(tensor)))
        return tensor

    def by_format(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for storage, form in self._kept.values():
            found[form] += storage.nbytes()
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _format(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _mode(operators: Mapping[str, Counter[str]], casts: Counter[str]) -> Any:
    import torch

    class Formats(dispatch_mode_class()):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            given = _floats(args)
            # what works on lists of tensors, as optimizers do on a GPU, returns nothing
            made = _floats(_listed(result) if result is not None else _written(func, args))
            if name == _CAST and given and made and given[0].dtype != made[0].dtype:
                casts[_format(made[0])] += 1
            elif made and not func.is_view and not any(part in name for part in _MOVES):
                operators[f"{func.namespace}::{name}"][_format(made[0])] += 1
            return result

    def _floats(values: Iterable[Any]) -> list[torch.Tensor]:
        tensors = (one for one in values if isinstance(one, torch.Tensor))
        return [one for one in tensors if one.is_floating_point()]

    return Formats()


def _written(func: Any, args: Sequence[Any]) -> Iterable[Any]:
    """The tensors that an operator changes, of those that were given by position."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _listed(value)


def _listed(result: Any) -> Iterable[Any]:
    return result if isinstance(result, tuple | list) else (result,)


@document_for(FormatCount)
def _formats(obj: FormatCount) -> Document:
    each: Counter[str] = Counter()
    for forms in obj.operators.values():
        each.update(forms)
    computed = ", ".join(f"{fmt_count(n)} in {form}" for form, n in each.most_common())
    kept = ", ".join(f"{fmt_bytes(n)} in {form}" for form, n in obj.saved_bytes.items())
    formats = dict.fromkeys([*(form for form, _ in each.most_common()), *obj.saved_bytes])
    return Document(
        name="format count",
        sentence=(
            f"Operators: {computed or 'none with numbers as a result'}; "
            f"{plural(obj.casts, 'cast')} between formats; kept for the backward pass: "
            f"{kept or 'nothing'}."
        ),
        tables=(
            Table(
                ("Format", "Operators", "Kept for backward"),
                tuple(
                    (form, fmt_count(each[form]), fmt_bytes(obj.saved_bytes.get(form, 0)))
                    for form in formats
                ),
                title="By format",
                open=True,
            ),
            Table(
                ("Operator", "Result", "Times"),
                tuple(
                    (name, form, fmt_count(n))
                    for name, forms in obj.operators.items()
                    for form, n in forms.items()
                ),
                title="By operator",
                align="<<>",
                code="c..",
                brief=False,
            ),
        ),
    )
