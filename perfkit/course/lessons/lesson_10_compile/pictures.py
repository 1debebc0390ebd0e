"""The picture of lesson 10: when compiling has paid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfkit.course.kit.axes import DIM, GROUND, INK, plain_axes, with_source
from perfkit.course.kit.compiled import break_even_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#009E73", "#E69F00")
_STYLES = ("-", "-.", ":")
#: The picture goes on for this many times the steps until the last compiled line has paid.
_BEYOND = 1.5
_NEVER = 1000  # steps, where none pays


def draw_break_even(
    before_ms: float, after_ms: float, compile_s: Mapping[str, float], *, source: str
) -> tuple[Figure, str]:
    """Time since the start by steps, uncompiled and compiled, with a description.

    Args:
        before_ms: an uncompiled step.
        after_ms: a compiled one.
        compile_s: name → seconds until the first compiled step, at most three.
        source: where these were measured; shown under the picture.
    """
    from matplotlib.figure import Figure

    paid = {name: break_even_steps(s, before_ms, after_ms) for name, s in compile_s.items()}
    known = [steps for steps in paid.values() if steps is not None]
    last = max(_BEYOND * max(known, default=_NEVER), 1.0)
    figure = Figure(figsize=(6.8, 3.2), facecolor=GROUND)
    axes = figure.subplots()
    axes.plot(
        [0, last], [0, last * before_ms / 1e3], "--", color=INK, linewidth=1.5, label="uncompiled"
    )
    said = [f"uncompiled, {before_ms:.3g} ms a step"]
    for (name, s), colour, style in zip(compile_s.items(), _COLOURS, _STYLES, strict=False):
        ends = [s, s + last * after_ms / 1e3]
        axes.plot([0, last], ends, style, color=colour, linewidth=1.8, label=f"compiled, {name}")
        steps = paid[name]
        when = "never pays" if steps is None else f"has paid after {steps:,} steps"
        said.append(f"compiled, {name}: begins at {s:.3g} s, {after_ms:.3g} ms a step, {when}")
        if steps is not None:
            at_s = steps * before_ms / 1e3
            axes.plot([steps], [at_s], "o", color=colour)
            axes.annotate(
                f"{steps:,}", (steps, at_s), xytext=(6, -12), textcoords="offset points",
                fontsize=8.5, color=INK,
            )  # fmt: skip
    axes.set_xlabel("steps", fontsize=9, color=DIM)
    axes.set_ylabel("seconds since the start", fontsize=9, color=DIM)
    axes.set_xlim(0, last)
    # a little room below 0, so that the number of an early point is not on the axis
    axes.set_ylim(bottom=-0.07 * last * before_ms / 1e3)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    plain_axes(axes)
    with_source(figure, source)
    return figure, f"Time since the start by steps ({source}). {'; '.join(said)}."
