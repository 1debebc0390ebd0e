"""The figures of lesson 03, made without pyplot, so that the reader's own state is untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_bytes, fmt_interval, fmt_ms, fmt_ratio, no_difference
from perfkit.course.kit.axes import whiskers, with_source
from perfkit.course.kit.origin import origin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfkit.course.lessons.lesson_03_storage_and_formats.worker_pages import WorkerPages
    from perfkit.measure.compare import Comparison

# Okabe and Ito's palette
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_MIB = 2**20
_LOGARITHMIC_FROM = 15.0


@dataclass(frozen=True)
class Arm:
    """One way to store the data.

    Attributes:
        name: its name.
        held: bytes held by the process itself.
        cached: bytes in the kernel's page cache, which it reclaims when memory is short.
        against: comparison of the slowest arm (first) with this one (second); None for the slowest
            arm itself.
    """

    name: str
    held: int
    cached: int
    against: Comparison | None = None


def draw_arms(arms: Sequence[Arm], *, pictures: int, per_call: int) -> tuple[Figure, str]:
    """Draw time and RAM of each arm.

    Args:
        arms: the slowest first; all others are compared with it.
        pictures: number of pictures that the bytes are for.
        per_call: pictures loaded by one call of the compared functions.

    Returns:
        The figure and its description.

    Raises:
        UsageError: there is no second arm, or one of the others has no comparison.
    """
    others = [arm.against for arm in arms[1:]]
    if not others or any(one is None for one in others):
        raise UsageError("draw_arms needs two arms or more, all but the first with a comparison")
    found = [one for one in others if one is not None]
    slow = float(np.median([one.a.median for one in found]))
    # ratios were measured in turn, not times: a time is the slow one's over the ratio
    times = np.array([slow, *(slow / one.ratio for one in found)]) / per_call
    low = np.array([slow, *(slow / one.high for one in found)]) / per_call
    high = np.array([slow, *(slow / one.low if one.low else inf for one in found)]) / per_call
    figure, (left, right) = _new(2, sharey=True)
    rows = np.arange(len(arms))
    errors = whiskers(times, low, high)
    left.barh(rows, times, color=_BLUE, alpha=0.85, xerr=errors, ecolor="black", capsize=3)
    left.set(yticks=rows, xscale="log", xlabel="ms for one picture (logarithmic)")
    left.set_yticklabels([arm.name for arm in arms])
    left.invert_yaxis()
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    held = np.array([arm.held for arm in arms]) / _MIB
    cached = np.array([arm.cached for arm in arms]) / _MIB
    right.barh(rows, held, color=_ORANGE, alpha=0.9, label="held by the process")
    right.barh(
        rows, cached, left=held, color="white", edgecolor=_GREY, hatch="///",
        label="page cache: the kernel may take it back",
    )  # fmt: skip
    right.set(xlabel=f"RAM for {pictures} pictures (MiB)")
    figure.legend(frameon=False, fontsize="small", loc="outside upper right", ncols=2)
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
    with_source(figure, origin("times measured here, bytes counted"))
    said = "; ".join(
        f"{arm.name} {fmt_ms(time)}, {fmt_bytes(arm.held)} held and {fmt_bytes(arm.cached)} in "
        "the page cache"
        for arm, time in zip(arms, times, strict=True)
    )
    return figure, f"Bars: time to load one picture, and RAM for {pictures}. {said}."


def break_even(online: float, offline: float, once: float) -> float:
    """Epochs after which doing work once pays off: ``once / (online - offline)``; inf if never."""
    return once / (online - offline) if online > offline else float("inf")


def draw_break_even(online: float, offline: float, once: float) -> tuple[Figure, str]:
    """Draw the total time after each epoch, with the work done in every epoch or once beforehand.

    Args:
        online, offline: seconds per epoch with and without the work.
        once: seconds of the work done beforehand.

    Returns:
        The figure and its description.
    """
    point = break_even(online, offline, once)
    last = int(min(max(4, np.ceil(2 * point)), 30)) if np.isfinite(point) else 10
    figure, (axes,) = _new(1)
    epochs = np.arange(last + 1)
    axes.plot(epochs, online * epochs, color=_ORANGE, lw=2)
    axes.plot(epochs, once + offline * epochs, color=_BLUE, lw=2)
    # labels beside the lines, two thirds along: left of the steep one, above the flat one
    at = last * 2 / 3
    axes.annotate(
        "resize in every epoch", (at, online * at), xytext=(-10, 4), ha="right", color=_ORANGE,
        textcoords="offset points",
    )  # fmt: skip
    axes.annotate(
        "resize once, before", (last, once + offline * last), xytext=(-8, 6), ha="right",
        textcoords="offset points", color=_BLUE,
    )  # fmt: skip
    said = "it never pays"
    if np.isfinite(point):
        axes.plot([point], [online * point], "o", color="black")
        axes.annotate(
            f"even after {point:.1f} epochs", (point, online * point), xytext=(8, -14),
            textcoords="offset points",
        )  # fmt: skip
        said = f"the lines cross after {point:.1f} epochs"
    axes.set(xlabel="epochs", ylabel="time spent on data (s)", xlim=(0, last), ylim=(0, None))
    axes.locator_params(axis="x", integer=True)
    with_source(figure, origin("from times measured here"))
    words = (
        f"Time spent on data against epochs. Resizing in every epoch costs {online:.2f} s an "
        f"epoch; resizing once costs {once:.2f} s and then {offline:.3f} s an epoch: {said}."
    )
    return figure, words


def draw_gains(gains: Mapping[str, Comparison], label: str) -> tuple[Figure, str]:
    """Draw bars: a ratio with its interval for each name.

    Args:
        gains: name → comparison.
        label: label of the axis, e.g. ``"times as fast with vector code"``.

    Returns:
        The figure and its description.

    Raises:
        UsageError: there is nothing to draw.
    """
    if not gains:
        raise UsageError("draw_gains needs at least one comparison")
    figure, (axes,) = _new(1)
    rows = np.arange(len(gains))
    found = list(gains.values())
    values = np.array([one.ratio for one in found])
    errors = whiskers(values, [one.low for one in found], [one.high for one in found])
    colours = [_BLUE if one.different else _GREY for one in found]
    # small and large factors on one axis: logarithmic, from "as fast"
    wide = float(values.max()) > _LOGARITHMIC_FROM
    start = 1.0 if wide else 0.0
    bars = axes.barh(
        rows, values - start, left=start, color=colours, alpha=0.85, xerr=errors, ecolor="black",
        capsize=3,
    )  # fmt: skip
    axes.axvline(1, color="black", ls="--", lw=1.2)
    axes.set(yticks=rows, xlabel=f"{label} (logarithmic)" if wide else label)
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(
            lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""
        )
    else:
        axes.set_xlim(0, None)
    axes.set_yticklabels(list(gains))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    grey = {
        no_difference(one.low, one.high): bar
        for bar, one in zip(bars, found, strict=True)
        if not one.different
    }
    if grey:
        bar, *_ = grey.values()
        figure.legend(
            [bar], [f"grey: {' or '.join(grey)}"], frameon=False, fontsize="small",
            loc="outside upper right",
        )  # fmt: skip
    with_source(figure, origin())
    said = "; ".join(
        f"{name} {fmt_ratio(one.ratio)} {fmt_interval(one.low, one.high)}"
        + ("" if one.different else f" ({no_difference(one.low, one.high)})")
        for name, one in gains.items()
    )
    return figure, f"Bars with 95 % interval, {label}: {said}."


def draw_pages(pages: WorkerPages) -> tuple[Figure, str]:
    """Draw the bytes that each worker copied, beside the data.

    Returns:
        The figure and its description.

    Raises:
        UsageError: there is nothing to draw.
    """
    if not pages.grown:
        raise UsageError("draw_pages needs at least one way to hold data")
    figure, (axes,) = _new(1)
    rows = np.arange(len(pages.grown))
    names = list(pages.grown)
    data = np.array([pages.data_bytes[name] for name in names]) / _MIB
    own = np.array([pages.per_worker(name) for name in names]) / _MIB
    axes.barh(rows, data, color="white", edgecolor=_GREY, hatch="///", label="the data, held once")
    axes.barh(rows, own, height=0.4, color=_ORANGE, label="copied, in each worker")
    for row, name in enumerate(names):
        axes.annotate(
            fmt_bytes(pages.per_worker(name)), (max(data[row], own[row]), row), xytext=(5, 0),
            textcoords="offset points", va="center", color=_ORANGE,
        )  # fmt: skip
    axes.set(yticks=rows, xlabel="RAM (MiB)", xlim=(0, 1.25 * max(data.max(), own.max())))
    axes.set_yticklabels(names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    figure.legend(frameon=False, fontsize="small", loc="outside upper right", ncols=2)
    with_source(figure, origin())
    said = "; ".join(
        f"{name}: {fmt_bytes(pages.data_bytes[name])}, {fmt_bytes(pages.per_worker(name))} copied"
        for name in names
    )
    return figure, f"Bars: the data, and the bytes that each worker copied. {said}."


def _new(panels: int, *, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
    from perfkit.show._page_figure import PageFigure

    figure = PageFigure(figsize=(7, 3))
    axes: Any = figure.subplots(1, panels, squeeze=False, sharey=sharey)[0]
    for one in axes:
        one.grid(alpha=0.25)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    return figure, list(axes)
