"""The memory of a step above what was there before it."""

from __future__ import annotations

import gc

import torch

from perfkit.course.kit.rise import rise_bytes


class _Cycle:
    """Holds itself: only the collector ends it."""

    def __init__(self) -> None:
        self.me, self.tensor = self, torch.ones(1000)


def test_what_the_collector_ends_meanwhile_hides_nothing() -> None:
    def step() -> None:
        gc.collect()
        torch.ones(2000)

    gc.disable()
    try:
        _Cycle()
        assert rise_bytes(step) == 8000
    finally:
        gc.enable()
