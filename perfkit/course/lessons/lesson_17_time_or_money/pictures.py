"""The picture of lesson 17: time and price of two trainings on some GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#E69F00")


def draw_gpus(
    least_ms: Mapping[str, Mapping[str, float]], prices: Mapping[str, float], *, source: str
) -> tuple[Figure, str]:
    """Lower bound and price of a million steps of each training on each GPU, as bars.

    Args:
        least_ms: training → GPU → lower bound of a step; two trainings, the same GPUs.
        prices: GPU → US dollars an hour.
        source: where times and prices come from; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), facecolor=GROUND)
    left, right = figure.subplots(1, 2, sharey=True)
    gpus = list(next(iter(least_ms.values())))
    said = []
    for row, ((training, by_gpu), colour) in enumerate(
        zip(least_ms.items(), _COLOURS, strict=False)
    ):
        # a million steps of a millisecond are 1,000 s
        dollars = {gpu: ms * 1e3 / 3600 * prices[gpu] for gpu, ms in by_gpu.items()}
        places = [at + 0.36 * row for at in range(len(gpus))]
        best = min(dollars, key=lambda gpu: dollars[gpu])
        for axes, values in ((left, by_gpu), (right, dollars)):
            axes.barh(places, [values[g] for g in gpus], height=0.34, color=colour, label=training)
            for gpu, at in zip(gpus, places, strict=True):
                mark = ", cheapest" if axes is right and gpu == best else ""
                axes.annotate(
                    f" {values[gpu]:.3g}{mark}",
                    (values[gpu], at),
                    va="center",
                    fontsize=8,
                    color=INK,
                )
        said.append(
            f"{training}: "
            + ", ".join(f"{g} {by_gpu[g]:.3g} ms and ${dollars[g]:.3g}" for g in gpus)
            + f"; cheapest on {best}"
        )
    left.set_yticks([at + 0.18 for at in range(len(gpus))], gpus)
    left.invert_yaxis()
    left.margins(x=0.2)
    right.margins(x=0.45)
    left.set_xlabel("lower bound of a step, ms", fontsize=9, color=DIM)
    right.set_xlabel("price of a million steps, $", fontsize=9, color=DIM)
    left.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for axes in (left, right):
        plain_axes(axes)
    with_source(figure, source)
    return figure, (
        f"Lower bound of a step and price of a million steps by GPU ({source}). {'; '.join(said)}."
    )
