"""The picture of lesson 15: what each device receives in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_COLOURS = ("#E69F00", "#0072B2", "#009E73")


def draw_received(ways: Mapping[str, Sequence[float]], *, source: str) -> tuple[Figure, str]:
    """Bars: the bytes that each device receives in a step, for each way, with a description.

    Args:
        ways: name → bytes by device; all of the same length. At most three.
        source: how they were counted; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.0), facecolor=_GROUND)
    axes = figure.subplots()
    n = len(next(iter(ways.values())))
    width = 0.8 / len(ways)
    said = []
    for k, ((name, found), colour) in enumerate(zip(ways.items(), _COLOURS, strict=False)):
        at = [device + (k - (len(ways) - 1) / 2) * width for device in range(n)]
        bars = axes.bar(at, [x / 1e3 for x in found], width * 0.92, color=colour, label=name)
        axes.bar_label(bars, [fmt_count(round(x / 1e3)) for x in found], fontsize=8, color=_INK)
        said.append(f"{name}: " + ", ".join(fmt_count(round(x / 1e3)) for x in found))
    axes.set_xticks(range(n), [f"device {device}" for device in range(n)])
    axes.set_ylabel("received in a step, kB", fontsize=9, color=_DIM)
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_DIM)
    axes.tick_params(colors=_INK, labelsize=9)
    figure.text(0.995, 0.012, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure, (
        f"Bars: kB that each of {n} devices receives in a step ({source}). {'; '.join(said)}."
    )
