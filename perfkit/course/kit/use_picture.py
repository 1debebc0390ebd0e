"""A picture of use: how busy something was, beside how much of its arithmetic was used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfkit.base.words import fmt_share
from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes
from perfkit.course.kit.origin import origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Use:
    """How busy something was, and how much of its arithmetic was used.

    Attributes:
        name: its name.
        busy: share of the time in which it was busy at all, 0 … 1.
        used: achieved over achievable FLOP/s, 0 … 1.
    """

    name: str
    busy: float
    used: float


def measured_on(device: str) -> dict[str, str]:
    """What the two bars of a step that ran here are: ``source``, ``busy`` and ``of``.

    With a GPU they speak of two things: the core is the host's, the FLOP/s are the GPU's.
    """
    if device == "cpu":
        return {"source": "measured here", "busy": "one core busy"}
    return {
        "source": "measured here",
        "busy": "one core of the host busy",
        "of": "the GPU's achievable",
    }


def draw_use(
    uses: Sequence[Use], *, source: str, busy: str = "utilisation", of: str = "the achievable"
) -> Figure:
    """Two bars each: how busy it was, and how much of its arithmetic was used."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 0.62 * len(uses) + 1.25), facecolor=GROUND)
    axes = figure.subplots()
    rows = np.arange(len(uses))[::-1]
    for shift, values, colour, pattern, label in (
        (0.19, [u.busy for u in uses], "#E69F00", "///", busy),
        (-0.19, [u.used for u in uses], "#0072B2", "", f"achieved FLOP/s, of {of}"),
    ):
        bars = axes.barh(rows + shift, values, 0.36, color=colour, label=label)
        for bar, value in zip(bars, values, strict=True):
            bar.set_hatch(pattern)
            bar.set_edgecolor(INK if pattern else colour)
            bar.set_linewidth(0.4)
            axes.text(
                value + 0.012,
                bar.get_y() + bar.get_height() / 2,
                fmt_share(value),
                va="center",
                fontsize=8.5,
                color=INK,
            )
    axes.set_yticks(rows, [u.name for u in uses])
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    plain_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False, labelsize=9)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8.5)
    figure.text(0.995, 0.015, origin(source), ha="right", fontsize=8, color=DIM)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure


def words_of_use(
    uses: Sequence[Use], *, source: str, busy: str = "utilisation", of: str = "the achievable"
) -> str:
    """The same in words."""
    parts = "; ".join(
        f"{u.name}: {busy} {fmt_share(u.busy)}, {fmt_share(u.used)} of {of} FLOP/s" for u in uses
    )
    return f"Bars ({origin(source)}). {parts}."
