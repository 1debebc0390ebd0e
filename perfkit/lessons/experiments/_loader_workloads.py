"""The workload of lesson 04's sweep: importable by name, for children that start anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from perfkit.experiment.settings import Settings


class _Late(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.zeros(8)


def slow_samples(settings: Settings) -> Iterator[None]:
    """Samples that take 2 ms to come, four a batch, before a step of 4 ms."""
    for _ in DataLoader(_Late(), batch_size=4, num_workers=settings.num_workers):
        time.sleep(0.004)
        yield
