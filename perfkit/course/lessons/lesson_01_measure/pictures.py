"""The figures of lesson 01, made without pyplot, so that the reader's own state is untouched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_interval, fmt_ms, fmt_ratio
from perfkit.course.kit.axes import whiskers, with_source
from perfkit.course.kit.origin import origin
from perfkit.course.lessons.lesson_01_measure.cost import ProfilerCost

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"

_Array = npt.NDArray[np.float64]


def draw_first_steps(
    times_ms: _Array, *, wait: int, warmup: int, active: int
) -> tuple[Figure, str]:
    """The first steps of several processes, with the phases of a profiler's schedule.

    Args:
        times_ms: processes × steps, as ``first_steps`` gives.
        wait, warmup, active: of ``torch.profiler.schedule``.

    Returns:
        The figure and its description.

    Raises:
        UsageError: the schedule has more steps than were timed.
    """
    n = times_ms.shape[1]
    if wait + warmup + active > n:
        raise UsageError(f"the schedule needs {wait + warmup + active} steps, {n} were timed")
    middle = np.median(times_ms, axis=0)
    steady = float(np.median(times_ms[:, n // 2 :]))
    figure, axes = _new(1)
    (left,) = axes
    numbers = np.arange(1, n + 1)
    for row in times_ms:
        left.plot(numbers, row, ".", color=_BLUE, alpha=0.35, markersize=5)
    left.plot(numbers, middle, color=_BLUE, lw=1.6, label=f"median of {len(times_ms)} processes")
    left.axhline(steady, color=_GREY, ls="--", lw=1.2, label="median of the later half")
    edges = np.cumsum([0.5, wait, warmup, active])
    names = ("wait", "warm-up", "active")
    for name, low, high, shade in zip(
        names, edges, edges[1:], (_GREY, _ORANGE, _GREEN), strict=False
    ):
        left.axvspan(low, high, color=shade, alpha=0.15, lw=0)
        left.text(
            (low + high) / 2, 0.97, name, transform=left.get_xaxis_transform(), ha="center",
            va="top", fontsize="small",
        )  # fmt: skip
    left.set(yscale="log", xlabel="step of a fresh process", ylabel="time of the step (ms)")
    left.set_xlim(0, n + 0.5)
    left.set_ylim(top=float(times_ms.max()) * 2)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if value in (2, 5, 20, 50) else "")
    left.legend(frameon=False, fontsize="small", loc="upper right", bbox_to_anchor=(1, 0.9))
    with_source(figure, origin())
    first = float(middle[0])
    words = (
        f"Time of the first {n} steps in {len(times_ms)} fresh processes, on a logarithmic axis. "
        f"The first step takes {fmt_ms(first)}, later ones {fmt_ms(steady)} (medians); a schedule "
        f"with wait {wait}, warm-up {warmup}, active {active} records only steps "
        f"{wait + warmup + 1} to {wait + warmup + active}."
    )
    return figure, words


def draw_cost(cost: ProfilerCost) -> tuple[Figure, str]:
    """Bars: how many times as long a step takes under each option, and stopping beside it.

    Returns:
        the figure and its words.
    """
    options = cost.options[1:]
    names = [one.name for one in options]
    figure, axes = _new(2)
    left, right = axes
    rows = np.arange(len(options))
    ratios = [one.ratio for one in options if one.ratio is not None]
    values = np.array([one.ratio for one in ratios])
    errors = whiskers(values, [one.low for one in ratios], [one.high for one in ratios])
    left.barh(rows, values, color=_BLUE, alpha=0.85, xerr=errors, ecolor="black", capsize=3)
    left.axvline(1, color=_GREY, ls="--", lw=1.2)
    left.set(yticks=rows, xlabel="step: times as long as without profiler")
    left.set_yticklabels(names)
    left.invert_yaxis()
    left.grid(visible=False, axis="y")
    stops = np.array([0.0 if one.stop is None else one.stop.median for one in options])
    right.barh(rows, stops, color=_ORANGE, alpha=0.85, hatch="//", edgecolor="white")
    right.set(yticks=rows, xlabel="stopping, per recorded step (ms)")
    right.set_yticklabels([])
    right.invert_yaxis()
    right.grid(visible=False, axis="y")
    with_source(figure, origin())
    said = "; ".join(
        f"{name} {fmt_ratio(ratio.ratio)} {fmt_interval(ratio.low, ratio.high)}, "
        f"stopping {fmt_ms(stop)}"
        for name, ratio, stop in zip(names, ratios, stops, strict=True)
    )
    words = (
        "What the profiler costs: time of a step against one without profiler, with 95 % "
        f"interval, and of stopping per recorded step. {said}."
    )
    return figure, words


def draw_drift(
    one_after_the_other: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]],
    in_turn: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]],
) -> tuple[Figure, str]:
    """The same drift under two orders; each pair is blocks × times of A and of B, in time order.

    Returns:
        the figure and its words.
    """
    figure, axes = _new(2, sharey=True)
    a, b = (np.array(arm, dtype=float).ravel() for arm in one_after_the_other)
    _arms(axes[0], np.arange(1.0, len(a) + 1), a, len(a) + np.arange(1.0, len(b) + 1), b)
    axes[0].set(title="simulated: one after the other", xlabel="call", ylabel="time of a call (ms)")
    first, second = (np.array(arm, dtype=float) for arm in in_turn)
    # the lesson's blocks are A B B A
    places = np.arange(1.0, 2 * first.size + 1).reshape(-1, 4)
    _arms(axes[1], places[:, [0, 3]].ravel(), first.ravel(), places[:, [1, 2]].ravel(),
          second.ravel())  # fmt: skip
    axes[1].set(title="simulated: in turn, A B B A", xlabel="call")
    axes[0].legend(frameon=False, fontsize="small", loc="upper left")
    words = (
        "Simulated: the same step as A and as B on a machine that slowly gets slower. One after "
        f"the other the medians are {fmt_ms(np.median(a))} and {fmt_ms(np.median(b))}; in turn "
        f"{fmt_ms(np.median(first))} and {fmt_ms(np.median(second))}."
    )
    return figure, words


def _arms(axes: Axes, at_a: _Array, a: _Array, at_b: _Array, b: _Array) -> None:
    for name, at, times, colour, mark in (("A", at_a, a, _BLUE, "o"), ("B", at_b, b, _ORANGE, "^")):
        axes.plot(at, times, mark, color=colour, alpha=0.6, markersize=4, label=name)
        axes.hlines(np.median(times), at.min(), at.max(), color=colour, lw=2)


def _new(panels: int, *, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
    from perfkit.show._page_figure import PageFigure

    figure = PageFigure(figsize=(8, 3.2))
    axes = figure.subplots(1, panels, squeeze=False, sharey=sharey)[0]
    for one in axes:
        one.grid(alpha=0.25)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    return figure, list(axes)
