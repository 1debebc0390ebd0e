"""The picture of lesson 11: memory over a training step, kept against computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfkit.memory.account import MemoryAccount

_STYLES = (("#0072B2", "-"), ("#009E73", "--"), ("#D55E00", "-."))


def draw_steps(accounts: Mapping[str, MemoryAccount]) -> tuple[Figure, str]:
    """The memory of a step by how it was run, one line each, with a description.

    Args:
        accounts: name → account of a step, at most three.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), facecolor=GROUND)
    axes = figure.subplots()
    said = []
    for (name, account), (colour, dashes) in zip(accounts.items(), _STYLES, strict=False):
        curve = account.curve
        # the optimizer's step, which makes many small tensors, would be half of the picture
        n = max((i for i, phase in enumerate(curve.phase) if phase == "backward"), default=-2) + 2
        n = n if 1 < n < len(curve.index) and curve.peak < n else len(curve.index)
        last = max(curve.index[n - 1], 1)
        share = [100 * index / last for index in curve.index[:n]]
        axes.plot(
            share,
            [nbytes / 1e6 for nbytes in curve.total_bytes[:n]],
            color=colour,
            linestyle=dashes,
            linewidth=1.6,
            label=f"{name}: {account.peak_bytes / 1e6:.1f} MB at the peak",
        )
        said.append(
            f"{name}, {account.peak_bytes / 1e6:.1f} MB at the peak, {share[curve.peak]:.0f} % "
            "of the way"
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(0)
    axes.set_xlabel(
        "% of the allocations and frees of forward and backward pass", fontsize=9, color=DIM
    )
    axes.set_ylabel("MB of tensors", fontsize=9, color=DIM)
    plain_axes(axes)
    # above the curves: a peak may be anywhere below
    axes.legend(
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
    )
    with_source(figure, "counted here")
    return figure, (
        "Memory over one forward and backward pass: it rises in the first and falls in the second"
        f". {'; '.join(said)}."
    )
