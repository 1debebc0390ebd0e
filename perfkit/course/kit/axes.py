"""What the small figures of the lessons share: colours, plain axes, the source in the corner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUND, INK, DIM = "#ffffff", "#1f2328", "#57606a"


def plain_axes(axes: Axes) -> None:
    """No frame above and on the right, the rest in grey, small numbers."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(DIM)
    axes.tick_params(colors=INK, labelsize=9)


def whiskers(
    values: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """How far intervals reach to both sides of their values, as matplotlib's ``xerr`` wants it.

    NaN, which draws none, where an end is not known: too few rounds give an interval from 0 to
    infinity, and one such whisker leaves no room for the bars.
    """
    import numpy as np

    at, lower, upper = (np.asarray(x, np.float64) for x in (values, low, high))
    known = (lower > 0) & np.isfinite(upper)
    return np.where(known, np.maximum([at - lower, upper - at], 0), np.nan)


def with_source(figure: Figure, source: str, *, bottom: float = 0.04) -> None:
    """Where the numbers come from, in the lower right corner, below what was drawn.

    Args:
        figure: the figure, complete but for this.
        source: in words.
        bottom: room for it, as a share of the figure's height; a figure that lays itself out
            finds that room without.
    """
    if figure.get_layout_engine() is not None:
        figure.supxlabel(source, x=0.995, ha="right", fontsize=8, color=DIM)
        return
    figure.text(0.995, 0.012, source, ha="right", fontsize=8, color=DIM)
    figure.tight_layout(rect=(0, bottom, 1, 1))
