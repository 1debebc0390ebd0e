"""A roofline as a picture: FLOP/s that operators reached against FLOP per byte, below the roofs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.base.words import fmt_ms, fmt_number, fmt_ratio, fmt_share, fmt_si
from perfkit.show._text import wrap
from perfkit.show.palette import INK, SERIES
from perfkit.trace.ask.limit import Limit, OpLimit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _RIGHT, _TOP, _BOTTOM = 88.0, 640.0, 12.0, 262.0
# A colour for each kind of work, and one for the rest; roofs are the whole.
_KINDS = dict(zip(("matrix product", "convolution", "attention"), SERIES, strict=False))
_REST = SERIES[4]
_MOST = 60  # operators: the others are dots below dots
_SAID = 3


@dataclass(frozen=True)
class Roofline:
    """A picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        limit: with rates, and at least one operator with FLOPs and a time.
        title: what it shows.
        folds: whether it is behind the first screen.
    """

    limit: Limit
    title: str = "Roofline"
    folds: bool = True

    @classmethod
    def of(cls, limit: Limit) -> Roofline | None:
        """The picture; None where there is nothing to draw."""
        if not limit.is_known or limit.is_other or not _drawn(limit):
            return None
        return cls(limit)

    @property
    def words(self) -> str:
        """The operators that take the longest, each with its place."""
        of, ops = self.limit, _drawn(self.limit)
        said = [
            f"{o.op} at {fmt_number(o.intensity)} FLOP/B reaches {fmt_si(_rate(o), 'FLOP/s')}, "
            f"{fmt_share(1 / o.ratio)} of what its roof allows"
            for o in ops[:_SAID]
            if o.ratio
        ]
        without = sum(o.measured_us for o in of.ops if not o.flops)
        whole = sum(o.measured_us for o in of.ops)
        rest = (
            f"; operators without products, {fmt_share(without / whole)} of the counted time, have "
            "no place in it: memory bounds them"
            if without
            else ""
        )
        roofs = ", ".join(f"{fmt_si(r, 'FLOP/s')} in {f}" for f, r in self._formats().items())
        return f"roofs {roofs} and {fmt_si(of.memory_bytes_per_s, 'B/s')}; {'; '.join(said)}{rest}"

    def as_text(self) -> str:
        """In words."""
        return wrap(f"{self.title}: {self.words}.", hang="    ")

    def _formats(self) -> dict[str, float]:
        """The formats that are used, and their rates."""
        used = {o.form for o in _drawn(self.limit)}
        return {f: r for f, r in self.limit.flop_per_s.items() if f in used}

    def _span(self) -> tuple[float, float, float, float]:
        """Whole powers of ten around everything: x from, to, y from, to."""
        ops, formats = _drawn(self.limit), self._formats()
        ridge = max(formats.values(), default=1.0) / self.limit.memory_bytes_per_s
        xs = [o.intensity for o in ops] + [ridge]
        ys = [_rate(o) for o in ops] + list(formats.values())
        low_x, high_x = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs) * 1.5))
        low_y, high_y = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys) * 1.2))
        return low_x, max(high_x, low_x + 1), low_y, max(high_y, low_y + 1)

    def as_html(self) -> str:
        """SVG; each operator tells its figures when pointed at."""
        from perfkit.show._html import render

        low_x, high_x, low_y, high_y = self._span()

        def x_of(value: float) -> float:
            share = (math.log10(value) - low_x) / (high_x - low_x)
            return _LEFT + min(max(share, 0.0), 1.0) * (_RIGHT - _LEFT)

        def y_of(value: float) -> float:
            share = (math.log10(value) - low_y) / (high_y - low_y)
            return _BOTTOM - min(max(share, 0.0), 1.0) * (_BOTTOM - _TOP)

        memory = self.limit.memory_bytes_per_s
        roofs = []
        for form, rate in self._formats().items():
            start = max(10.0**low_x, 10.0**low_y / memory)
            corner = rate / memory
            points = [(start, start * memory), (corner, rate), (10.0**high_x, rate)]
            path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points)
            roofs.append(
                {
                    "d": f"M{path}",
                    "label": f"{form} {fmt_si(rate, 'FLOP/s')}, memory {fmt_si(memory, 'B/s')}",
                    "text_at": f"{y_of(rate) - 4:.1f}",
                }
            )
        ops = _drawn(self.limit)
        longest = max(o.measured_us for o in ops)
        points_ = [
            {
                "x": f"{x_of(o.intensity):.1f}",
                "y": f"{y_of(_rate(o)):.1f}",
                "r": f"{3 + 9 * math.sqrt(o.measured_us / longest):.1f}",
                "colour": _KINDS.get(o.family, _REST),
                "label": _label(o, self.limit.n_steps),
            }
            for o in ops
        ]
        return render(
            "_roofline.html",
            title=self.title,
            roofs=roofs,
            points=points_,
            kinds=[
                {"name": family, "colour": _KINDS.get(family, _REST)}
                for family in dict.fromkeys(o.family for o in ops)
            ],
            x_ticks=[
                {"at": f"{x_of(10.0**p):.1f}", "label": fmt_number(10.0**p)}
                for p in range(int(low_x), int(high_x) + 1)
            ],
            y_ticks=[
                {
                    "at": f"{y_of(10.0**p):.1f}",
                    "text_at": f"{y_of(10.0**p) + 4:.1f}",
                    "label": fmt_si(10.0**p, "FLOP/s"),
                }
                for p in range(int(low_y), int(high_y) + 1)
            ],
            alternative=f"{self.title}: {self.words}",
            note="One dot per operator and shapes; its area is its time. "
            "A dot below the roof could be faster; one above "
            "it takes fewer operations than counted (Winograd) or finds its data in a cache.",
        )

    def draw(self, axes: Axes) -> None:
        """With matplotlib, both axes logarithmic."""
        low_x, high_x, low_y, high_y = self._span()
        memory = self.limit.memory_bytes_per_s
        for i, (form, rate) in enumerate(self._formats().items()):
            corner = rate / memory
            xs = [10.0**low_x, corner, 10.0**high_x]
            axes.plot(
                xs,
                [xs[0] * memory, rate, rate],
                "-" if i % 2 else "--",
                color=INK,
                label=f"{form} {fmt_si(rate, 'FLOP/s')}",
            )
        ops = _drawn(self.limit)
        longest = max(o.measured_us for o in ops)
        for family in dict.fromkeys(o.family for o in ops):
            mine = [o for o in ops if o.family == family]
            axes.scatter(
                [o.intensity for o in mine],
                [_rate(o) for o in mine],
                s=[12 + 150 * o.measured_us / longest for o in mine],
                color=_KINDS.get(family, _REST),
                edgecolors="black",
                linewidths=0.4,
                alpha=0.75,
                label=family,
                zorder=3,
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(10.0**low_x, 10.0**high_x),
            ylim=(10.0**low_y, 10.0**high_y),
            xlabel="FLOP per byte",
            ylabel="FLOP/s",
        )
        axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _drawn(limit: Limit) -> list[OpLimit]:
    """What has a place: FLOPs, bytes and a time."""
    found: list[Any] = [o for o in limit.ops if o.flops and o.n_bytes and o.measured_us]
    return [o for o in found if o.form in limit.flop_per_s][:_MOST]


def _rate(o: OpLimit) -> float:
    return o.flops / o.measured_us * 1e6


def _label(o: OpLimit, n_steps: int) -> str:
    each = o.measured_us / 1e3 / max(n_steps, 1)
    return (
        f"{o.op} {o.shapes[:60]}: {fmt_ms(each)} per step, {fmt_si(_rate(o), 'FLOP/s')}, "
        f"{fmt_ratio(o.ratio)} its least time"
    )
