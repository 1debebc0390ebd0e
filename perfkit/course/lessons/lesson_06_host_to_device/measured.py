"""Lesson 06: what is measured for two of its claims: round trips, and pinned memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import nn

from perfkit.course.kit.far_device import far_device
from perfkit.course.lessons.lesson_06_host_to_device.transfers import Way, feed, late_read
from perfkit.measure.compare import Comparison, compare
from perfkit.memory.crossings import crossings

_NBYTES, _COMPUTE_MS = 167_772_160, 12.0


@dataclass(frozen=True)
class RoundTrips:
    """A step as it should be, and the same step with one of the usual round trips.

    Attributes:
        crossed_bytes: what crosses in a step, both ways, by name.
        timed: on a GPU, the model's trip against the right step; else ``None``.
        emptied: on a GPU, ``empty_cache()`` in each step against the right step; else ``None``.
    """

    crossed_bytes: Mapping[str, int]
    timed: Comparison | None = None
    emptied: Comparison | None = None


@dataclass(frozen=True)
class Overlap:
    """Copies from pinned and from pageable memory.

    Attributes:
        simulated_ms: time of a step on the simulated device, by way; empty on a GPU.
        late: what a copy home holds that is read without waiting: ``"old"`` or ``"new"``.
        pinned: on a GPU, pinned and ``non_blocking`` against plain; else ``None``.
        pin_in_loop: on a GPU, ``pin_memory()`` in the loop against plain; else ``None``.
        host_ms: on a GPU, until ``.to`` returns, by whether it blocks; else empty.
    """

    simulated_ms: Mapping[str, float]
    late: str = ""
    pinned: Comparison | None = None
    pin_in_loop: Comparison | None = None
    host_ms: Mapping[bool, float] | None = None


def round_trips(device: str = "cpu", *, budget_s: float = 3.0) -> RoundTrips:
    """Count what crosses in such steps; on a GPU also time them."""
    steps = mistakes(far_device())
    crossed = {}
    for name, step in steps.items():
        crossings(step)  # gradients exist from the second step on
        found = crossings(step)
        crossed[name] = found.to_device_bytes + found.to_host_bytes
    if device != "cuda":
        return RoundTrips(crossed)
    right = steps["as it should be"]

    def emptied() -> None:
        right()
        torch.cuda.empty_cache()

    again = steps["model.cpu() and back"]
    return RoundTrips(
        crossed,
        compare(again, right, budget_s=budget_s),
        compare(emptied, right, budget_s=budget_s),
    )


def overlap(device: str = "cpu", *, budget_s: float = 3.0) -> Overlap:
    """On a GPU, time pinned copies against plain ones; else take the simulated device."""
    if device == "cuda":
        return _overlap_on_cuda(budget_s)
    ways: tuple[Way, ...] = get_args(Way)
    took: dict[str, float] = {
        way: feed(way, nbytes=_NBYTES, compute_ms=_COMPUTE_MS)[0] for way in ways
    }
    return Overlap(took, late_read(nbytes=4096, wait=False))


def _overlap_on_cuda(budget_s: float) -> Overlap:
    pageable = torch.zeros(32, 512, 512, 3, dtype=torch.uint8)
    pinned = pageable.pin_memory()

    def host_ms(*, non_blocking: bool) -> float:
        """Milliseconds until ``.to`` returns, median of 20."""
        times = []
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            pinned.to("cuda", non_blocking=non_blocking)
            times.append((time.perf_counter_ns() - begin) / 1e6)
        return float(np.median(times))

    timed = compare(
        lambda: pageable.to("cuda"),
        lambda: pinned.to("cuda", non_blocking=True),
        names=("pageable", "pinned, non_blocking"),
        budget_s=budget_s,
    )
    in_loop = compare(
        lambda: pageable.to("cuda"),
        lambda: pageable.pin_memory().to("cuda", non_blocking=True),
        names=("pageable", "pin_memory() in the loop"),
        budget_s=budget_s,
    )
    waits = {blocks: host_ms(non_blocking=not blocks) for blocks in (True, False)}
    return Overlap({}, "", timed, in_loop, waits)


def mistakes(device: torch.device) -> dict[str, Callable[[], object]]:
    """A step as it should be, and the same step with one of the usual round trips."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
    batch = torch.rand(64, 1024)

    def step() -> torch.Tensor:
        outputs: torch.Tensor = model(batch.to(device))
        outputs.sum().backward()  # type: ignore[no-untyped-call]
        return outputs

    def model_again() -> None:
        model.cpu()  # as after a checkpoint or an evaluation on the host
        model.to(device)
        step()

    def outputs_home() -> None:
        step().detach().cpu().argmax(dim=1)

    def loss_home() -> None:
        step().sum().item()

    return {
        "as it should be": step,
        "model.cpu() and back": model_again,
        "outputs.cpu()": outputs_home,
        ".item()": loss_home,
    }
