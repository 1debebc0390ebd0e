"""What is done to each item alike is done to all rows of a batch, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_convert

from perfkit.base.by_rows import by_rows, changes_alike


class _Images(Dataset[Any]):
    def __init__(self) -> None:
        self.data = np.random.default_rng(0).integers(0, 255, (32, 1, 8, 8), dtype=np.uint8)
        self.labels = torch.arange(32)
        self.mean = np.float32(0.5)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> Any:
        image = self.data[i].astype(np.float32) / 255.0
        image = (image - self.mean) / 0.25
        return torch.from_numpy(image), self.labels[i]


class _Random(_Images):
    def __getitem__(self, i: int) -> Any:
        return self.data[i].astype(np.float32) + np.random.rand()


class _Chosen(_Images):
    def __getitem__(self, i: int) -> Any:
        return self.data[i].astype(np.float32) if self.labels[i] > 3 else self.data[0]


class _Cut(_Images):
    def __getitem__(self, i: int) -> Any:
        return self.data[i][:, :4].astype(np.float32)


def test_batches_are_the_same() -> None:
    names: dict[str, Any] = {"np": np, "torch": torch}
    exec(by_rows(_Images(), ["data"]).partition("\nloader =")[0], names)
    fast = type("_Fast", (_Images,), {"__getitems__": names["__getitems__"]})()
    slow = DataLoader(_Images(), batch_size=8)
    for one, other in zip(slow, DataLoader(fast, 8, collate_fn=default_convert), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", [_Random, _Chosen, _Cut])
def test_what_may_depend_on_the_row_has_none(kind: Any) -> None:
    assert changes_alike(kind()) == ""
