"""The picture of lesson 13: reserved and allocated over the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes
from perfkit.memory.replay import Replayed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ORANGE, _BLUE = "#E69F00", "#0072B2"
_GIB = 1 << 30


def draw_reserved(runs: Mapping[str, Replayed]) -> tuple[Figure, str]:
    """The most that was reserved and held in each step, one panel a run, with a description.

    Args:
        runs: name → a replay with a mark for each step.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.0), facecolor=GROUND)
    panels = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    said = []
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        steps = range(1, len(run.marks) + 1)
        reserved = [mark.highest_reserved_bytes / _GIB for mark in run.marks]
        held = [mark.highest_allocated_bytes / _GIB for mark in run.marks]
        axes.bar(steps, held, width=0.8, color=_BLUE, label="held by tensors")
        axes.step(steps, reserved, where="mid", color=_ORANGE, linewidth=1.8, label="reserved")
        axes.set_title(name, fontsize=9.5, color=INK)
        axes.set_xlabel("step", fontsize=9, color=DIM)
        axes.set_ylim(bottom=0)
        plain_axes(axes)
        said.append(
            f"{name}: tensors hold at most {max(held):.2f} GiB in a step and at least "
            f"{min(held):.2f}; reserved rises from {reserved[0]:.2f} GiB to {reserved[-1]:.2f}"
        )
    panels[0].set_ylabel("at most in a step, GiB", fontsize=9, color=DIM)
    panels[0].margins(y=0.25)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", ncols=2, frameon=False, fontsize=8)
    figure.text(0.995, 0.02, "simulated", ha="right", fontsize=8, color=DIM)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure, f"Memory over {len(reserved)} steps, simulated. {'. '.join(said)}."
