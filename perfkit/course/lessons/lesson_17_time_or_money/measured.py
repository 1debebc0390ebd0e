"""Lesson 17: a stream of batches that arrive when they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset


class Arriving(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches of texts from a store that sends one every so often: the wait is simulated.

    Args:
        every_ms: from one batch to the next.
        words: as many different ones as there are.
        batch: texts.
        length: words of a text.
    """

    def __init__(self, every_ms: float, *, words: int, batch: int, length: int) -> None:
        self.every_ms, self.words, self.shape = every_ms, words, (batch, length)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Endless; int64 (batch, length) and int64 (batch,)."""
        generator = torch.Generator().manual_seed(0)
        while True:
            time.sleep(self.every_ms / 1e3)
            texts = torch.randint(self.words, self.shape, generator=generator)
            yield texts, torch.randint(4, self.shape[:1], generator=generator)
