"""The picture of lesson 14: speed by the number of threads, small work and large."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, plain_axes, with_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfkit.measure.compare import Comparison
    from perfkit.measure.paired import Interval

_COLOURS = ("#0072B2", "#E69F00", "#009E73")
_MARKS = ("o", "s", "^")


def draw_threads(
    speeds: Mapping[str, Mapping[int, Interval | Comparison]], *, cores: int, source: str
) -> tuple[Figure, str]:
    """Speed of a step by number of threads, in units of that with one thread.

    Args:
        speeds: name → threads → one thread against so many; the bars are their intervals.
        cores: the cores that the process may use; the line "twice the threads, twice the speed"
            ends there.
        source: where the times were measured; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.0), facecolor=GROUND)
    axes = figure.subplots()
    counts = sorted({1, *(count for found in speeds.values() for count in found)})
    upto = [count for count in counts if count <= cores]
    axes.plot(upto, upto, ":", color=DIM, linewidth=1.2, label="each thread counts in full")
    said = []
    for (name, found), colour, mark in zip(speeds.items(), _COLOURS, _MARKS, strict=False):
        ratios = {1: 1.0, **{count: found[count].ratio for count in sorted(found)}}
        axes.plot(list(ratios), list(ratios.values()), mark + "-", color=colour, label=name)
        for count, one in found.items():
            if one.low > 0 and math.isfinite(one.high):
                axes.plot([count, count], [one.low, one.high], color=colour, linewidth=3, alpha=0.4)
        said.append(f"{name}: " + ", ".join(f"{n} → {x:.2f}×" for n, x in ratios.items()))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("threads", fontsize=9, color=DIM)
    axes.set_ylabel("speed, one thread = 1", fontsize=9, color=DIM)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    plain_axes(axes)
    with_source(figure, source)
    return figure, f"Speed by number of threads ({source}). {'; '.join(said)}."
