"""The static picture of a Lab, for saved notebooks and exports."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfkit.show.palette import CURVES, INK

_MIB = 2**20
_WAIT, _MEMORY = CURVES["data wait"], CURVES["memory"]


class Curve:
    """What the figure needs from a run: label and columns (s, ms, ms, MiB, quiet)."""

    def __init__(self, label: str, rows: NDArray[np.float32]) -> None:
        self.label = label
        self.seconds, self.step_ms, self.wait_ms, self.memory_mib, self.quiet = rows.T


def png(title: str, curves: Sequence[Curve], *, origin: str = "") -> bytes:
    """Step time, data wait and memory of the last run, the pinned one dimmed behind it.

    Made without pyplot, so that the user's figures, style and backend are untouched.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    right = left.twinx()
    for age, curve in enumerate(reversed(curves)):
        ghost = age > 0
        alpha = 0.45 if ghost else 1.0
        style = "--" if ghost else "-"
        width = 1.0 if ghost else 1.6
        name = f" ({curve.label})"
        left.plot(curve.seconds, curve.step_ms, style, color=INK, alpha=alpha, lw=width,
                  label="step time" + name)  # fmt: skip
        left.plot(curve.seconds, curve.wait_ms, style, color=_WAIT, alpha=alpha, lw=width,
                  label="data wait" + name)  # fmt: skip
        if not ghost:
            left.fill_between(curve.seconds, curve.wait_ms, color=_WAIT, alpha=0.15, lw=0)
        right.plot(curve.seconds, curve.memory_mib, ":", color=_MEMORY, alpha=alpha, lw=width,
                   label="memory" + name)  # fmt: skip
    steps = np.concatenate([curve.step_ms for curve in curves]) if curves else np.empty(0)
    if len(steps):
        # as in the browser, the axis ends above almost all points
        usual, highest = np.nanpercentile(steps, 97), np.nanmax(steps)
        left.set_ylim(0, 1.6 * usual if highest > 3 * usual else 1.08 * highest)
    memory = np.concatenate([curve.memory_mib for curve in curves]) if curves else np.empty(0)
    highest_mib = np.nanmax(memory) if np.isfinite(memory).any() else 0.0
    right.set_ylim(0, 1.15 * highest_mib or 1.0)  # keeps the curve off the frame
    left.set(xlabel="seconds of training", ylabel="ms")
    figure.suptitle(title, fontsize="large")
    left.set_title(origin, fontsize="x-small", color="#55595f")
    right.set_ylabel("MiB")
    for axes in (left, right):
        axes.spines["top"].set_visible(False)
    left.grid(alpha=0.25)
    handles = [*left.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False,
                      fontsize="small")  # fmt: skip
    out = io.BytesIO()
    figure.savefig(out, format="png", facecolor="white")
    return out.getvalue()


def columns(
    seconds: NDArray[np.float64],
    step_ms: NDArray[np.float64],
    wait_ms: NDArray[np.float64],
    memory_bytes: NDArray[np.int64],
    quiet: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """The five columns of a Lab's curve, as ``js/src/lab.js`` and :class:`Curve` read them."""
    memory = np.where(memory_bytes > 0, memory_bytes / _MIB, np.nan)
    return np.column_stack([seconds, step_ms, wait_ms, memory, quiet]).astype(np.float32)
