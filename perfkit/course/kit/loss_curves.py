"""Loss curves of several seeds, in several ways of training: do the ways differ more than seeds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ORANGE, _BLUE, _GREEN = "#E69F00", "#0072B2", "#009E73"


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
