"""The pictures of lesson 09: the bits of each format, and the kit's loss curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.course.kit.axes import GROUND, INK
from perfkit.course.kit.loss_curves import draw_curves
from perfkit.course.lessons.lesson_09_precision.lesson import FORMATS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_formats"]

_SIGN, _ORANGE, _BLUE = "#999999", "#E69F00", "#0072B2"


def draw_formats() -> tuple[Figure, str]:
    """Sign, exponent and mantissa of each format as boxes, with a description."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 2.9), facecolor=GROUND)
    axes = figure.subplots()
    said = []
    for row, one in enumerate(FORMATS):
        parts = ((1, _SIGN), (one.exponent_bits, _ORANGE), (one.mantissa_bits, _BLUE))
        begin = 0
        for width, colour in parts:
            for bit in range(width):
                axes.barh(row, 0.9, left=begin + bit, height=0.62, color=colour, edgecolor="none")
            begin += width
        stored = "" if one.dtype else ", stored as fp32"
        axes.annotate(
            f"{one.exponent_bits} + {one.mantissa_bits}{stored}",
            (begin + 0.4, row),
            va="center",
            fontsize=8.5,
            color=INK,
        )
        said.append(f"{one.name} {one.exponent_bits} and {one.mantissa_bits}")
    axes.set_yticks(range(len(FORMATS)), [one.name for one in FORMATS])
    axes.invert_yaxis()
    axes.set_xlim(0, 38)
    axes.set_xticks([])
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(
        "sign (grey) · exponent (orange): the range · mantissa (blue): the spacing",
        fontsize=9,
        color=INK,
        loc="left",
    )
    figure.tight_layout()
    return figure, (
        "The bits of each format as boxes: a sign, then exponent and mantissa. "
        f"Exponent and mantissa: {'; '.join(said)}."
    )
