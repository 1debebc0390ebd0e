"""A picture of lower bounds: published times beside the least that their work can take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_ms
from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ORANGE, _BLUE = "#E69F00", "#0072B2"


def draw_bounds(
    published: Mapping[str, float], least: Mapping[str, float], *, source: str
) -> tuple[Figure, str]:
    """Published times beside lower bounds, in ms on a log scale, with a description.

    Args:
        published: label → ms.
        least: label → minimum ms for the work.
        source: shown under the picture.
    """
    from matplotlib.figure import Figure

    rows = [(name, ms, False) for name, ms in published.items()]
    rows += [(name, ms, True) for name, ms in least.items()]
    rows.sort(key=lambda row: row[1])
    figure = Figure(figsize=(7.6, 0.46 * len(rows) + 1.1), facecolor=GROUND)
    axes = figure.subplots()
    for at, (_, ms, predicted) in enumerate(reversed(rows)):
        axes.barh(
            at,
            ms,
            0.62,
            left=0,
            color=_BLUE if predicted else _ORANGE,
            hatch="" if predicted else "///",
            edgecolor=INK,
            linewidth=0.4,
        )
        text = f"at least {fmt_ms(ms)}" if predicted else fmt_ms(ms)
        axes.text(ms * 1.08, at, text, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
    axes.set_xscale("log")
    axes.set_xlim(1, max(ms for _, ms, _ in rows) * 4)
    axes.set_xlabel("ms a step (log scale)", fontsize=8.5, color=DIM)
    plain_axes(axes)
    figure.text(0.995, 0.015, source, ha="right", fontsize=8, color=DIM)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    said = "; ".join(
        f"{name}: {'at least ' if predicted else ''}{fmt_ms(ms)}" for name, ms, predicted in rows
    )
    return figure, f"Bars on a log scale of milliseconds a step. {said}. Source: {source}."
