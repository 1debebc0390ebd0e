"""The pictures of lesson 02: steps with their launch queues, and busy time against use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base.words import fmt_ms, fmt_share
from perfkit.course.kit.use_picture import Use, draw_use, measured_on, words_of_use
from perfkit.show.palette import look_of
from perfkit.show.strip import Strip, strip_of
from perfkit.trace.ask.queue import launch_queue
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.steps import find_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Use", "draw_steps", "draw_use", "measured_on", "words_of_steps", "words_of_use"]

_GROUND, _INK, _DIM = "#ffffff", "#1f2328", "#57606a"
_IDLE = "#ffffff"
_POINTS = 400  # points of the queue's curve: about two per pixel


def draw_steps(traces: Mapping[str, Trace], *, source: str) -> Figure:
    """One row per trace: host and device in its median step, and the launch queue.

    Args:
        traces: name → trace.
        source: where they come from, e.g. ``"simulated"``; shown under the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 1.25 * len(traces) + 1.0), facecolor=_GROUND)
    grid = figure.subplots(len(traces), 2, squeeze=False, width_ratios=(2.1, 1))
    longest = 1
    for (left, right), (name, trace) in zip(grid, traces.items(), strict=True):
        strip = strip_of(trace)
        if strip is None:
            continue
        _lanes(left, strip)
        left.set_title(f"{name}: a step of {fmt_ms(strip.wall_ns / 1e6)}", **_title())
        at, length = _queue(trace)
        longest = max(longest, int(length.max(initial=0)))
        right.fill_between(at, length, step="post", color="#0072B2", alpha=0.25, linewidth=0)
        right.step(at, length, where="post", color="#0072B2", linewidth=1)
    for _, right in grid:
        right.set_yscale("symlog", linthresh=1)
        right.set_ylim(0, 2 * longest)
        right.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
        right.set_xlim(0, 1)
        right.set_xticks([])
        _plain(right)
    grid[0][1].set_title("launches in the queue", **_title())
    _legend(figure)
    figure.text(0.995, 0.012, source, ha="right", fontsize=8, color=_DIM)
    figure.tight_layout(rect=(0, 0.085, 1, 1))
    return figure


def words_of_steps(traces: Mapping[str, Trace], *, source: str) -> str:
    """The same in words."""
    said = [f"Typical steps ({source}), host above device, beside the launch queue."]
    for name, trace in traces.items():
        strip = strip_of(trace)
        if strip is None:
            continue
        queue = launch_queue(trace)
        lanes = ", ".join(f"{lane.name.lower()} {_largest(lane.totals_ns)}" for lane in strip.lanes)
        empty = f"; queue empty {fmt_share(queue.empty_share)} of the time"
        said.append(f"{name}: {lanes}{empty if queue.empty_share is not None else ''}.")
    return " ".join(said)


def _lanes(axes: Axes, strip: Strip) -> None:
    lanes = strip.lanes
    for row, lane in enumerate(reversed(lanes)):
        for part in lane.parts:
            look = look_of(part.name)
            idle = part.name.startswith("idle")
            colour, pattern = (_IDLE, "") if idle else (look.fill, look.hatch)
            box = axes.barh(
                row, part.end - part.start, 0.78, left=part.start, color=colour, linewidth=0
            )
            if pattern and part.end - part.start > 0.004:
                box[0].set(hatch=pattern, edgecolor="#00000066")
        axes.barh(row, 1, 0.78, facecolor="none", edgecolor=_DIM, linewidth=0.6)
    axes.set_yticks(range(len(lanes)), [lane.name for lane in reversed(lanes)])
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    _plain(axes)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _queue(trace: Trace) -> tuple[Any, Any]:
    """The queue over the median step: time as a share of the step, and queued launches."""
    steps, queue = find_steps(trace), launch_queue(trace)
    if not len(queue.at_ns):
        return np.zeros(0), np.zeros(0)
    wall = steps.end_ns - steps.start_ns
    index = int(np.argsort(wall, kind="stable")[(len(wall) - 1) // 2])
    begin, end = int(steps.start_ns[index]), int(steps.end_ns[index])
    edges = np.linspace(begin, end, _POINTS)
    row = np.searchsorted(queue.at_ns, edges, side="right") - 1
    length = np.where(row >= 0, queue.length[np.maximum(row, 0)], 0)
    return np.linspace(0, 1, _POINTS), length


def _largest(totals: Mapping[str, int]) -> str:
    name = max(totals, key=lambda key: totals[key])
    return f"mostly {name} ({fmt_share(totals[name] / max(sum(totals.values()), 1))})"


def _title() -> dict[str, Any]:
    return {"loc": "left", "fontsize": 9.5, "color": _INK}


def _plain(axes: Axes) -> None:
    axes.set_facecolor(_GROUND)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8, colors=_INK)


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    shown = ("data wait", "forward", "backward", "optimizer", "sync", "copy", "other")
    handles = [
        Patch(facecolor=look_of(n).fill, hatch=look_of(n).hatch, edgecolor="#00000066", label=n)
        for n in shown
    ]
    handles.append(Patch(facecolor=look_of("compute").fill, label="device: compute"))
    handles.append(Patch(facecolor=_IDLE, edgecolor=_DIM, label="device: idle"))
    figure.legend(
        handles=handles, loc="lower left", ncols=5, fontsize=8, frameon=False, labelcolor=_INK
    )
