"""What a trace does not say about the run: how its optimizers and torch are set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.base.compiling import CompileReport
from perfkit.base.machine.dataloader_stats import DataLoaderStats


@dataclass(frozen=True)
class OptimizerFacts:
    """How one optimizer is set up.

    Attributes:
        name: its class.
        n_tensors: parameter tensors.
        dtypes: of the parameters, distinct.
        devices: types of their devices, distinct.
        elements: of the parameters in each of the dtypes; empty where that is not known.
    """

    name: str
    n_tensors: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    elements: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What was known about the run while it was recorded; all None or empty for a file.

    Attributes:
        optimizers: in the order in which they first stepped.
        n_threads: torch's threads in one op.
        n_cores: cores that this process may use.
        gc_pauses_ms: how long each of Python's garbage collections in the profiled steps took.
        loading: what DataLoader workers and the training thread did with their time.
        compiled: what ``torch.compile`` did in all of the region; None if nothing.
        expandable_segments: whether the segments of the device's allocator could grow.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    n_threads: int | None = None
    n_cores: int | None = None
    gc_pauses_ms: tuple[float, ...] = ()
    loading: DataLoaderStats | None = None
    compiled: CompileReport | None = None
    expandable_segments: bool | None = None


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    """Read an optimizer's settings; any object with ``param_groups`` will do."""
    groups = [g for g in getattr(optimizer, "param_groups", ()) if isinstance(g, Mapping)]
    tensors = [p for g in groups for p in g.get("params", ())]
    elements: dict[str, int] = {}
    for p in tensors:
        dtype = str(p.dtype).removeprefix("torch.")
        elements[dtype] = elements.get(dtype, 0) + _n_elements(p)
    dtypes = tuple(sorted(elements))
    return OptimizerFacts(
        name=type(optimizer).__name__,
        n_tensors=len(tensors),
        dtypes=dtypes,
        devices=tuple(sorted({p.device.type for p in tensors})),
        elements=tuple(elements[dtype] for dtype in dtypes),
    )


def _n_elements(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except (RuntimeError, ValueError):  # one that is to get its shape later
        return 0
