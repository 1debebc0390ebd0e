"""The pictures of lesson 07: lower bounds of a step, stopwatch readings, sparse masks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.base.words import fmt_ms
from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source
from perfkit.course.kit.bounds_picture import draw_bounds
from perfkit.course.kit.origin import origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_bounds", "draw_clocks", "draw_crossover"]

_ORANGE, _BLUE = "#E69F00", "#0072B2"


def draw_clocks(
    runs: Mapping[str, tuple[Sequence[tuple[float, float]], float]], *, source: str
) -> tuple[Figure, str]:
    """Stopwatch readings around each step and the time of the work, with a description.

    Args:
        runs: name → (start and end of each step, end of all work), in ms since the first start.
        source: the device; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 0.85 * len(runs) + 1.0), facecolor=GROUND)
    axes = figure.subplots()
    said = []
    for at, (name, (steps, done)) in enumerate(reversed(list(runs.items()))):
        left = steps[-1][1]
        spans = [(start, end - start) for start, end in steps]
        axes.barh(at, done - left, 0.4, left=left, facecolor=GROUND, edgecolor=DIM, hatch="///")
        axes.broken_barh(
            spans, (at - 0.2, 0.4), facecolor=_BLUE, edgecolor="#ffffff", linewidth=0.8
        )
        reads = fmt_ms(statistics.median(length for _, length in spans))
        takes = fmt_ms(done / len(steps))
        text = f"the stopwatch reads {reads} a step; a step takes {takes}"
        axes.text(0, at + 0.27, text, va="bottom", fontsize=9, color=INK)
        said.append(
            f"{name}: the host has left {len(steps)} steps after {fmt_ms(left)} and the work is "
            f"done after {fmt_ms(done)}; {text}"
        )
    axes.set_yticks(range(len(runs)), list(runs)[::-1])
    axes.set_ylim(-0.35, len(runs) - 0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms", fontsize=8.5, color=DIM)
    plain_axes(axes)
    legend = "blue: a step, as the host sees it; hatched: the device is still at work"
    figure.text(0.005, 0.015, legend, fontsize=8, color=DIM)
    figure.text(0.995, 0.015, source, ha="right", fontsize=8, color=DIM)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return figure, f"Two rows of bars over time ({source}). {'. '.join(said)}."


def draw_crossover(
    densities: Sequence[float], ratios: Sequence[Any], crossing: float | None, *, source: str
) -> tuple[Figure, str]:
    """Time of compacting ÷ time of ``ignore_index`` by density, log-log, with a description.

    Args:
        densities: share of labelled pixels, ascending.
        ratios: results of ``perfkit.compare``, with ``ratio``, ``low`` and ``high``.
        crossing: where the ratio passes 1; None if it does not.
        source: shown under the picture.
    """
    from matplotlib.figure import Figure

    percent = [100 * d for d in densities]
    middle = [one.ratio for one in ratios]
    figure = Figure(figsize=(7.2, 3.5), facecolor=GROUND)
    axes = figure.subplots()
    axes.axhline(1, color=INK, linewidth=1)
    errors = (
        [max(0.0, one.ratio - one.low) for one in ratios],
        [max(0.0, one.high - one.ratio) for one in ratios],
    )
    axes.errorbar(percent, middle, yerr=errors, color=_BLUE, marker="o", capsize=3, linewidth=1.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = min(0.5, *middle) / 1.6, max(2.0, *middle) * 1.6
    axes.set_ylim(low, high)
    axes.axhspan(low, 1, color=_ORANGE, alpha=0.14, linewidth=0)
    axes.text(0.985, 0.03, "below 1: compacting wins", transform=axes.transAxes, **_note())
    axes.text(
        0.02, 0.95, "above 1: ignore_index wins", transform=axes.transAxes, **_note("left", "top")
    )
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16) if low < t < high]
    axes.set_yticks(ticks, [f"{t:g}×" for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(percent, [f"{p:g} %" for p in percent])
    if crossing is not None:
        early = crossing < (densities[0] * densities[-1]) ** 0.5
        axes.axvline(100 * crossing, color=_ORANGE, linestyle="--", linewidth=1.2)
        axes.annotate(
            f"equal at about {_one_digit(100 * crossing)} %",
            (100 * crossing, 1),
            # away from the curve: below it to the right, or above it to the left
            xytext=(8, -16) if early else (-8, 10),
            ha="left" if early else "right",
            textcoords="offset points",
            fontsize=9,
            color=INK,
            bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.8, "pad": 1},
            zorder=5,
        )
    axes.set_xlabel("pixels that are labelled", fontsize=9, color=DIM)
    axes.set_ylabel("x[mask] ÷ ignore_index (time)", fontsize=9, color=DIM)
    plain_axes(axes)
    with_source(figure, origin(source), bottom=0.03)
    said = ", ".join(f"{p:g} %: {r:.2g}×" for p, r in zip(percent, middle, strict=True))
    where = (
        "The two are never equal in this range."
        if crossing is None
        else f"They are equal at about {_one_digit(100 * crossing)} % labelled pixels."
    )
    return figure, (
        f"A curve ({origin(source)}): time of x[mask] over time of ignore_index, by the share of "
        f"labelled pixels. {said}. {where}"
    )


def _one_digit(value: float) -> str:
    """12.3 → ``10``, 0.26 → ``0.3``: an interpolated point is not known more precisely."""
    return f"{float(f'{value:.1g}'):g}"


def _note(ha: str = "right", va: str = "bottom") -> dict[str, Any]:
    return {"ha": ha, "va": va, "fontsize": 8.5, "color": DIM}
