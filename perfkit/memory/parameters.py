"""Parameters: what optimizers have of them, what modules hold them, and rows that a step uses."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Iterable
from typing import Any

# Of one model.
_MOST_MODULES = 20_000
# Numbers of a table that is worth a look, and of one that takes too long.
_LARGE_TABLE, _MOST_NUMBERS = 1_000_000, 50_000_000


def all_optimizers() -> list[Any]:
    """Those that there are, whether they have stepped or not."""
    from torch.optim import Optimizer

    return [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]


def stepped_by(optimizers: Iterable[Any]) -> set[Any]:
    """The parameters that these update."""
    return {p for one in optimizers for group in one.param_groups for p in group["params"]}


def takes_sparse(optimizers: Iterable[Any], parameter: Any) -> bool:
    """Whether what updates it takes sparse gradients as they are: SGD without momentum or decay."""
    return all(
        type(one).__name__ == "SGD" and not (group["momentum"] or group["weight_decay"])
        for one in optimizers
        for group in one.param_groups
        if parameter in set(group["params"])
    )


def is_plain_with_grad(parameter: Any) -> bool:
    """Whether it has a gradient, and may be read without asking other ranks."""
    from torch.nn import Parameter

    return type(parameter) is Parameter and parameter.grad is not None and parameter.numel() > 0


def largest_with(parameters: Iterable[Any], models: Iterable[Any]) -> list[str]:
    """The modules that hold only such parameters, without those inside of them."""
    known = {id(p) for p in parameters}
    largest, inner = dict[int, tuple[str, Any]](), set[int]()
    for model in models:
        for path, one in itertools.islice(model.named_modules(), _MOST_MODULES):
            own = {id(p) for p in one.parameters()}
            if own and known >= own and id(one) not in inner:
                largest[id(one)] = path, one
                inner.update(id(part) for part in one.modules() if part is not one)
    return [_written(*one) for key, one in largest.items() if key not in inner]


def _written(path: str, module: Any) -> str:
    from perfkit.memory.holders import holder_of

    name = re.sub(r" \(in .*?\)", "", holder_of(module) or "")
    name = re.sub(r"\._modules\['(\d+)'\]", r"[\1]", name)
    name = re.sub(r"\._modules\['(\w+)'\]", r".\1", name)
    if re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*|\[\d+\])*", name):
        return name
    return f"model.get_submodule({path!r})" if path else "model"


def rows_used(weight: Any) -> int | None:
    """Rows of a gradient with a number in them; None where that is not known, or dear to ask."""
    grad = weight.grad
    if grad is None or grad.is_sparse or grad.device.type != "cpu" or grad.ndim != 2:
        return None
    if not _LARGE_TABLE <= grad.numel() <= _MOST_NUMBERS or str(grad.dtype) == "torch.bfloat16":
        return None
    # numpy: no operator of torch's, which a recording would show
    return int(grad.detach().numpy().any(axis=1).sum())
