"""The figure of lesson 05, made without pyplot, so that the reader's own state is untouched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_count, fmt_ms
from perfkit.course.kit.axes import whiskers, with_source
from perfkit.course.kit.origin import origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfkit.measure.compare import Comparison

# Okabe and Ito's palette
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"


@dataclass(frozen=True)
class Way:
    """One way to read samples.

    Attributes:
        name: its name.
        requests: number of requests, counted by the store.
        waits: how many of them wait one after the other: round trips in a row.
        against: comparison of the slowest way (first) with this one (second); None for the
            slowest way itself.
    """

    name: str
    requests: int
    waits: int
    against: Comparison | None = None


def draw_ways(ways: Sequence[Way], *, samples: int, latency_ms: float) -> tuple[Figure, str]:
    """Draw the time to read some samples, the latency in it, and the requests.

    Args:
        ways: the slowest first; all others are compared with it.
        samples: samples read by one call of the compared functions.
        latency_ms: latency added to each request.

    Returns:
        The figure and its description.

    Raises:
        UsageError: there is no second way, or one of the others has no comparison.
    """
    found = [way.against for way in ways[1:] if way.against is not None]
    if not found or len(found) != len(ways) - 1:
        raise UsageError("draw_ways needs two ways or more, all but the first with a comparison")
    slow = float(np.median([one.a.median for one in found]))
    # ratios were measured in turn, not times: a time is the slow one's over the ratio
    times = np.array([slow, *(slow / one.ratio for one in found)])
    low = np.array([slow, *(slow / one.high for one in found)])
    high = np.array([slow, *(slow / one.low if one.low else inf for one in found)])
    waits = np.array([way.waits for way in ways]) * latency_ms

    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 0.4 * len(ways) + 1.4), layout="constrained")
    figure.set_facecolor("white")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    rows = np.arange(len(ways))
    errors = whiskers(times, low, high)
    errors[:, 0] = np.nan  # the slow one is the reference: no error bar
    left.barh(rows, times, color=_BLUE, alpha=0.85, xerr=errors, ecolor="black", capsize=3)
    some = waits > 0
    left.plot(
        waits[some], rows[some], "D", color=_ORANGE, ms=7, mec="white",
        label="round trips in a row × latency",
    )  # fmt: skip
    left.set(yticks=rows, xscale="log", xlabel=f"{samples} samples (ms, log scale)")
    left.set_yticklabels([way.name for way in ways])
    left.set_ylim(len(ways) - 0.5, -1.2)  # room for the legend; the first row on top
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.legend(frameon=False, fontsize="small", loc="upper right")
    requests = [way.requests for way in ways]
    right.barh(rows, requests, color=_GREEN, alpha=0.85)
    for row, n in zip(rows, requests, strict=True):
        right.annotate(
            f"{n}", (n, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    right.set(xlabel="requests", xlim=(0, 1.2 * max(*requests, 1)))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=False, axis="y")
    with_source(figure, origin("measured here; the latency is simulated"))
    said = "; ".join(
        f"{way.name}: {fmt_ms(time)}, {fmt_count(way.requests)} "
        f"request{'s' * (way.requests != 1)}, "
        f"{fmt_ms(wait)} of latency by arithmetic"
        for way, time, wait in zip(ways, times, waits, strict=True)
    )
    return figure, f"Bars: time to read {samples} samples, and requests. {said}."
