"""The pictures of lesson 08: cells, and what both losses take by the number of instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfkit.base.words import fmt_ms
from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source
from perfkit.course.kit.origin import origin

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ORANGE, _BLUE = "#E69F00", "#0072B2"


def draw_cells(pictures: torch.Tensor, instances: torch.Tensor) -> tuple[Figure, str]:
    """The first picture and its instances side by side, with a description.

    Args:
        pictures: float ``(n, 1, side, side)``.
        instances: int64 ``(n, side, side)``; 0 is background.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    picture, instance = pictures[0, 0].numpy(), instances[0].numpy()
    many = int(instance.max())
    # neighbours in number get colours that are far apart; background stays white
    hues = np.random.default_rng(0).permutation(many) / max(many - 1, 1)
    colours = np.vstack([[1, 1, 1, 1], colormaps["viridis"](hues)])
    # dark on every page: on a dark one the lightness of a light figure would be inverted
    figure = Figure(figsize=(6.4, 3.3), facecolor=INK)
    left, right = figure.subplots(1, 2)
    left.imshow(picture, cmap="gray")
    right.imshow(colours[instance])
    for axes, title in ((left, "a picture"), (right, f"its {many} cells, numbered")):
        axes.set_title(title, fontsize=9, color=GROUND)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.tight_layout()
    side = len(picture)
    return figure, (
        f"Two squares of {side} × {side} pixels. Left, light round cells on a dark ground, in "
        f"noise. Right, the {many} cells in different colours, each a number; the ground is 0."
    )


def draw_growth(
    measured: Mapping[str, Mapping[int, float]], predicted: Mapping[int, float], *, source: str
) -> tuple[Figure, str]:
    """Milliseconds of a loss by the number of instances, log-log, with a description.

    Args:
        measured: name of the loss → instances → ms; the first is the one that is predicted.
        predicted: instances → ms of the first.
        source: where it was measured; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.6), facecolor=GROUND)
    axes = figure.subplots()
    said = []
    for (name, points), colour, marker in zip(
        measured.items(), (_ORANGE, _BLUE), ("o", "s"), strict=True
    ):
        axes.plot(list(points), list(points.values()), color=colour, marker=marker, linewidth=1.5)
        last = max(points)
        _label(axes, last, points[last], f"{name}: {fmt_ms(points[last])}", below=colour == _BLUE)
        steps = ", ".join(f"{k} instances {fmt_ms(ms)}" for k, ms in points.items())
        said.append(f"{name}, measured: {steps}")
    first, points = next(iter(measured.items()))
    joined = {max(points): points[max(points)]} | dict(predicted)
    axes.plot(list(joined), list(joined.values()), color=_ORANGE, linestyle=":", linewidth=1.5)
    axes.plot(list(predicted), list(predicted.values()), "o", color=GROUND, markeredgecolor=_ORANGE)
    for k, ms in predicted.items():
        _label(axes, k, ms, f"predicted: {fmt_ms(ms)}")
        said.append(f"{first}, predicted: {k} instances {fmt_ms(ms)}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({*joined, *(k for points in measured.values() for k in points)})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_xlim(min(ticks) / 1.3, max(ticks) * 1.3)
    axes.margins(y=0.18)
    axes.minorticks_off()
    axes.set_xlabel("instances in a picture", fontsize=9, color=DIM)
    axes.set_ylabel("ms, forward and backward", fontsize=9, color=DIM)
    plain_axes(axes)
    with_source(figure, origin(source), bottom=0.03)
    return figure, f"Two curves on logarithmic axes ({origin(source)}). {'; '.join(said)}."


def _label(axes: Axes, x: float, y: float, text: str, *, below: bool = False) -> None:
    style: dict[str, Any] = {"fontsize": 8.5, "color": INK, "ha": "right"}
    axes.annotate(
        text, (x, y), xytext=(-6, -14 if below else 7), textcoords="offset points", **style
    )
