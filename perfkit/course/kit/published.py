"""A published step time that two lessons look into: its figures and network, and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Classes of the lessons' masks.
CLASSES = 10
#: Marks unlabelled pixels.
IGNORE = 255
#: A class that is in no mask: absent classes must not break a loss.
ABSENT = CLASSES - 1


@dataclass(frozen=True)
class Published:
    """Published step times, the training they belong to, and the peak rates of its GPU.

    31 TFLOP/s is float32 without tensor cores; 600 GB/s is the memory bandwidth.
    """

    before_ms: float = 1300.0
    after_ms: float = 5.4
    batch: int = 256
    side: int = 256
    convolutions: int = 12
    channels: int = 10
    gpu: str = "A10G"
    tflop_per_s: float = 31.0
    gb_per_s: float = 600.0


#: The figures behind claim E5.
PUBLISHED = Published()


def masks(n: int, side: int, density: float, *, seed: int = 0) -> torch.Tensor:
    """Masks in which a random part of the pixels is labelled.

    Args:
        n, side: number of masks, and their width and height.
        density: share of labelled pixels, 0 … 1.
        seed: seed of the random numbers.

    Returns:
        int64 ``(n, side, side)``: a class from 0 to ``CLASSES - 2`` (the last never occurs) or
        ``IGNORE``.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(ABSENT, (n, side, side), generator=random)
    labelled = torch.rand((n, side, side), generator=random) < density
    return torch.where(labelled, classes, IGNORE)


def published_network() -> nn.Sequential:
    """Twelve convolutions of ten channels, 3 × 3, with a ReLU between them."""
    from torch import nn

    layers: list[nn.Module] = []
    for number in range(PUBLISHED.convolutions):
        inputs = 3 if number == 0 else PUBLISHED.channels
        layers += [nn.Conv2d(inputs, PUBLISHED.channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def published_step(
    device: str = "meta", *, batch: int = PUBLISHED.batch, side: int = PUBLISHED.side
) -> Callable[[], torch.Tensor]:
    """A training step of :func:`published_network`; it returns the loss, still on the device.

    On ``"meta"`` there are shapes but no data: nothing is computed, everything can be counted.
    """
    import torch
    from torch.nn.functional import cross_entropy

    with torch.device(device):
        network = published_network()
        pictures = torch.zeros(batch, 3, side, side)
        target = torch.zeros(batch, side, side, dtype=torch.int64)
    # without foreach, which is the default only on a GPU: the same operators everywhere
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, foreach=False)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(network(pictures), target, ignore_index=IGNORE)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step
