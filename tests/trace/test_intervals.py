"""Unions, nesting and painting, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.trace.read.intervals import nest, paint, union

_PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 20)), max_size=12)


def _ends(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in pairs], dtype=np.int64)
    return start, start + np.array([d for _, d in pairs], dtype=np.int64)


def _points(start: np.ndarray, end: np.ndarray) -> set[int]:
    return {p for s, e in zip(start, end, strict=True) for p in range(s, e)}


@settings(max_examples=150)
@given(_PAIRS)
def test_union_covers_the_same_points_disjointly(pairs: list[tuple[int, int]]) -> None:
    start, end = _ends(pairs)
    found = union(start, end)
    assert found.total_ns == len(_points(start, end))
    assert _points(found.start, found.end) == _points(start, end)
    assert (found.start[1:] > found.end[:-1]).all()


@pytest.mark.slow
@settings(max_examples=150)
@given(_PAIRS, _PAIRS, _PAIRS)
def test_paint_gives_every_point_to_the_first_layer(
    a: list[tuple[int, int]], b: list[tuple[int, int]], device: list[tuple[int, int]]
) -> None:
    layers = [union(*_ends(a)), union(*_ends(b))]
    on_device = [union(*_ends(device))]
    step_start, step_end = np.array([0, 30, 70]), np.array([30, 55, 71])
    cells = paint(step_start, step_end, layers, on_device)
    assert (cells.sum(axis=(1, 2)) == step_end - step_start).all()
    sets = [_points(layer.start, layer.end) for layer in layers]
    busy = _points(on_device[0].start, on_device[0].end)
    for step in range(3):
        for point in range(step_start[step], step_end[step]):
            host = next((i for i, s in enumerate(sets) if point in s), 2)
            cells[step, host, 0 if point in busy else 1] -= 1
    assert not cells.any()


def test_nest_finds_depth_and_parent() -> None:
    #          outer  inner  leaf  empty  second  after
    start = np.array([0, 10, 12, 15, 40, 100])
    end = np.array([90, 30, 20, 15, 50, 110])
    depth, parent = nest(start, end)
    assert depth.tolist() == [0, 1, 2, 3, 1, 0]
    assert parent.tolist() == [-1, 0, 1, 2, 0, -1]


@settings(max_examples=150)
@given(_PAIRS)
def test_nest_survives_any_overlap(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(((s, max(d, 0)) for s, d in pairs), key=lambda p: (p[0], -p[1]))
    start, end = _ends(pairs)
    _, parent = nest(start, end)
    assert (parent < np.arange(len(pairs))).all()
    for child in np.flatnonzero(parent >= 0):
        assert start[parent[child]] <= start[child]
