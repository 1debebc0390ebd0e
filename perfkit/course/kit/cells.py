"""Pictures of cells in a grid, and which cell each pixel belongs to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A cell's radius in units of the grid that the cells lie on: they never touch.
_RADIUS = 0.36
_JITTER = 0.2


def cells(n: int, side: int, instances: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of cells, and which cell each pixel belongs to.

    Args:
        n: number of pictures.
        side: width and height.
        instances: cells in each picture; each has at least one pixel if there are ten for each.
        seed: seed of the random numbers.

    Returns:
        Pictures, float32 ``(n, 1, side, side)``, and instances, int64 ``(n, side, side)``: the
        number of the cell from 1 on, 0 for background.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    columns = math.ceil(math.sqrt(instances))
    rows = math.ceil(instances / columns)
    number = torch.arange(instances)
    grid = torch.stack([number // columns, number % columns], dim=1) + 0.5
    centres = grid + _JITTER * (torch.rand((n, instances, 2), generator=random) - 0.5)
    each = (torch.arange(side) + 0.5) / side
    pixels = torch.cartesian_prod(each * rows, each * columns)
    distance, nearest = torch.cdist(pixels.expand(n, -1, -1), centres).min(dim=2)
    inside = (distance < _RADIUS).view(n, side, side)
    instance = torch.where(inside, nearest.view(n, side, side) + 1, 0)
    light = (1 - distance / _RADIUS).clamp(min=0).sqrt().view(n, 1, side, side)
    return light + 0.1 * torch.randn(light.shape, generator=random), instance
