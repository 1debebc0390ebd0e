"""Readings of memory for a curve: each has its size, some have what malloc has handed out."""

from __future__ import annotations

import pytest

from perfkit.measure import footprint
from perfkit.measure.footprint import MemoryReader


def test_after_the_first_ones_malloc_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(range(1000))
    monkeypatch.setattr(footprint, "heap_bytes", lambda: next(asked))
    read = MemoryReader()
    found = [read() for _ in range(100)]
    assert all(one.n_bytes > 0 and one.kind == "resident" for one in found)
    whole = [n for n, one in enumerate(found) if one.in_use_bytes is not None]
    assert whole == [*range(20), *range(20, 100, 4)]
    assert next(asked) == len(whole)


def test_a_device_that_comes_into_use_is_seen_with_the_next_whole_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gpu:
        is_cpu = False

        def devices(self) -> range:
            return range(2)

        def allocated(self, index: int) -> int:
            return 7 + index

    read = MemoryReader()
    for _ in range(21):
        read()
    monkeypatch.setattr(footprint, "in_use", Gpu)
    kinds = [read().kind for _ in range(9)]
    assert kinds == ["resident"] * 3 + ["allocated"] * 6  # from then on each is of the device
    assert read().n_bytes == 15
