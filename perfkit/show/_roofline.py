"""A roofline as a picture: FLOP/s that operators reached against FLOP per byte, below the roofs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfkit.base.words import fmt_ms, fmt_number, fmt_ratio, fmt_share, fmt_si
from perfkit.show._plot import Line, Plot, Point, decades
from perfkit.show.palette import SERIES
from perfkit.trace.ask.limit import Limit, OpLimit

# A colour for each kind of work, and one for the rest; roofs have the text's.
_KINDS = dict(zip(("matrix product", "convolution", "attention"), SERIES, strict=False))
_REST = SERIES[4]
_MOST = 60  # operators: the others are dots below dots
_SAID = 3


def roofline(limit: Limit, *, folds: bool = False) -> Plot | None:
    """Roofs and operators; None where there is nothing to draw."""
    ops = _drawn(limit)
    if not limit.is_known or limit.is_other or not ops:
        return None
    used = {o.form for o in ops}
    formats = {form: rate for form, rate in limit.flop_per_s.items() if form in used}
    longest = max(o.measured_us for o in ops)
    dots = []
    for family in dict.fromkeys(o.family for o in ops):
        points = tuple(
            Point(
                o.intensity,
                _rate(o),
                label=_label(o, limit.n_steps),
                size=6 + 18 * math.sqrt(o.measured_us / longest),
            )
            for o in ops
            if o.family == family
        )
        dots.append(Line(family, points, _KINDS.get(family, _REST), joined=False))
    return Plot(
        title="Roofline",
        words=_words(limit, ops, formats),
        lines=(*_roofs(formats, limit.memory_bytes_per_s, [o.intensity for o in ops]), *dots),
        x_label="FLOP per byte",
        y_label="FLOP/s reached, a dot per operator and shapes, its area is its time. A dot below "
        "its roof could be faster; one above it takes fewer operations than counted (Winograd), "
        "or finds its data in a cache",
        show=_flop_per_s,
        log=True,
        folds=folds,
    )


def roofs(flop_per_s: Mapping[str, float], bytes_per_s: float) -> Plot:
    """What a machine reaches at most, by format."""
    said = ", ".join(f"{form} {_flop_per_s(rate)}" for form, rate in flop_per_s.items())
    return Plot(
        title="Roofline of this machine",
        words=f"{said}; below its corner {fmt_si(bytes_per_s, 'B/s')} times the FLOP per byte",
        lines=_roofs(flop_per_s, bytes_per_s, [], SERIES),
        x_label="FLOP per byte",
        y_label="FLOP/s at most",
        show=_flop_per_s,
        log=True,
    )


def _roofs(
    flop_per_s: Mapping[str, float], bytes_per_s: float, xs: list[float], colours: Any = ()
) -> tuple[Line, ...]:
    """Up along the memory's rate to the corner, and on at the format's rate."""
    corners = [rate / bytes_per_s for rate in flop_per_s.values()]
    left, right = decades([*xs, *corners])
    return tuple(
        Line(
            f"{form} {_flop_per_s(rate)}",
            (Point(left, left * bytes_per_s), Point(rate / bytes_per_s, rate), Point(right, rate)),
            colours[i % len(colours)] if colours else "",
            dotted=False,
        )
        for i, (form, rate) in enumerate(flop_per_s.items())
    )


def _words(limit: Limit, ops: list[OpLimit], formats: Mapping[str, float]) -> str:
    """The operators that take the longest, each with its place."""
    said = [
        f"{o.op} at {fmt_number(o.intensity)} FLOP/B reaches {_flop_per_s(_rate(o))}, "
        f"{fmt_share(1 / o.ratio)} of what its roof allows"
        for o in ops[:_SAID]
        if o.ratio
    ]
    without = sum(o.measured_us for o in limit.ops if not o.flops)
    whole = sum(o.measured_us for o in limit.ops)
    rest = (
        f"; operators without products, {fmt_share(without / whole)} of the counted time, have "
        "no place in it: memory bounds them"
        if without
        else ""
    )
    roofs = ", ".join(f"{_flop_per_s(rate)} in {form}" for form, rate in formats.items())
    return f"roofs {roofs} and {fmt_si(limit.memory_bytes_per_s, 'B/s')}; {'; '.join(said)}{rest}"


def _drawn(limit: Limit) -> list[OpLimit]:
    """What has a place: FLOPs, bytes and a time."""
    found: list[Any] = [o for o in limit.ops if o.flops and o.n_bytes and o.measured_us]
    return [o for o in found if o.form in limit.flop_per_s][:_MOST]


def _rate(o: OpLimit) -> float:
    return o.flops / o.measured_us * 1e6


def _flop_per_s(rate: float) -> str:
    return fmt_si(rate, "FLOP/s")


def _label(o: OpLimit, n_steps: int) -> str:
    each = o.measured_us / 1e3 / max(n_steps, 1)
    return (
        f"{o.op} {o.shapes[:60]}: {fmt_ms(each)} per step, {_flop_per_s(_rate(o))}, "
        f"{fmt_ratio(o.ratio)} its lower bound"
    )
