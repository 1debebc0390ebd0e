"""The runs to compare: calls of a function, or runs of a session."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from perfkit.base.device import in_use
from perfkit.base.errors import UsageError
from perfkit.experiment.process._fingerprint import FORMATS, STEPS, Fingerprint, Watch, lowest
from perfkit.experiment.process.result import RunResult

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Trial:
    """One run of one arm."""

    losses: Sequence[float | None]
    prints: Fingerprint | None
    precision: str
    samples: float | None = None
    trouble: str = ""


class Trials:
    """The runs of one arm; a function is called when another run is needed."""

    def __init__(self, arm: Any, name: str, seed: int) -> None:
        self._arm = arm
        self._name = name
        self._seed = seed
        self.first: list[Trial]
        if isinstance(arm, RunResult):
            self.first = [_of_run(arm)]
        elif isinstance(arm, Sequence) and arm and all(isinstance(x, RunResult) for x in arm):
            self.first = [_of_run(run) for run in arm]
        elif callable(arm):
            self.first = [self.again()]
        else:
            raise UsageError(
                f"{name} is {type(arm).__name__}: same_result compares functions that return a "
                f"loss, or runs of a session"
            )

    def again(self) -> Trial:
        with _seeded(self._seed), Watch(STEPS, names_at_once=True) as watch:
            losses, parameters = _called(self._arm, watch, self._name)
        prints = watch.found()
        if prints is None and parameters:
            reader = Watch()
            reader.read(parameters)
            read = reader.found()
            if read is not None and any(g is not None for g in read.steps[0].gradients.values()):
                prints = read
        for parameter in parameters:
            parameter.grad = None
        formats = {prints.precision} if prints else {"fp32"}
        return Trial(losses, prints, lowest(formats | watch.formats))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Use the same random numbers for each call, and restore the caller's afterwards."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state()
    gpu = in_use()
    kind = "cuda" if gpu.is_cpu else gpu.type  # of no devices, where there is no GPU
    with torch.random.fork_rng(devices=range(gpu.count()), device_type=kind):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _called(
    function: Callable[[], Any], watch: Watch, name: str
) -> tuple[list[float | None], list[Any]]:
    """The losses and parameters that one call returned."""
    from perfkit.experiment.process.worker import as_float, told

    result = function()
    losses: list[float | None] = []
    if isinstance(result, Iterator):
        for value in islice(result, STEPS):
            loss = told(value)[1]
            losses.append(None if loss is None else as_float(loss))
            watch.after_step()
        close = getattr(result, "close", None)
        if close is not None:
            close()
        return losses, []
    parameters: list[Any] = []
    if isinstance(result, tuple) and len(result) == 2:
        found = _parameters(result[1])
        if found is not None:
            result, parameters = result[0], found
    losses += _losses(result, name)[:STEPS]
    return losses, parameters


def _losses(result: Any, name: str) -> list[float]:
    import numpy as np

    detach = getattr(result, "detach", None)
    if getattr(result, "is_meta", False):
        raise UsageError(f"{name} returned a tensor on the meta device, which has no values")
    if detach is not None:
        result = detach().double().cpu().numpy()
    elif isinstance(result, list | tuple):
        result = [float(x) if _is_number(x) else math.nan for x in result]
    try:
        losses = np.asarray(result, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        losses = np.empty((0, 0, 0))
    if losses.ndim > 1 or (losses.ndim == 1 and not losses.size):
        raise UsageError(
            f"{name} returned {type(result).__name__}: return the loss, the losses of the steps, "
            f"or (loss, model)"
        )
    return [float(x) for x in np.atleast_1d(losses)]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return True


def _parameters(value: Any) -> list[Tensor] | None:
    """Parameters of a module, or the tensors of a list or generator; None for anything else."""
    from torch import Tensor
    from torch.nn import Module

    if isinstance(value, Module):
        return list(value.parameters())
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Iterator | list | tuple):
        found = list(value)
        if found and all(isinstance(p, Tensor) and p.requires_grad and p.is_leaf for p in found):
            return found
    return None


def _of_run(run: RunResult) -> Trial:
    losses = [None if math.isnan(x) else float(x) for x in run.loss[:STEPS]]
    if len(run.index) > 1 and run.index[1] != 1:
        losses = []  # a long run from a store: its curve holds averages of neighbours
    prints = run.gradients
    formats = {prints.precision} if prints else set()
    set_to = run.values.get("precision")
    if set_to in FORMATS:
        formats.add(set_to)
    trouble = ""
    if not run.ok:
        trouble = f"run {run.run_id} {run.state}" + (f" ({run.message})" if run.message else "")
    return Trial(losses, prints, lowest(formats), run.samples_per_step, trouble)
