"""The picture of a watched run: what is left when there is no kernel and no widget any more."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_bytes, fmt_ms, fmt_share, plural
from perfkit.measure.verdict import RunSummary
from perfkit.show.palette import CURVES, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Spikes above this many times the 95th percentile are cut off (and counted in the title): one
# pause of seconds would press all other steps onto the axis.
_FRAME_OF_P95 = 2.5
_ROOM = 0.03
_WAIT, _MEMORY = CURVES["data wait"], CURVES["memory"]


def alternative(run: RunSummary) -> str:
    """The picture in words."""
    if run.step is None or run.wait_share is None:
        return f"{run.name}: no step to draw."
    words = (
        f"Step time and data wait of {run.name} over {plural(run.n_steps, 'step')}: median step "
        f"{fmt_ms(run.step.median)}, from {fmt_ms(run.step.minimum)} to "
        f"{fmt_ms(run.step.maximum)}; data wait is {fmt_share(run.wait_share)} of the time"
    )
    if run.memory is not None:
        words += (
            f"; {run.memory.kind} memory from {fmt_bytes(run.memory.first_bytes)} "
            f"to {fmt_bytes(run.memory.last_bytes)}"
        )
    return f"{words}."


def png(run: RunSummary) -> bytes:
    """The picture as PNG."""
    from matplotlib import style

    file = io.BytesIO()
    with style.context("default"):  # the ground is white, whatever the user's own style
        drawn(run).savefig(file, format="png")
    return file.getvalue()


def drawn(run: RunSummary) -> Figure:
    """Step and data wait on the left axis, memory on the right.

    Drawn with the figure's own Agg canvas, so pyplot, its global state and the notebook's backend
    stay as they are.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.ticker import MaxNLocator

    from perfkit.show._page_figure import PageFigure

    curve = run.curve
    figure = PageFigure(figsize=(7.6, 2.9), dpi=100)
    FigureCanvasAgg(figure)  # becomes the figure's canvas
    axes = figure.add_subplot()
    axes.plot(curve.numbers, curve.step_ms, color=INK, linewidth=1.0, label="step")
    axes.plot(
        curve.numbers, curve.wait_ms, color=_WAIT, linewidth=1.0, linestyle="--", label="data wait"
    )
    highest = float(np.max(curve.step_ms, initial=0.0))
    frame = min(_FRAME_OF_P95 * float(np.quantile(curve.step_ms, 0.95)), 1.05 * highest)
    beyond = int((curve.step_ms > frame).sum()) if frame > 0 else 0
    # a little room below 0: a curve that lies on the frame cannot be seen
    axes.set_ylim(_below(frame if frame > 0 else 1.0))
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("time (ms)")
    axes.grid(visible=True, axis="y", linewidth=0.4, alpha=0.6)
    title = f"median step {fmt_ms(run.step.median)}" if run.step is not None else ""
    if beyond:
        title += f"; {beyond} points above the frame, up to {fmt_ms(highest)}"
    axes.set_title(title, fontsize=9, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    if len(curve.memory_bytes) > 1 and run.memory is not None:
        right = axes.twinx()
        (line,) = right.plot(
            curve.memory_numbers,
            curve.memory_bytes / 2**20,
            color=_MEMORY,
            linewidth=1.2,
            linestyle=":",
        )
        right.set_ylabel(f"{run.memory.kind} memory (MiB)")
        right.set_ylim(_below(1.25 * max(float(curve.memory_bytes.max()) / 2**20, 1.0)))
        handles.append(line)
        labels.append("memory")
    figure.legend(
        handles, labels, fontsize=8, ncols=len(labels), loc="outside lower center", frameon=False
    )
    return figure


def _below(top: float) -> tuple[float, float]:
    return -_ROOM * top, top
