"""The pictures of lesson 09: the bits of each format, and loss curves of three seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source
from perfkit.course.lessons.lesson_09_precision.lesson import FORMATS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "draw_formats"]

_SIGN, _ORANGE, _BLUE, _GREEN = "#999999", "#E69F00", "#0072B2", "#009E73"


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


def draw_curves(
    curves: Mapping[str, Sequence[Sequence[float]]], *, source: str
) -> tuple[Figure, str]:
    """Loss by step, a line for each seed, with a description.

    Args:
        curves: way → losses of each seed, all of the same length; three ways at most.
        source: where it was measured; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.5), facecolor=GROUND)
    axes = figure.subplots()
    said = []
    # wide below, narrow above: two ways that agree are both seen
    styles = ((_ORANGE, 5.0, "-"), (_BLUE, 1.5, "-"), (_GREEN, 1.5, "--"))
    for (name, seeds), (colour, width, dashes) in zip(curves.items(), styles, strict=False):
        for number, losses in enumerate(seeds):
            axes.plot(
                losses,
                color=colour,
                linewidth=width,
                linestyle=dashes,
                alpha=0.75 if width > 2 else 1,
                label=name if number == 0 else None,
            )
        last = [losses[-1] for losses in seeds]
        said.append(f"{name}: from {seeds[0][0]:.2f} to {min(last):.2f} … {max(last):.2f}")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")
    axes.set_xlabel("step", fontsize=9, color=DIM)
    axes.set_ylabel("loss", fontsize=9, color=DIM)
    plain_axes(axes)
    with_source(figure, source, bottom=0.03)
    n_seeds = len(next(iter(curves.values())))
    return figure, f"Loss by step, {n_seeds} seeds of each way ({source}). {'; '.join(said)}."
