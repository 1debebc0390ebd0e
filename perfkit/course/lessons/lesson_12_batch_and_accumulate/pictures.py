"""The pictures of lesson 12: speed and peak by batch size, and losses of three seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from perfkit.base.words import fmt_count
from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ORANGE, _BLUE, _GREEN = "#E69F00", "#0072B2", "#009E73"
_COLOURS = (_BLUE, _ORANGE, _GREEN)
_STYLES = ("-", "--", "-.")


def draw_batches(
    rates: Mapping[int, float], peaks: Mapping[int, int], *, source: str
) -> tuple[Figure, str]:
    """Samples a second and the peak of a step by batch size, with a description.

    Args:
        rates: batch size → samples a second.
        peaks: batch size → bytes at the peak of a step.
        source: where the rates were measured; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.2), facecolor=GROUND)
    left, right = figure.subplots(1, 2)
    left.plot(list(rates), list(rates.values()), "o-", color=_BLUE, linewidth=1.5)
    left.set_ylim(bottom=0, top=1.2 * max(rates.values()))
    _label(left, {n: (rate, fmt_count(round(rate))) for n, rate in rates.items()})
    right.plot(list(peaks), [x / 1e6 for x in peaks.values()], "s-", color=_ORANGE, linewidth=1.5)
    _label(right, {n: (size / 1e6, f"{size / 1e6:.3g}") for n, size in peaks.items()})
    right.set_yscale("log")
    right.margins(y=0.2)
    for axes, points, title in (
        (left, rates, "samples a second"),
        (right, peaks, "peak of a step, MB"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(points), [str(n) for n in points])
        axes.margins(x=0.3)
        axes.minorticks_off()
        axes.set_xlabel("batch size", fontsize=9, color=DIM)
        axes.set_title(title, fontsize=9.5, color=INK)
        plain_axes(axes)
    with_source(figure, f"{source}; the peak is counted")
    said = "; ".join(f"{n}: {round(rate):,}" for n, rate in rates.items())
    sizes = "; ".join(f"{n}: {size / 1e6:.3g} MB" for n, size in peaks.items())
    return figure, (
        f"Two curves by batch size. Left, samples a second ({source}): {said}. Right, the peak of "
        f"a step, counted: {sizes}."
    )


def draw_losses(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
) -> tuple[Figure, str]:
    """Losses over an epoch: the mean of some seeds, and the range from the least to the most.

    Args:
        panels: title → run → seed → losses at equally spaced points of the epoch. At most three
            runs in a panel.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), facecolor=GROUND)
    found = figure.subplots(1, len(panels), squeeze=False)[0]
    said = []
    for axes, (title, runs) in zip(found, panels.items(), strict=True):
        for (name, seeds), colour, style in zip(runs.items(), _COLOURS, _STYLES, strict=False):
            at = [(k + 1) / len(seeds[0]) for k in range(len(seeds[0]))]
            points = list(zip(*seeds, strict=True))
            mean = [fmean(values) for values in points]
            axes.plot(at, mean, color=colour, linestyle=style, linewidth=1.6, label=name)
            low, high = [min(v) for v in points], [max(v) for v in points]
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            ends = [seed[-1] for seed in seeds]
            said.append(
                f"{title}, {name}: ends at {fmean(ends):.2f} ({min(ends):.2f} to {max(ends):.2f})"
            )
        axes.set_title(title, fontsize=9.5, color=INK)
        axes.set_ylabel("loss", fontsize=9, color=DIM)  # each panel has its own scale
        axes.set_xlabel("share of the epoch", fontsize=9, color=DIM)
        axes.legend(frameon=False, fontsize=8, loc="lower left")
        plain_axes(axes)
    n_seeds = len(next(iter(next(iter(panels.values())).values())))
    seeds_said = f"computed here; line: mean of {n_seeds} seeds, band: their range"
    with_source(figure, seeds_said)
    return figure, (f"Losses over an epoch, mean and range of {n_seeds} seeds. {'; '.join(said)}.")


def _label(axes: Axes, points: Mapping[int, tuple[float, str]]) -> None:
    """Label points above the line, on the side where it is lower."""
    heights = [y for y, _ in points.values()]
    before, after = [*heights[:1], *heights], [*heights[1:], *heights[-1:]]
    for (x, (y, text)), left, right in zip(points.items(), before, after, strict=False):
        side = "right" if right >= left else "left"
        axes.annotate(
            text, (x, y), xytext=(3 if side == "left" else -3, 5), textcoords="offset points",
            fontsize=8, color=INK, ha=side,
        )  # fmt: skip
