"""Sets of intervals in integer ns: unions, nesting, and exclusive classes that add up exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfkit.trace.read.columns import Bool, Int32, Int64, Trace

_NONE: Int64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Disjoint, sorted, non-empty intervals ``[start, end)`` in ns."""

    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def covers(self, points: Int64) -> Bool:
        """Which of the points lie inside."""
        opened = np.searchsorted(self.start, points, side="right")
        closed = np.searchsorted(self.end, points, side="right")
        return np.asarray(opened > closed)

    def longer_than(self, ns: int) -> Intervals:
        """Those that are longer."""
        kept = self.end - self.start > ns
        return Intervals(self.start[kept], self.end[kept])

    @property
    def total_ns(self) -> int:
        """Length of all intervals together."""
        return int((self.end - self.start).sum())


EMPTY = Intervals(_NONE, _NONE)


def union(start: Int64, end: Int64) -> Intervals:
    """The union of any intervals: overlapping, nested, unsorted, empty."""
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.r_[True, start[1:] > reach[:-1]])
    last = np.r_[first[1:] - 1, len(start) - 1]
    return Intervals(start[first], reach[last])


def span(trace: Trace, rows: Bool | Int64) -> Intervals:
    """The time that these rows cover."""
    return union(trace.start_ns[rows], trace.end_ns[rows])


def joined(parts: Iterable[Intervals]) -> Intervals:
    """The time that any of them covers."""
    both = [(part.start, part.end) for part in parts]
    return union(*map(np.concatenate, zip(*both, strict=True))) if both else EMPTY


def without(parts: Intervals, holes: Intervals) -> Intervals:
    """What is left of ``parts`` where ``holes`` are cut out."""
    edges = np.unique(np.concatenate([parts.start, parts.end, holes.start, holes.end]))
    left, right = edges[:-1], edges[1:]
    keep = parts.covers(left) & ~holes.covers(left)
    return union(left[keep], right[keep])


def label_segments(edges: Int64, layers: Sequence[Intervals]) -> Int64:
    """For each segment between successive edges: the first layer that covers it.

    Args:
        edges: sorted distinct points that include every end of every layer.
        layers: in order of priority.

    Returns:
        One index per segment; ``len(layers)`` where none covers it.
    """
    left = edges[:-1]
    label = np.full(len(left), len(layers), dtype=np.int64)
    for index in range(len(layers) - 1, -1, -1):
        label[layers[index].covers(left)] = index
    return label


def overlap(a: Intervals, b: Intervals) -> Intervals:
    """The parts of ``a`` that lie in ``b``."""
    return without(a, without(a, b))


def paint(
    step_start: Int64, step_end: Int64, host: Sequence[Intervals], device: Sequence[Intervals] = ()
) -> Int64:
    """Split each step among host layers and, crosswise, device layers; exact in ns.

    Args:
        step_start: sorted starts of steps that do not overlap.
        step_end: their ends.
        host: layers in order of priority; what none covers falls into one more class.
        device: the same for the device.

    Returns:
        Array (steps, len(host) + 1, len(device) + 1) of ns. Summed over the last two axes it
        equals ``step_end - step_start``.
    """
    n_host, n_device = len(host) + 1, len(device) + 1
    result = np.zeros((len(step_start), n_host, n_device), dtype=np.int64)
    if not len(step_start):
        return result
    ends = [x for layer in (*host, *device) for x in (layer.start, layer.end)]
    edges = np.concatenate([step_start, step_end, *ends])
    edges = np.sort(edges[(edges >= step_start[0]) & (edges <= step_end.max())])
    # np.unique would hash: three times as slow here as sorting what is nearly sorted.
    edges = edges[np.r_[True, edges[1:] > edges[:-1]]]
    if len(edges) < 2:
        return result
    left, length = edges[:-1], np.diff(edges)
    step = np.searchsorted(step_start, left, side="right") - 1
    inside = (step >= 0) & (left < step_end[step])
    cell = (step * n_host + label_segments(edges, host)) * n_device
    cell += label_segments(edges, device)
    np.add.at(result.reshape(-1), cell[inside], length[inside])
    return result


def nest(start: Int64, end: Int64) -> tuple[Int32, Int64]:
    """Depth and parent of every interval of one thread.

    Args:
        start: sorted; among equal starts the longer interval first.
        end: the ends.

    Returns:
        ``(depth, parent)``: nesting depth from 0, and the index of the enclosing interval or
        -1. Intervals that overlap without nesting get a depth, and a parent that began
        before them.
    """
    n = len(start)
    # An empty interval must not end before it begins, or it would nest in nothing.
    reach = np.maximum(end, start + 1)
    closed = np.searchsorted(np.sort(reach), start, side="right")
    depth = np.maximum(np.arange(n) - closed, 0).astype(np.int32)
    parent = np.full(n, -1, dtype=np.int64)
    if not n:
        return depth, parent
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, int(depth.max()) + 1):
        above = by_depth[bounds[level - 1] : bounds[level]]
        here = by_depth[bounds[level] : bounds[level + 1]]
        at = np.searchsorted(above, here) - 1
        parent[here] = np.where(at >= 0, above[np.maximum(at, 0)], -1)
    return depth, parent


def covered_ns(parts: Intervals, start: Int64, end: Int64) -> Int64:
    """How many ns of each ``[start, end)`` lie inside the intervals."""
    if not len(parts):
        return np.zeros(len(start), dtype=np.int64)
    before = np.r_[np.int64(0), np.cumsum(parts.end - parts.start)]

    def until(points: Int64) -> Int64:
        at = np.searchsorted(parts.start, points, side="right")
        last = np.maximum(at - 1, 0)
        beyond = np.maximum(parts.end[last] - points, 0)
        return np.where(at > 0, before[at] - beyond, 0).astype(np.int64)

    inside: Int64 = until(np.maximum(end, start)) - until(start)
    return inside
