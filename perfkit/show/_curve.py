"""Memory over a region as a stacked area: SVG for the areas, HTML for the words.

The drawing is stretched to the width at hand, the words are not: they stay readable on a
narrow screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.memory.curve import Curve
from perfkit.show._bar import colour_of
from perfkit.show._text import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["StackedCurve"]

_WIDTH, _HEIGHT = 1000.0, 200.0
# a phase shorter than this share of the axis is shown with its neighbour
_SHORTEST = 0.03


@dataclass(frozen=True)
class StackedCurve:
    """A picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        title: what the curve shows.
        curve: at least two points.
        looks: category → a name of the palette, bottom of the stack first.
        folds: whether it is behind the first screen.
    """

    title: str
    curve: Curve
    looks: Mapping[str, str]
    folds: bool = False

    @property
    def words(self) -> str:
        """Where it starts, its peak and the phase of that, where it ends."""
        curve = self.curve
        total, peak = curve.total_bytes, curve.peak
        held = ((fmt_bytes(part[peak]), n) for n, part in curve.by_category.items() if part[peak])
        return (
            f"from {fmt_bytes(total[0])} to {fmt_bytes(total[peak])} at the peak, at "
            f"allocation or free {fmt_count(curve.index[peak])} of {fmt_count(curve.n_events)} "
            f"({curve.phase[peak]}): {', '.join(' '.join(pair) for pair in held)}; "
            f"{fmt_bytes(total[-1])} at the end"
        )

    def as_text(self) -> str:
        """In words."""
        return wrap(f"{self.title}: {self.words}", hang="    ")

    def as_html(self) -> str:
        """SVG for the areas, HTML for the words."""
        from perfkit.show._html import render

        curve = self.curve
        highest = max(curve.total_bytes) or 1
        last = max(curve.index[-1], 1)
        xs = [_WIDTH * i / last for i in curve.index]
        floor = [0.0] * len(xs)
        areas = []
        for name, look, part in self._parts():
            roof = [low + nbytes for low, nbytes in zip(floor, part, strict=True)]
            areas.append(
                {"name": name, "colour": colour_of(look), "d": _path(xs, floor, roof, highest)}
            )
            floor = roof
        x_peak = curve.index[curve.peak] / last
        return render(
            "_curve.html",
            title=self.title,
            areas=areas,
            phases=_phases(curve, last),
            peak=f"{100 * x_peak:.2f}",
            peak_on_left=x_peak > 0.5,
            peak_label=f"peak {fmt_bytes(curve.total_bytes[curve.peak])}",
            highest=fmt_bytes(highest),
            n_events=fmt_count(curve.n_events),
            alternative=f"{self.title}: {self.words}",
        )

    def draw(self, axes: Axes) -> None:
        """As a stack of areas, in MiB."""
        parts = self._parts()
        axes.stackplot(
            self.curve.index,
            *([nbytes / 2**20 for nbytes in part] for _, _, part in parts),
            colors=[colour_of(look) for _, look, _ in parts],
            labels=[name for name, _, _ in parts],
        )
        axes.axvline(self.curve.index[self.curve.peak], color="black", lw=0.8, ls="--")
        axes.set(xlabel="allocations and frees, in order", ylabel="MiB")
        axes.margins(x=0)
        axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    def _parts(self) -> list[tuple[str, str, Sequence[int]]]:
        """Name, look and bytes of what is ever held."""
        found = ((n, look, self.curve.by_category.get(n, ())) for n, look in self.looks.items())
        return [(name, look, part) for name, look, part in found if any(part)]


def _path(xs: Sequence[float], low: Sequence[float], high: Sequence[float], top: float) -> str:
    def points(values: Sequence[float]) -> list[str]:
        return [f"{x:.1f} {_HEIGHT * (1 - v / top):.2f}" for x, v in zip(xs, values, strict=True)]

    return "M" + "L".join(points(high)) + "L" + "L".join(reversed(points(low))) + "Z"


def _phases(curve: Curve, last: int) -> list[dict[str, str]]:
    """Stretches of the axis by phase; short ones belong to the one before."""
    runs: list[tuple[str, float]] = []
    begin = 0
    pairs = zip(curve.phase, curve.index, strict=True)
    for phase, group in groupby(pairs, key=lambda pair: pair[0]):
        end = max(index for _, index in group)
        share = (end - begin) / last
        begin = end
        if runs and (share < _SHORTEST or runs[-1][0] == phase):
            runs[-1] = (runs[-1][0], runs[-1][1] + share)
        elif runs and runs[-1][1] < _SHORTEST:
            runs[-1] = (phase, runs[-1][1] + share)
        else:
            runs.append((phase, share))
    return [{"name": name, "percent": f"{100 * share:.2f}"} for name, share in runs if share]
