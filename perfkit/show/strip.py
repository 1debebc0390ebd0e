"""The step strip: what host and device did during one typical step, side by side.

As an SVG that needs nothing around it (GitHub shows it as it does a picture: no script, no
foreign object, its own background, light and dark by ``prefers-color-scheme``), as words for
those who do not see it, and as a line of letters for a terminal. Inside a report it takes the
report's colours. Times that belong to one class but are shorter than a pixel are merged into
what fills most of that pixel; the legend counts every nanosecond.
"""

from __future__ import annotations

import hashlib
import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.words import fmt_ms, fmt_share
from perfkit.show.palette import look_of
from perfkit.show.plain_text import table, wrap
from perfkit.trace.ask.breakdown import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    HOST_PRIORITY,
    breakdown,
    device_layers,
    host_layers,
)
from perfkit.trace.read.columns import Int64, Trace
from perfkit.trace.read.intervals import paint
from perfkit.trace.read.steps import WHOLE_NAME, Steps, find_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 960  # px of the picture; narrower places shrink the boxes, never the letters
_BAR, _GAP = 28, 34
_PER_CHARACTER = (
    6.7  # px of a 12 px system font, on average; labels with too little room are left out
)

# Idle time is a low, patterned bar: colour alone never carries the meaning.
_LABELS = {
    "idle: setup": "idle: set-up",
    "idle: sync": "idle: a sync",
    "idle: kernels": "idle: kernel gaps",
    "idle: queued": "idle: work queued",
    "idle: capture": "idle: graph capture",
    "idle: launch": "idle: launch-bound",
    "idle: host": "idle: host busy elsewhere",
}
_IN_WORDS = {
    "idle: setup": "idle, the host sets up: it compiles, or a first call loads code",
    "idle: data": "idle, the host waits for data",
    "idle: copy": "idle, the host copies to the device",
    "idle: sync": "idle, the host waits or has just waited for the device (a sync)",
    "idle: communication": "idle around communication",
    "idle: kernels": "idle between two queued kernels",
    "idle: queued": "idle although work is queued, cause unknown",
    "idle: capture": "idle, the host captures a CUDA graph, which runs only in replays",
    "idle: driver": "idle, the host is in a long call of the driver (allocating, loading code)",
    "idle: launch": "idle, launch-bound: the host launches too slowly",
    "idle: host": "idle, the host does something else",
}


@dataclass(frozen=True)
class Part:
    """One box: a class, and where it begins and ends as shares of the step."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class StripLane:
    """Host or device.

    Attributes:
        name: "Host" or "Device".
        parts: boxes in order, without gaps.
        totals_ns: class → ns, exact; they add up to the step.
    """

    name: str
    parts: tuple[Part, ...]
    totals_ns: dict[str, int]


@dataclass(frozen=True)
class Strip:
    """A typical step.

    Attributes:
        step: what the trace calls it.
        n_steps: of how many it is the median; steps in which nothing ran do not count.
        lanes: the host's, and the device's where there is one.
        n_empty: in how many more nothing ran.
    """

    step: str
    n_steps: int
    wall_ns: int
    lanes: tuple[StripLane, ...]
    n_empty: int = 0

    @property
    def title(self) -> str:
        """Which step this is, in words."""
        if self.step == WHOLE_NAME:
            return f"All of it: {fmt_ms(self.wall_ns / 1e6)}, the code as one piece"
        of = "the only step" if self.n_steps == 1 else f"the median of {self.n_steps} steps"
        of += " in which anything ran" if self.n_empty else ""
        return f"{printable(self.step, 60)}: {fmt_ms(self.wall_ns / 1e6)}, {of}"

    @property
    def words(self) -> str:
        """The picture in words: each lane's classes, largest first."""
        said = []
        for lane in self.lanes:
            parts = sorted(lane.totals_ns.items(), key=lambda x: -x[1])
            shown = [
                f"{_IN_WORDS.get(name, name)} {fmt_ms(ns / 1e6)} ({fmt_share(ns / self.wall_ns)})"
                for name, ns in parts
                if ns
            ]
            said.append(f"{lane.name}: {', '.join(shown)}.")
        return " ".join(said)


@dataclass(frozen=True)
class StepStrip:
    """The strip as a picture of a document (:class:`perfkit.show.document.Picture`).

    Attributes:
        folds: whether it is behind the first screen.
        alone: no bars beside it say how long each class took, and the sentence names the step.
    """

    strip: Strip
    title: str = "A step over time"
    folds: bool = True
    alone: bool = False
    glyphs: ClassVar[bool] = True

    @property
    def words(self) -> str:
        """Which step, and each lane's classes, largest first."""
        return f"{self.strip.title}. {self.strip.words}"

    def as_text(self) -> str:
        """As letters; where the report's bars tell the times by class, without those."""
        drawn = text(self.strip, inline=not self.alone)
        return drawn.partition("\n")[2] if self.alone else drawn

    def as_html(self) -> str:
        """As boxes in the report's colours."""
        return figure(self.strip, alone=self.alone, caption=not self.alone)

    def draw(self, axes: Axes) -> None:
        """As boxes over the time of the step."""
        ms = self.strip.wall_ns / 1e6
        told: set[str] = set()
        for row, lane in enumerate(self.strip.lanes):
            for part in lane.parts:
                look, label = look_of(part.name), _LABELS.get(part.name, part.name)
                axes.barh(
                    row,
                    (part.end - part.start) * ms,
                    left=part.start * ms,
                    height=0.35 if part.name.startswith("idle") else 0.7,
                    facecolor=look.fill,
                    edgecolor="#00000055",
                    linewidth=0,
                    hatch=look.hatch,
                    label=label if label not in told else None,
                )
                told.add(label)
        axes.set_yticks(range(len(self.strip.lanes)), [lane.name for lane in self.strip.lanes])
        axes.set(xlim=(0, ms), xlabel="ms")
        axes.invert_yaxis()
        axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def strip_of(trace: Trace, steps: Steps | None = None, *, bins: int = WIDTH) -> Strip | None:
    """The step of median length (the shorter of the middle two) as a strip.

    A step in which nothing ran is not chosen: the profiler's last mark is often one.

    Args:
        steps: its steps; found from the trace where not given.
        bins: how finely the step is divided.

    Returns:
        None where the trace has no step of any length.

    Raises:
        UsageError: fewer than one bin.
    """
    if bins < 1:
        raise UsageError(f"a strip needs at least one bin, got {bins}")
    steps = find_steps(trace) if steps is None else steps
    wall = steps.end_ns - steps.start_ns
    if not len(steps) or not wall.any():
        return None
    split = breakdown(trace, steps)
    empty = [step.is_empty for step in split.steps]
    index = next(i for i, step in enumerate(split.steps) if step is split.typical)
    if wall[index] <= 0:
        index = int(wall.argmax())
    start, end = int(steps.start_ns[index]), int(steps.end_ns[index])
    n_empty = 0 if all(empty) else sum(empty)
    n = min(bins, end - start)
    edges = start + (np.arange(n + 1) * (end - start)) // n
    # The step cut into columns, each asked the same question as a step is: one rule, one answer.
    columns = Steps(("",) * n, edges[:-1], edges[1:], steps.thread, steps.how_found)
    host = host_layers(trace, columns)
    device, _ = device_layers(trace)
    layers = [host[c] for c in HOST_PRIORITY[:-1]]
    cells = paint(columns.start_ns, columns.end_ns, layers, device)
    lanes = [_lane("Host", list(HOST_PRIORITY), cells.sum(axis=2), HOST_CLASSES)]
    if device:
        on_device = cells.sum(axis=1)[:, :-1]
        from perfkit.trace.ask.idle import IDLE_CAUSES, idle_causes

        causes = idle_causes(trace, columns)
        idle: Int64 = np.array([[c[name] for name in IDLE_CAUSES] for c in causes], np.int64)
        idle_names = [f"idle: {name}" for name in IDLE_CAUSES]
        order = (*DEVICE_CLASSES[:-1], *idle_names)
        lanes.append(_lane("Device", list(order), np.concatenate([on_device, idle], axis=1), order))
    return Strip(steps.names[index], len(steps) - n_empty, end - start, tuple(lanes), n_empty)


def _lane(title: str, names: list[str], cells: Int64, order: tuple[str, ...]) -> StripLane:
    chosen = cells.argmax(axis=1)
    n = len(chosen)
    first = np.flatnonzero(np.r_[True, chosen[1:] != chosen[:-1]])
    last = np.r_[first[1:], n]
    parts = tuple(
        Part(names[chosen[a]], a / n, b / n)
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    )
    totals = dict(zip(names, map(int, cells.sum(axis=0)), strict=True))
    return StripLane(title, parts, {name: totals[name] for name in order})


# ---- as SVG ------------------------------------------------------------------------------

_STYLE = """
.{k}{{--fg:var(--pk-fg,#1f2328);--dim:var(--pk-dim,#57606a);--bg:var(--pk-bg,#fff);--line:var(--pk-line,#d0d7de);font:12px system-ui,-apple-system,"Segoe UI",sans-serif}}
@media (prefers-color-scheme:dark){{.{k}{{--fg:var(--pk-fg,#e6edf3);--dim:var(--pk-dim,#9aa4af);--bg:var(--pk-bg,#0d1117);--line:var(--pk-line,#3a424c)}}}}
.{k} .bg{{fill:var(--bg)}}.{k} text{{fill:var(--fg)}}.{k} .dim{{fill:var(--dim)}}.{k} .h{{font-weight:600}}
.{k} .rail{{fill:none;stroke:var(--line)}}.{k} .tick{{stroke:var(--dim)}}.{k} .sw{{stroke:var(--line)}}
@media (max-width:640px){{.{k} .in,.{k} .pc{{display:none}}.{k} .lg{{font-size:11px}}}}
"""  # noqa: E501

_PATTERNS = {
    "stripes": '<path d="M-2 8 8-2M3 13 13 3" stroke="#000" stroke-opacity=".4" stroke-width="2"/>',
    "dots": '<circle cx="2.5" cy="2.5" r="1.3" fill="#000" fill-opacity=".5"/>'
    '<circle cx="7.5" cy="7.5" r="1.3" fill="#000" fill-opacity=".5"/>',
    "cross": '<path d="M0 0 10 10M10 0 0 10" stroke="#000" stroke-opacity=".38"/>',
}


def figure(strip: Strip | None, *, alone: bool = False, caption: bool = True) -> str:
    """The strip as HTML for a report; empty without a strip.

    Where a notebook is not trusted, styles and SVG are taken out: what is left is the caption and
    the causes of idling, in words.

    Args:
        strip: the step.
        alone: also say what colours mean that a report's own bars explain.
        caption: say which step it is.
    """
    if strip is None:
        return ""
    from perfkit.show._html import render

    lanes = []
    for lane in strip.lanes:
        told = _used(lane) if alone else _new(lane)
        lanes.append(
            {
                "name": lane.name,
                "new": [_described(name, ns, strip.wall_ns) for name, ns in told],
                "parts": [
                    _described(part.name, 0, strip.wall_ns)
                    | {
                        "percent": f"{100 * (part.end - part.start):.3f}",
                        "low": part.name.startswith("idle"),
                        "fits": (part.end - part.start) * WIDTH
                        >= len(part.name) * _PER_CHARACTER + 20,
                    }
                    for part in lane.parts
                ],
            }
        )
    return render(
        "_strip.html", title=strip.title if caption else "", words=strip.words, lanes=lanes
    )


def _described(name: str, ns: int, wall_ns: int) -> dict[str, Any]:
    look = look_of(name)
    return {
        "label": _LABELS.get(name, name),
        "colour": look.fill,
        "ink": look.ink,
        "pattern": look.pattern or "solid",
        "shown": fmt_ms(ns / 1e6),
        "share": fmt_share(ns / wall_ns),
    }


def svg(strip: Strip | None) -> str:
    """The strip as an SVG document, at most a box per pixel and lane; empty without a strip."""
    if strip is None:
        return ""
    key = "pk" + hashlib.sha256(repr(strip).encode()).hexdigest()[:10]  # ids are page-wide
    legends = [(lane.name, _used(lane)) for lane in strip.lanes]
    n_rows = max(len(told) for _, told in legends)
    axis = 24 + _GAP - 14 + len(strip.lanes) * (_BAR + _GAP) - _GAP + 6
    legend = axis + 38
    height = legend + (18 * (n_rows + 1) + 2 if n_rows else -16)
    head, of_which, steps = strip.title.rpartition(", the ")  # a narrow place has the head only
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{key}" width="{WIDTH}" height="{height}" '
        # the height in the style, too: a page's "height: auto" would shrink it with the width
        f'role="img" aria-labelledby="{key}t {key}d" style="max-width:100%;height:{height}px">',
        f'<title id="{key}t">Step strip: {html.escape(strip.title)}</title>',
        f'<desc id="{key}d">{html.escape(strip.words)}</desc>',
        f"<style>{_STYLE.format(k=key)}</style>",
        "<defs>",
        *(
            f'<pattern id="{key}{name}" width="10" height="10" '
            f'patternUnits="userSpaceOnUse">{body}</pattern>'
            for name, body in _PATTERNS.items()
        ),
        "</defs>",
        '<rect class="bg" width="100%" height="100%"/>',
        f'<text x="0" y="15" class="h">{html.escape(head)}<tspan class="pc">'
        f"{html.escape(of_which + steps)}</tspan></text>",
    ]
    for i, lane in enumerate(strip.lanes):
        top = 24 + _GAP - 14 + i * (_BAR + _GAP)
        out.append(f'<text x="0" y="{top - 6}" class="dim">{lane.name}</text>')
        out += [_box(key, part, top) for part in lane.parts]
        out.append(f'<rect class="rail" x="0" y="{top}" width="100%" height="{_BAR}"/>')
    out += _axis(strip, axis)
    shown = [(name, told) for name, told in legends if told]
    for i, (name, told) in enumerate(shown):
        out += _legend(key, name, told, strip.wall_ns, 50 * i, legend)
    out.append("</svg>")
    return "".join(out)


def _used(lane: StripLane) -> list[tuple[str, int]]:
    """Class and ns of what happens in a lane."""
    return [(name, ns) for name, ns in lane.totals_ns.items() if ns]


def _new(lane: StripLane) -> list[tuple[str, int]]:
    """Of these, what a breakdown's bars do not tell: the causes of idling."""
    return [(name, ns) for name, ns in _used(lane) if name.startswith("idle: ")]


def _box(key: str, part: Part, top: int) -> str:
    (colour, ink, pattern, _), label = look_of(part.name), _LABELS.get(part.name, part.name)
    idle = part.name.startswith("idle")
    y, tall = (top + _BAR // 2, _BAR - _BAR // 2) if idle else (top, _BAR)
    x, width = f"{100 * part.start:.3f}%", f"{100 * (part.end - part.start):.3f}%"
    place = f'x="{x}" y="{y}" width="{width}" height="{tall}"'
    drawn = f'<rect {place} fill="{colour}"/>'
    pixels = (part.end - part.start) * WIDTH
    if pattern and pixels >= 2:
        drawn += f'<rect {place} fill="url(#{key}{pattern})"/>'
    room = len(label) * _PER_CHARACTER
    if not idle and pixels >= room + 10:
        # an inner svg clips: in a narrow place the label is cut, never spilt over its neighbours
        ground = (
            f'<rect x="50%" y="6" width="{room + 6:.0f}" height="16" rx="3" fill="{colour}" '
            f'transform="translate({-(room + 6) / 2:.0f} 0)"/>'
            if pattern
            else ""
        )
        drawn += (
            f'<svg class="in" {place}>{ground}<text x="50%" y="18" text-anchor="middle" '
            f'style="fill:{ink}">{html.escape(label)}</text></svg>'
        )
    return drawn


def _axis(strip: Strip, y: int) -> list[str]:
    out = []
    for quarter, anchor in ((0, "start"), (1, "middle"), (2, "middle"), (3, "middle"), (4, "end")):
        x = f"{25 * quarter}%"
        at = fmt_ms(strip.wall_ns * quarter / 4e6)
        hide = ' class="dim in"' if quarter % 2 else ' class="dim"'
        out.append(f'<line class="tick" x1="{x}" x2="{x}" y1="{y - 4}" y2="{y + 1}"/>')
        out.append(f'<text x="{x}" y="{y + 14}" text-anchor="{anchor}"{hide}>{at}</text>')
    return out


def _legend(
    key: str, title: str, told: list[tuple[str, int]], wall_ns: int, left: int, top: int
) -> list[str]:
    out = [f'<text x="{left}%" y="{top}" class="dim lg">{title}</text>']
    for row, (name, ns) in enumerate(told, 1):
        (colour, _, pattern, _), label = look_of(name), _LABELS.get(name, name)
        y = top + 18 * row
        low = 5 if name.startswith("idle") else 0
        place = f'y="{y - 10 + low}" width="12" height="{12 - low}"'
        out.append(f'<svg x="{left}%" y="0" overflow="visible">')
        out.append(f'<rect class="sw" x="0.5" {place} fill="{colour}"/>')
        if pattern:
            out.append(f'<rect x="0.5" {place} fill="url(#{key}{pattern})"/>')
        out.append(
            f'<text x="18" y="{y}" class="lg">{html.escape(label)} '
            f'<tspan class="h">{fmt_ms(ns / 1e6)}</tspan>'
            f'<tspan class="pc dim"> {html.escape(fmt_share(ns / wall_ns))}</tspan></text></svg>'
        )
    return out


# ---- as text -----------------------------------------------------------------------------


def text(strip: Strip | None, *, width: int = 80, inline: bool = False) -> str:
    """The strip as letters, one line a lane, with its legend; empty where there is no strip.

    Args:
        width: letters in a line.
        inline: for use inside a report, whose bars have told the times by class: the letters are
            named in a line, and only what the bars do not tell has its time.
    """
    if strip is None:
        return ""
    lines = [strip.title]
    for lane in strip.lanes:
        cells = []
        at = 0
        for column in range(width):
            middle = (column + 0.5) / width
            while at + 1 < len(lane.parts) and lane.parts[at].end <= middle:
                at += 1
            cells.append(look_of(lane.parts[at].name).letter)
        lines.append(f"  {lane.name:<6} |{''.join(cells)}|")
    for lane in strip.lanes:
        if inline:
            lines.append(_key(lane, strip.wall_ns))
            continue
        rows = [
            (
                look_of(name).letter,
                _IN_WORDS.get(name, name),
                fmt_ms(ns / 1e6),
                fmt_share(ns / strip.wall_ns),
            )
            for name, ns in lane.totals_ns.items()
            if ns
        ]
        lines.append(table(("", lane.name.lower(), "time", "share"), rows, align="<<>>"))
    return "\n".join(lines)


def _key(lane: StripLane, wall_ns: int) -> str:
    """What a lane's letters mean, in one line."""
    new = dict(_new(lane))
    named = []
    for name, ns in lane.totals_ns.items():
        if ns:
            time = f" {fmt_ms(ns / 1e6)}, {fmt_share(ns / wall_ns)}" if name in new else ""
            named.append(f"{look_of(name).letter} {_IN_WORDS.get(name, name)}{time}")
    return wrap(f"{lane.name}: {'; '.join(named)}", indent="  ", hang="    ")
