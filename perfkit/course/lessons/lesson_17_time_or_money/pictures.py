"""The picture of lesson 17: time and price of two trainings on some GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_gpus"]

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_COLOURS = ("#0072B2", "#E69F00")


def draw_gpus(
    least_ms: Mapping[str, Mapping[str, float]], prices: Mapping[str, float], *, source: str
) -> tuple[Figure, str]:
    """Least time and price of a million steps of each training on each GPU, as bars.

    Args:
        least_ms: training → GPU → least time of a step; two trainings, the same GPUs.
        prices: GPU → US dollars an hour.
        source: where times and prices come from; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), facecolor=_GROUND)
    left, right = figure.subplots(1, 2, sharey=True)
    gpus = list(next(iter(least_ms.values())))
    said = []
    for row, ((training, by_gpu), colour) in enumerate(
        zip(least_ms.items(), _COLOURS, strict=False)
    ):
        # a million steps of a millisecond are 1,000 s
        dollars = {gpu: ms * 1e3 / 3600 * prices[gpu] for gpu, ms in by_gpu.items()}
        places = [at + 0.36 * row for at in range(len(gpus))]
        for axes, values in ((left, by_gpu), (right, dollars)):
            axes.barh(places, [values[g] for g in gpus], height=0.34, color=colour, label=training)
        best = min(dollars, key=lambda gpu: dollars[gpu])
        axes.annotate(
            " cheapest",
            (dollars[best], places[gpus.index(best)]),
            va="center",
            fontsize=8,
            color=_INK,
        )
        said.append(
            f"{training}: "
            + ", ".join(f"{g} {by_gpu[g]:.3g} ms and ${dollars[g]:.3g}" for g in gpus)
            + f"; cheapest on {best}"
        )
    left.set_yticks([at + 0.18 for at in range(len(gpus))], gpus)
    left.invert_yaxis()
    left.set_xscale("log")
    right.margins(x=0.3)
    left.set_xlabel("least time of a step, ms", fontsize=9, color=_DIM)
    right.set_xlabel("price of a million steps, $", fontsize=9, color=_DIM)
    left.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for axes in (left, right):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(_DIM)
        axes.tick_params(colors=_INK, labelsize=9)
    figure.text(0.995, 0.012, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure, (
        f"Least time of a step and price of a million steps by GPU ({source}). {'; '.join(said)}."
    )
