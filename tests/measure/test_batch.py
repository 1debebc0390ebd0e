from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.measure.batch import SampleCounter, parts_of

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


class Hostile:
    """A batch whose every door is trapped."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    @property
    def shape(self) -> tuple[int, ...]:
        raise self.error("mine")


class HostileMapping(UserDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no such column is loaded")


@pytest.mark.parametrize(
    "batch",
    [
        Hostile(RuntimeError),
        Hostile(ValueError),
        [Hostile(OSError), IMAGES],
        HostileMapping(x=IMAGES),
    ],
)
def test_a_batch_that_raises_has_no_known_size(batch: Any) -> None:
    assert SampleCounter()(batch) is None


def test_a_batch_that_raises_after_others_did_not() -> None:
    count = SampleCounter()
    seen = [count(b) for b in ({"x": IMAGES}, HostileMapping(x=IMAGES), {"x": LABELS[:3]})]
    assert seen == [8, None, 3]


class Counting(dict[int, Any]):
    looks = 0

    def __getitem__(self, key: int) -> Any:
        self.looks += 1
        return super().__getitem__(key)


def test_a_huge_batch_is_looked_into_as_far_as_a_small_one() -> None:
    wide = Counting((i, i) for i in range(100_000))
    assert SampleCounter()(wide) is None
    assert wide.looks <= 16
    leaves = [[[Counting(enumerate(range(16)))] * 16] * 16] * 16
    assert SampleCounter()(leaves) is None
    assert leaves[0][0][0].looks <= 64


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        ([[[[IMAGES]]]], True),  # four levels deep
        ([[[[[IMAGES]]]]], False),
        ([7] * 15 + [IMAGES], True),  # the 16th entry
        ([7] * 16 + [IMAGES], False),
        ([[7] * 16] * 3 + [IMAGES], True),  # after 52 looks
        ([[7] * 16] * 4 + [IMAGES], False),
    ],
)
def test_how_far_a_batch_is_looked_into(batch: Any, seen: bool) -> None:
    assert SampleCounter()(batch) == (8 if seen else None)
    assert [part is IMAGES for part in parts_of(batch)] == [True] * seen
