"""The picture of lesson 18: what each fix took off, in one order and in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.lessons.lesson_18_capstone.measured import Stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_ORANGE, _BLUE, _GREY = "#E69F00", "#0072B2", "#8c959f"


def draw_falls(orders: Mapping[str, Stages], *, source: str) -> tuple[Figure, str]:
    """One waterfall for each order of the same fixes, on one scale, with a description.

    Args:
        orders: title → what was measured in that order.
        source: where; shown under the picture.
    """
    from matplotlib.figure import Figure

    most = max(stages.medians_ms[0] for stages in orders.values())
    n = max(len(stages.names) for stages in orders.values())
    figure = Figure(figsize=(6.8, 0.27 * (n + 1) * len(orders) + 0.9), facecolor=_GROUND)
    for axes, (title, stages) in zip(
        figure.subplots(len(orders), 1, squeeze=False)[:, 0], orders.items(), strict=True
    ):
        _one(axes, title, stages, most)
    axes.set_xlabel("milliseconds an epoch (median)", fontsize=9, color=_DIM)
    figure.text(0.995, 0.008, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    return figure, " ".join(_said(title, stages) for title, stages in orders.items())


def _one(axes: Axes, title: str, stages: Stages, most: float) -> None:
    rows = [(stages.names[0], 0.0, stages.medians_ms[0], _ORANGE, "")]
    for fall in stages.falls:
        low, high = sorted((fall.from_ms, fall.to_ms))
        words = f"{-fall.gain_ms:+,.0f} ms" + ("" if fall.is_seen else ", not seen in all rounds")
        rows.append((fall.name, low, high - low, _GREY if not fall.is_seen else _BLUE, words))
    left = stages.medians_ms[-1]
    rows.append(("what is left", 0.0, left, _ORANGE, ""))
    for at, (_, begin, length, colour, words) in enumerate(rows):
        axes.barh(at, length, left=begin, color=colour, height=0.7)
        axes.text(
            begin + length + most / 100,
            at,
            words or f"{length:,.0f} ms",
            va="center",
            fontsize=8,
            color=_INK,
        )
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * most)
    axes.set_title(title, fontsize=9.5, color=_INK, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_DIM)
    axes.tick_params(colors=_INK, labelsize=8.5, left=False)


def _said(title: str, stages: Stages) -> str:
    falls = "; ".join(
        f"{fall.name} {-fall.gain_ms:+,.0f} ms" + ("" if fall.is_seen else " (not seen)")
        for fall in stages.falls
    )
    return (
        f"Waterfall, {title}: from {stages.medians_ms[0]:,.0f} ms an epoch, {falls}; what is left "
        f"is {stages.medians_ms[-1]:,.0f} ms."
    )
