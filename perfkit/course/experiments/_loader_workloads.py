"""The workload of lesson 04's experiments: pictures to decode, and a step that computes.

It is a separate module because the sweep's fresh processes import the workload by name.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from perfkit.experiment.settings import Settings

__all__ = ["BATCH", "Pictures", "decoded_pictures", "training_step"]

BATCH = 4
_SIZE, _SIDE = (640, 480), 128


@functools.cache
def _jpeg() -> bytes:
    """One generated picture of camera quality, encoded."""
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    out = io.BytesIO()
    picture = Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC)
    picture.save(out, "JPEG", quality=90)
    return out.getvalue()


class Pictures(Dataset[torch.Tensor]):
    """Each sample is decoded and resized, as from files in the page cache."""

    def __init__(self, n: int) -> None:
        self.n, self.data = n, _jpeg()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image

        picture = Image.open(io.BytesIO(self.data)).convert("RGB").resize((_SIDE, _SIDE))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def training_step() -> Callable[[torch.Tensor], None]:
    """A step that takes about as long on one core as decoding its pictures."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(pictures: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(pictures.float() / 255).sum().backward()
        optimizer.step()

    return step


def decoded_pictures(settings: Settings) -> Iterator[None]:
    """The sweep's workload, on one thread."""
    torch.set_num_threads(1)
    step = training_step()
    loader = DataLoader(Pictures(100_000), batch_size=BATCH, num_workers=settings.num_workers)
    for pictures in loader:
        step(pictures)
        yield
