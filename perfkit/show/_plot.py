"""Points and lines over two axes: blocks of a comparison, a sweep, a fit, growth, a roofline.

In HTML the drawing is stretched to the width at hand; its words are not, so that they stay
readable on a narrow screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from perfkit.base.words import fmt_number
from perfkit.show.palette import INK, SERIES
from perfkit.show.plain_text import wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICKS = 4
_MARKERS = "os^Dv*"
_NAMES_WITH_ROOM = 12


@dataclass(frozen=True)
class Point:
    """A point, where it has one with its interval; its area is what it weighs.

    Attributes:
        label: what is shown when it is pointed at.
        size: its diameter in CSS pixels.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    size: float = 7.0


@dataclass(frozen=True)
class Line:
    """Points of one kind.

    Attributes:
        label: what they are; empty for no entry in the key.
        points: by ascending x where they are joined.
        colour: as CSS; empty for the text's.
        joined: a line goes through them.
        dotted: each is drawn.
    """

    label: str
    points: tuple[Point, ...]
    colour: str = ""
    joined: bool = True
    dotted: bool = True


@dataclass(frozen=True)
class Plot:
    """A picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        words: the picture in words.
        lines: at least one, with at least one point.
        x_names: of the places 0, 1, 2 … where the axis has no numbers.
        levels: heights that are named, as the sizes of GPUs.
        places: of the axis along, that are named, as a knee.
        band: an interval of heights.
        show: a height with its unit.
        unit: of the heights' ticks, which are round multiples of it.
        from_zero: the axis upwards begins at 0.
        log: both axes are logarithmic.
        folds: whether it is behind the first screen.
    """

    title: str
    words: str
    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    x_names: tuple[str, ...] = ()
    levels: tuple[tuple[float, str], ...] = ()
    places: tuple[tuple[float, str], ...] = ()
    band: tuple[float, float] | None = None
    show: Callable[[float], str] = fmt_number
    unit: float = 1.0
    from_zero: bool = True
    log: bool = False
    folds: bool = False
    glyphs: ClassVar[bool] = False

    def as_text(self) -> str:
        """In words."""
        return wrap(f"{self.title}: {self.words}", hang="    ")

    def as_html(self) -> str:
        """SVG for the lines, HTML for points and words."""
        from perfkit.show._html import render

        (left, right), (bottom, top) = self._spans()

        def x_of(value: float) -> float:
            return 100 * _share(value, left, right, log=self.log)

        def y_of(value: float) -> float:
            return 100 * _share(value, bottom, top, log=self.log)

        lines: list[dict[str, Any]] = []
        for line in self.lines:
            path = "L".join(f"{x_of(p.x):.2f} {100 - y_of(p.y):.2f}" for p in line.points)
            whiskers = [
                f"M{x_of(p.x):.2f} {100 - y_of(p.low):.2f}V{100 - y_of(p.high):.2f}"
                for p in line.points
                if p.low is not None and p.high is not None
            ]
            dots = [
                {"x": f"{x_of(p.x):.2f}", "y": f"{y_of(p.y):.2f}", "size": f"{p.size:.1f}",
                 "label": p.label}
                for p in line.points
                if line.dotted
            ]  # fmt: skip
            lines.append(
                {
                    "label": line.label,
                    "colour": line.colour or "currentColor",
                    "path": f"M{path}" if line.joined and len(line.points) > 1 else "",
                    "whiskers": "".join(whiskers),
                    "dots": dots,
                }
            )
        along: list[tuple[float, str]] = [*_thinned(self.x_names)]
        along = along or [
            (v, re.sub(",000$", "k", rounded(fmt_number(v))))
            for v in ticks(left, right, 1.0, log=self.log)
        ]
        upwards = [(v, rounded(self.show(v))) for v in ticks(bottom, top, self.unit, log=self.log)]
        low, high = (y_of(end) for end in self.band or (bottom, bottom))
        return render(
            "_plot.html",
            title=self.title,
            lines=lines,
            x_ticks=[{"at": f"{x_of(v):.2f}", "label": said} for v, said in along],
            y_ticks=[{"at": f"{y_of(v):.2f}", "label": said} for v, said in upwards],
            levels=[
                {"at": f"{y_of(v):.2f}", "label": said}
                for v, said in self.levels
                if bottom <= v <= top
            ],
            places=[{"at": f"{x_of(v):.2f}", "label": said} for v, said in self.places],
            band={"low": f"{low:.2f}", "tall": f"{high - low:.2f}"},
            named=[line for line in lines if line["label"]],
            axes=f"Upwards: {self.y_label}. Along: {self.x_label}.",
            alternative=f"{self.title}: {self.words}",
        )

    def draw(self, axes: Axes) -> None:
        """With matplotlib."""
        from perfkit.show._as_figure import plain

        for i, line in enumerate(self.lines):
            xs, ys = [p.x for p in line.points], [p.y for p in line.points]
            colour = line.colour or INK
            dash = ("--" if i % 2 else "-") if line.joined else "none"
            axes.plot(xs, ys, dash, color=colour, lw=1.4, label=plain(line.label, 60) or None)
            for p in line.points:
                if p.low is not None and p.high is not None:
                    axes.plot([p.x, p.x], [p.low, p.high], color=colour, lw=1)
            sizes = [p.size**2 if line.dotted else 0.0 for p in line.points]
            axes.scatter(xs, ys, s=sizes, color=colour, marker=_MARKERS[i % len(_MARKERS)])
        for height, said in self.levels:
            axes.axhline(height, color=INK, lw=0.8, ls=":", label=plain(said, 40))
        for place, said in self.places:
            axes.axvline(place, color=INK, lw=0.8, ls="--", label=plain(said, 40))
        if self.band is not None:
            axes.axhspan(*self.band, color=SERIES[0], alpha=0.15, lw=0)
        (left, right), (bottom, top) = self._spans()
        if self.log:
            axes.set(xscale="log", yscale="log")
        else:
            heights = ticks(bottom, top, self.unit)
            axes.set_yticks(heights, [plain(rounded(self.show(v)), 20) for v in heights])
        axes.set(xlim=(left, right), ylim=(bottom, top))
        axes.set(xlabel=self.x_label, ylabel=re.split("[,;.]", self.y_label)[0])
        if self.x_names:
            shown = _thinned(self.x_names)
            axes.set_xticks([at for at, _ in shown], [plain(name, 20) for _, name in shown])
        if any(line.label for line in self.lines) or self.levels or self.places:
            axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    def _spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """From where to where the axes go, with some room around what is drawn."""
        points = [p for line in self.lines for p in line.points]
        xs = [p.x for p in points]
        ends = [end for p in points for end in (p.low, p.high) if end is not None]
        ys = [*(p.y for p in points), *ends, *(v for v, _ in self.levels), *(self.band or ())]
        if self.log:
            (left, right), (bottom, top) = decades(xs), decades(ys)
            return (left, right), (bottom, top)
        if self.x_names:
            across = (-0.5, len(self.x_names) - 0.5)
        else:
            room = 0.04 * (max(xs) - min(xs)) or 0.5
            across = (min(xs) - room, max(xs) + room)
        low, high = min(ys), max(ys)
        room = 0.08 * (high - low) or abs(high) or 1.0
        return across, (0.0 if self.from_zero and low >= 0 else low - room, high + room)


def rounded(told: str) -> str:
    """A tick's number without digits that say nothing: 20 ms, not 20.0 ms."""
    return re.sub(r"(\.\d*?)0+(?!\d)", lambda digits: digits[1].rstrip("."), told)


def thinned(points: Sequence[Point], most: int = 120) -> tuple[Point, ...]:
    """Not more than so many of them, evenly: a picture shows no more apart."""
    return tuple(points[:: max(1, math.ceil(len(points) / most))])


def _thinned(names: Sequence[str]) -> list[tuple[int, str]]:
    every = max(1, math.ceil(len(names) / _NAMES_WITH_ROOM))
    return [(i, name) for i, name in enumerate(names) if i % every == 0]


def _share(value: float, low: float, high: float, *, log: bool) -> float:
    if log:
        value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
    return min(max((value - low) / (high - low), 0.0), 1.0)


def decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around them."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.2))
    return 10.0**low, 10.0 ** max(high, low + 1)


def ticks(low: float, high: float, unit: float, *, log: bool = False) -> list[float]:
    """Round numbers between the two ends: some four, or powers of ten."""
    if log:
        first, last = round(math.log10(low)), round(math.log10(high))
        return [10.0**p for p in range(first, last + 1, max(1, (last - first) // 6))]
    least = (high - low) / unit / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = unit * next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= least * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def round_unit(highest: float, base: int) -> float:
    """The unit in which a number of this size is told: 1, the base, its square …"""
    return float(base) ** math.floor(math.log(highest, base)) if highest >= base else 1.0
