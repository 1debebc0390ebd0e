"""Lesson 11: what a kept loss holds in the host's memory, measured in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from torch import nn

from perfkit.course.kit.fresh_process import in_fresh_process
from perfkit.memory.graphs import nodes_of

_BLOCKS = 4
_LOSSES = 400


@dataclass(frozen=True)
class KeptAfterBackward:
    """What a loss keeps after its backward pass.

    Attributes:
        nodes: nodes of its graph.
        resident_bytes: growth of the process's resident memory per loss, allocator's rounding
            included.
        blocks: blocks of the network (convolution, group norm, GELU).
    """

    nodes: int
    resident_bytes: float
    blocks: int


def kept_after_backward(device: str = "cpu") -> KeptAfterBackward:
    """Train a tiny network in a fresh process, and keep each loss.

    Args:
        device: ``"cpu"`` or ``"cuda"``; the nodes are in the host's memory either way.

    Raises:
        MeasurementError: the process failed; the message says how.
    """
    nodes, resident = in_fresh_process(_growth, device)
    return KeptAfterBackward(int(nodes), float(resident), _BLOCKS)


def _growth(device: str, n: int = _LOSSES) -> tuple[int, float]:
    """Nodes and resident bytes per kept loss.

    A first round fills the allocator's free memory, so that a second one must request more.
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(_BLOCKS):
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU()]
    network = nn.Sequential(*layers).to(device)
    picture = torch.randn(1, 4, 8, 8, device=device)
    process = psutil.Process()
    kept, found = [], []
    for _ in range(2):
        before = process.memory_info().rss
        for _ in range(n):
            loss = network(picture).square().mean()
            loss.backward()
            kept.append(loss)
        found.append((process.memory_info().rss - before) / n)
    (nodes,) = nodes_of(kept[-1:])
    return nodes, max(0.0, found[-1])
