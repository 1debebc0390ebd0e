"""The picture of lesson 19: a profile of eight steps in front of a full queue."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_ms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_ORANGE, _BLUE = "#E69F00", "#0072B2"


def draw_steps(
    steps_ms: Sequence[float], *, profiled: int, ready: int, source: str
) -> tuple[Figure, str]:
    """The time of each step, with the steps of a profile and those that found a batch ready.

    Args:
        steps_ms: milliseconds of each step.
        profiled: length of the profile, from the first step on.
        ready: batches that were ready before the first step.
        source: what the times are; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.1), facecolor=_GROUND)
    axes = figure.subplots()
    axes.axvspan(0.5, profiled + 0.5, color=_ORANGE, alpha=0.22, linewidth=0)
    axes.axvline(ready + 0.5, color=_DIM, linewidth=1, linestyle="--")
    numbers = range(1, len(steps_ms) + 1)
    axes.plot(numbers, steps_ms, "o", markersize=3, color=_BLUE)
    top = 1.35 * max(steps_ms)
    axes.set_ylim(0, top)
    axes.set_xlim(0.5, len(steps_ms) + 0.5)
    axes.text(profiled / 2 + 0.5, 0.9 * top, "profile", ha="center", fontsize=8.5, color=_INK)
    label = f"{ready} batches were ready"
    axes.text(ready + 1.2, 0.9 * top, label, fontsize=8.5, color=_INK)
    axes.set_xlabel("step", fontsize=9, color=_DIM)
    axes.set_ylabel("ms", fontsize=9, color=_DIM)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_DIM)
    axes.tick_params(colors=_INK, labelsize=9)
    figure.text(0.995, 0.015, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    early, late = steps_ms[:profiled], steps_ms[2 * ready :]
    return figure, (
        f"A dot for each of {len(steps_ms)} steps. The profile covers the first {profiled}: mean "
        f"{fmt_ms(fmean(early))} a step. {ready} batches were ready before; from step "
        f"{2 * ready + 1} on, the mean is {fmt_ms(fmean(late))}. Source: {source}."
    )
