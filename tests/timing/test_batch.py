from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.timing.batch import SampleCounter

IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8)


@dataclass
class Batch:
    step: int
    images: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (IMAGES, 8),
        ([IMAGES, LABELS], 8),
        ((IMAGES, LABELS), 8),
        (np.zeros((5, 2)), 5),
        ({"id": "a", "x": {"pixels": IMAGES}}, 8),
        (UserDict(input_ids=LABELS), 8),
        (Batch(3, IMAGES), 8),
        (["name", 7, torch.tensor(1.0), LABELS], 8),
        # detection: tuple(zip(*samples)) of three images of different size
        ((tuple(torch.zeros(3, n, n) for n in (4, 5, 6)), ({}, {}, {})), 3),
        (torch.tensor(1.0), None),
        (7, None),
        ("text", None),
        ([], None),
        (None, None),
        (IMAGES.to("meta"), 8),  # no data anywhere: only the shape is read
    ],
)
def test_first_dimension_of_the_first_tensor(batch: Any, samples: int | None) -> None:
    assert SampleCounter()(batch) == samples


def test_follows_batches_that_change() -> None:
    count = SampleCounter()
    seen = [count(b) for b in ([IMAGES, 1], [IMAGES[:2], 1], {"x": LABELS[:3]}, 4, [IMAGES, 1])]
    assert seen == [8, 2, 3, None, 8]


def test_endless_nesting_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert SampleCounter()(loop) is None
