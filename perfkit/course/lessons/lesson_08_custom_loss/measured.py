"""Lesson 08: what only a GPU shows: launches of a step, and the waits that really happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfkit.advice.profiling import profile
from perfkit.base.errors import MissingError
from perfkit.course.kit.real_waits import check_syncs
from perfkit.synclint.find import NOT_SEEN, find_syncs


@dataclass(frozen=True)
class OnGpu:
    """A step on a GPU.

    Attributes:
        launches: kernels, copies and memsets in a step.
        waits: how often the host waited in a step.
        predicted_waits: how often it was predicted to.
    """

    launches: int
    waits: int
    predicted_waits: int


def on_gpu(step: Callable[[], object], model: torch.nn.Module) -> OnGpu:
    """Run a step a few times on a GPU, and count.

    Raises:
        MissingError: torch sees no GPU.
    """
    if not torch.cuda.is_available():
        raise MissingError("launches and real waits need a GPU")
    check = check_syncs(step, model)
    with profile(steps=2, warmup=1, lines=False) as profiling:
        profiling.call(step, repeat=3)
    found = profiling.result
    launches = sum(one.n_launches for one in found.operators)
    return OnGpu(
        round(launches / max(found.n_steps, 1)),
        sum(one.count for one in check if one.outcome != NOT_SEEN),
        sum(one.count for one in find_syncs(step, model)),
    )
