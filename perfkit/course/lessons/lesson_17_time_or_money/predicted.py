"""Lesson 17: steps that run on no device: counted from their shapes, timed by data sheets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from perfkit.advice.profile import Profile
from perfkit.advice.profiling import profile
from perfkit.base.torch_compat import fake_mode
from perfkit.trace.ask.limit import Limit, limit


def on_paper(make_step: Callable[[], Callable[[], object]]) -> Profile:
    """Record one step on tensors that have a shape and no memory, under autocast to bf16.

    Its shapes are those of the real step, so its work can be counted however large it is. Its times
    mean nothing. A recorded list has at most 30 tensors: with more parameters, the optimizer's
    work is not counted.

    Args:
        make_step: builds model and optimizer on the CPU and returns a training step.
    """
    with fake_mode():
        step = make_step()

        def in_bf16() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                step()

        return profile(in_bf16, shapes=True, steps=1, warmup=1, repeat=2, lines=False)


def count(recorded: Profile, device: str | None = None) -> Limit:
    """The work of a recorded step, and the lower bound of it on a device of the table."""
    return limit(recorded.trace, device=device)


def least_ms(recorded: Profile, devices: Iterable[str]) -> dict[str, float]:
    """Device → the lower bound of a recorded step by its data sheet, in ms: predicted.

    Raises:
        UsageError: there is no data sheet of a device.
    """
    return {name: count(recorded, name).least_us / 1e3 for name in devices}
