"""Memory over a region, as a bounded number of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.base.plain import fields
from perfkit.memory.categories import CATEGORIES, by_name
from perfkit.memory.ledger import Totals


@dataclass(frozen=True)
class Curve:
    """Bytes held by tensors over a region.

    The axis is the number of the allocation or free, not time: the counting itself makes some
    operators slower than others. Each point is the highest moment of its stretch, so the peak
    is never lost. In regions of more than 200 000 allocations and frees, the categories of
    points far from the end are those known when they were drawn.

    Attributes:
        index: number of the allocation or free, rising from 0.
        total_bytes: held then.
        by_category: the same by category; the categories of a point add up to its total.
        phase: ``before``, ``forward``, ``backward``, ``optimizer`` or ``no grad``, where the
            latest tensor was made.
        peak: position of the highest point.
        n_events: allocations and frees in the region.
    """

    index: tuple[int, ...]
    total_bytes: tuple[int, ...]
    by_category: Mapping[str, tuple[int, ...]]
    phase: tuple[str, ...]
    peak: int
    n_events: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON types; categories that hold nothing are left out."""
        some = {name: held for name, held in self.by_category.items() if any(held)}
        return fields(self, by_category=some)


NO_CURVE = Curve((), (), {}, (), 0, 0)


def curve_of(totals: Totals) -> Curve:
    """The curve of one device's book."""
    from perfkit.memory.tracker import PHASES

    points = totals.curve
    if not points:
        return NO_CURVE
    parts = [by_name(point.by_category) for point in points]
    heights = tuple(point.total_bytes for point in points)
    return Curve(
        index=tuple(point.index for point in points),
        total_bytes=heights,
        by_category={name: tuple(part[name] for part in parts) for name in CATEGORIES},
        phase=tuple(PHASES[point.phase] for point in points),
        peak=heights.index(max(heights)),
        n_events=totals.n_events,
    )
