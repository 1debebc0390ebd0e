"""Memory over a region as a stacked area: SVG for the areas, HTML for the words.

The drawing is stretched to the width at hand, the words are not: they stay readable on a
narrow screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

from perfkit.base.words import fmt_bytes, fmt_count
from perfkit.memory.curve import Curve
from perfkit.show._plot import round_unit, rounded, ticks
from perfkit.show.palette import look_of
from perfkit.show.plain_text import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 1000.0, 200.0
# Phases shorter than this share of the axis have no room for a name of their own.
_SHORTEST = 0.03
# What is shown together has the name of a phase that is this much of it.
_MOST_OF_IT = 0.8


@dataclass(frozen=True)
class StackedCurve:
    """A picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        curve: at least two points.
        looks: category → a name of the palette, bottom of the stack first.
        folds: whether it is behind the first screen.
    """

    title: str
    curve: Curve
    looks: Mapping[str, str]
    folds: bool = False
    glyphs: ClassVar[bool] = False

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
                {"name": name, "colour": look_of(look).fill, "d": _path(xs, floor, roof, highest)}
            )
            floor = roof
        x_peak = curve.index[curve.peak] / last
        named = _phases(curve, last)
        return render(
            "_curve.html",
            title=self.title,
            areas=areas,
            phases=named if any(one["name"] for one in named) else [],
            # a name does not always fit into its stretch
            in_turn=", ".join(one["name"] or "several in turn" for one in named),
            peak=f"{100 * x_peak:.2f}",
            peak_on_left=x_peak > 0.5,
            peak_label=f"peak {fmt_bytes(curve.total_bytes[curve.peak])}",
            ticks=[
                {"at": f"{100 * nbytes / highest:.2f}", "label": rounded(fmt_bytes(round(nbytes)))}
                for nbytes in ticks(0.0, highest, round_unit(highest, 1024))
            ],
            n_events=fmt_count(curve.n_events),
            alternative=f"{self.title}: {self.words}",
        )

    def draw(self, axes: Axes) -> None:
        """As a stack of areas, in MiB."""
        parts = self._parts()
        axes.stackplot(
            self.curve.index,
            *([nbytes / 2**20 for nbytes in part] for _, _, part in parts),
            colors=[look_of(look).fill for _, look, _ in parts],
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
    """Stretches of the axis by phase; short ones are shown together, without a name if they differ.

    A region of many steps changes between short phases all along: no one name would be true.
    """
    # Each stretch: phase → its share of the axis. Neighbours that are short are one.
    stretches: list[dict[str, float]] = []
    begin, follows_short = 0, False
    pairs = zip(curve.phase, curve.index, strict=True)
    for phase, group in groupby(pairs, key=lambda pair: pair[0]):
        end = max(index for _, index in group)
        share = (end - begin) / last
        begin = end
        is_short = share < _SHORTEST
        if is_short and follows_short:
            _add(stretches[-1], {phase: share})
        else:
            stretches.append({phase: share})
        follows_short = is_short

    shown: list[dict[str, float]] = []
    for stretch in stretches:
        if shown and (
            _is_short(stretch) or _is_short(shown[-1]) or _name(shown[-1]) == _name(stretch)
        ):
            _add(shown[-1], stretch)
        else:
            shown.append(stretch)
    return [
        {"name": _name(one), "percent": f"{100 * sum(one.values()):.2f}"}
        for one in shown
        if any(one.values())
    ]


def _add(stretch: dict[str, float], more: Mapping[str, float]) -> None:
    for phase, share in more.items():
        stretch[phase] = stretch.get(phase, 0.0) + share


def _is_short(stretch: Mapping[str, float]) -> bool:
    return sum(stretch.values()) < _SHORTEST


def _name(stretch: Mapping[str, float]) -> str:
    """The phase that most of it is; empty if there is none."""
    phase = max(stretch, key=lambda name: stretch[name])
    return phase if stretch[phase] >= _MOST_OF_IT * sum(stretch.values()) else ""
