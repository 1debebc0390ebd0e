"""The pictures of lesson 16: samples in the weights, and predicted time on the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_STYLES = ("-", "--", "-.", ":")


def draw_counts(found: Mapping[str, Sequence[float]]) -> tuple[Figure, str]:
    """How often each sample is in the weights, in the order of the epoch; with a description.

    Args:
        found: name of the run → how often, by place in the order.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 1.0 + 0.9 * len(found)), facecolor=_GROUND)
    rows = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    said = []
    for axes, (name, times), colour in zip(rows, found.items(), _COLOURS, strict=False):
        axes.bar(range(len(times)), times, width=1.0, color=colour)
        axes.set_ylim(0, 2.4)
        axes.set_yticks([0, 1, 2])
        axes.set_title(name, fontsize=9.5, color=_INK, loc="left")
        _plain(axes)
        lost, twice = sum(n == 0 for n in times), sum(n > 1 for n in times)
        said.append(f"{name}: {lost} never, {twice} twice, {len(times) - lost - twice} once")
    rows[-1].set_xlabel("place in the epoch's order", fontsize=9, color=_DIM)
    figure.text(0.995, 0.012, "times in the weights", ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure, (
        f"Bars: how often each of {len(next(iter(found.values())))} samples is in the final "
        f"weights, in the order of the epoch. {'; '.join(said)}."
    )


def draw_shares(found: Mapping[str, Mapping[int, float]], *, source: str) -> tuple[Figure, str]:
    """The share of an update that is spent on the network, by number of ranks; a description.

    Args:
        found: name → ranks → share, 0 to 1.
        source: what is assumed; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.4), facecolor=_GROUND)
    axes = figure.subplots()
    said = []
    for (name, shares), colour, style in zip(found.items(), _COLOURS, _STYLES, strict=False):
        axes.plot(
            list(shares), [100 * x for x in shares.values()],
            marker="o", markersize=3, color=colour, linestyle=style, linewidth=1.6, label=name,
        )  # fmt: skip
        few, many = min(shares), max(shares)
        said.append(f"{name}: {shares[few]:.0%} at {few}, {shares[many]:.0%} at {many:,}")
    points = list(next(iter(found.values())))
    axes.set_xscale("log", base=2)
    axes.set_xticks(points, [f"{n:,}" for n in points])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("GPUs", fontsize=9, color=_DIM)
    axes.set_ylabel("% of an update on the network", fontsize=9, color=_DIM)
    axes.legend(frameon=False, fontsize=8, loc="center right")
    _plain(axes)
    figure.text(0.995, 0.012, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure, (
        f"Curves: share of an update on the network by number of GPUs ({source}). "
        f"{'; '.join(said)}."
    )


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_DIM)
    axes.tick_params(colors=_INK, labelsize=9)
