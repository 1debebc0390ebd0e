"""A trace at every zoom: which boxes to draw for a viewport, at most some thousands.

Every event is in a *row*: its thread or stream (a *lane*; recorded Python functions have one
of their own) and how deep it is nested there.
Boxes narrower than a pixel are merged with their neighbours in the same row; a merged box says
how many events it holds and how much of its width they fill. So that a viewport over a million
events need not look at each of them, merged versions are prepared once, each four times coarser
than the one before; a query starts from the coarsest that is still finer than a pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from perfkit.base.printable import printable
from perfkit.trace.read.columns import (
    DEVICE_CATEGORIES,
    Bool,
    Category,
    Float64,
    Int32,
    Int64,
    Thread,
    Trace,
    UInt8,
)
from perfkit.trace.read.events import FETCH, backward_rows, is_communication, runtime_calls
from perfkit.trace.read.intervals import nest, span
from perfkit.trace.read.steps import Steps, find_steps

#: What a box is, in the words of the step breakdown; ``Levels.kind`` indexes into this.
KINDS = (
    "data wait",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "copy",
    "compute",
    "communication",
    "runtime",
    "label",
    "python",
    "other",
)
MAX_BOXES = 3000

_FINEST_NS = 1000  # torch's own events are about a microsecond long: finer levels merge nothing
_COARSER = 4
_SMALL_ENOUGH = 2 * MAX_BOXES  # a level of so few boxes needs no coarser one
_MAX_FLOWS = 40
_MAX_ANCESTORS = 12


@dataclass(frozen=True, slots=True)
class Lane:
    """One thread or stream, or the Python functions of a thread.

    Its rows are ``first_row`` to ``first_row + n_rows - 1``.

    Attributes:
        label: what it is called.
        on_device: whether it is a stream of a device.
        thread: index into the trace's ``threads``.
        first_row: its outermost row.
        n_rows: how deep its events are nested.
        n_events: how many events it holds.
    """

    label: str
    on_device: bool
    thread: int
    first_row: int
    n_rows: int
    n_events: int


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """What to draw; all columns have the same length, sorted by row, then start.

    Attributes:
        row: the row of each box.
        start_ns: its start, in ns after the trace's origin.
        end_ns: its end.
        count: how many events it holds.
        event: row in the trace of its longest event.
        fill: share of its width that events take, 0 to 1.
        merged_below_ns: neighbours shorter than this were merged.
    """

    row: Int32
    start_ns: Int64
    end_ns: Int64
    count: Int64
    event: Int64
    fill: Float64
    merged_below_ns: int

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Flow:
    """One end of a line from a launch to what it launched, seen from a chosen event."""

    event: int
    role: str  # "launched by" or "launches"


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Boxes of one coarseness; ``offsets[r]`` is where row ``r`` begins."""

    below_ns: int
    row: Int32
    start: Int64
    end: Int64
    count: Int64
    busy: Int64
    event: Int64
    longest: Int64
    offsets: Int64
    reach: Int64

    def __len__(self) -> int:
        return len(self.row)


class Levels:
    """The levels of one trace. Making it costs about a second per million events.

    Attributes:
        lanes: its threads and streams: the step's thread, the device's streams, then the rest.
        row: for each event its row.
        parent: for each event the one around it on the same thread, -1 where there is none.
        kind: for each event an index into :data:`KINDS`.
    """

    def __init__(self, trace: Trace, steps: Steps | None = None) -> None:
        self.trace = trace
        self.steps = find_steps(trace) if steps is None else steps
        self.lanes, self.row, self.parent = _rows(trace, self.steps)
        self.kind = _kinds(trace, self.steps)
        self.n_rows = sum(lane.n_rows for lane in self.lanes)
        self.span_ns = int(trace.end_ns.max()) if len(trace) else 0
        self._levels = self._build()

    def boxes(
        self,
        start_ns: int,
        end_ns: int,
        *,
        pixels: int,
        rows: Sequence[int] | None = None,
        max_boxes: int = MAX_BOXES,
    ) -> Boxes:
        """What to draw of ``[start_ns, end_ns)`` on ``pixels`` pixels.

        Args:
            start_ns: begin of the viewport, in ns after the trace's origin.
            end_ns: its end.
            pixels: how wide it is drawn.
            rows: which rows are visible; all by default.
            max_boxes: at most so many boxes; merges more than a pixel where there are more.
        """
        end_ns = max(end_ns, start_ns + 1)
        pixel_ns = max((end_ns - start_ns) // max(pixels, 1), 1)
        level = self._levels[0]
        for coarser in self._levels[1:]:
            if coarser.below_ns <= pixel_ns:
                level = coarser
        chosen = range(self.n_rows) if rows is None else sorted(set(rows))
        parts = []
        for r in chosen:
            if not 0 <= r < self.n_rows:
                continue
            a, b = level.offsets[r], level.offsets[r + 1]
            low = a + np.searchsorted(level.reach[a:b], start_ns, side="right")
            high = a + np.searchsorted(level.start[a:b], end_ns, side="left")
            if high > low:
                parts.append(np.arange(low, high))
        index: Int64 = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        found = _select(level, index)
        below = pixel_ns
        if level.below_ns < below:
            found = _merge(found, below)
        while len(found) > max_boxes and below <= 2 * self.span_ns:
            below *= 2
            found = _merge(found, below)
        if len(found) > max_boxes:  # more rows than boxes: the first of them
            found = _select(found, np.arange(max_boxes))
        width = np.maximum(found.end - found.start, 1)
        return Boxes(
            row=found.row,
            start_ns=found.start,
            end_ns=found.end,
            count=found.count,
            event=found.event,
            fill=np.minimum(found.busy / width, 1.0),
            merged_below_ns=below,
        )

    def lane_of(self, event: int) -> Lane:
        """The lane of an event."""
        row = int(self.row[event])
        return next(x for x in self.lanes if x.first_row <= row < x.first_row + x.n_rows)

    def find(self, text: str) -> Int64:
        """Events whose name contains ``text`` (upper and lower case alike), by start."""
        wanted = text.casefold()
        if not wanted or not len(self.trace):
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.trace.named(lambda name: wanted in printable(name).casefold()))

    def ancestors(self, event: int) -> list[int]:
        """The events around this one on its thread, innermost first; the nearest 12."""
        return list(islice(self._around(event), _MAX_ANCESTORS))

    def _around(self, event: int) -> Iterator[int]:
        at = int(self.parent[event])
        while at >= 0:
            yield at
            at = int(self.parent[at])

    def source_line(self, event: int) -> str:
        """Where in the user's code: from the recorded call stack; empty where there is none.

        Python functions are recorded with the line of their ``def``, which is then said.
        """
        for at in (event, *self._around(event)):
            stack = int(self.trace.stack_id[at])
            if stack >= 0:
                frames = [f.strip() for f in self.trace.stacks[stack].split(";") if f.strip()]
                own = [f for f in frames if not _of_a_library(f)]
                if own or frames:
                    return printable((own or frames)[-1], 300)
        for at in (event, *self._around(event)):
            if self.trace.category[at] == Category.PYTHON:
                name = self.trace.names[self.trace.name_id[at]]
                if "(" in name and not _of_a_library(name) and not name.startswith("<"):
                    return f"{printable(name, 300)}, line of the def"
        return ""

    def flows(self, event: int) -> list[Flow]:
        """What an event launched on the device, the first 40, or what launched it."""
        trace = self.trace
        if trace.category[event] in DEVICE_CATEGORIES:
            wanted = trace.correlation[event]
            if wanted < 0:
                return []
            calls, keys = self._calls
            at = int(np.searchsorted(keys, wanted))
            found = at < len(keys) and keys[at] == wanted
            return [Flow(int(calls[at]), "launched by")] if found else []
        return [Flow(int(x), "launches") for x in self.launched(event)[:_MAX_FLOWS]]

    def launched(self, event: int) -> Int64:
        """All that an event on the host, or what is within it, launched on the device."""
        trace = self.trace
        inside = self._launches[
            np.searchsorted(trace.start_ns[self._launches], trace.start_ns[event], side="left") :
            np.searchsorted(trace.start_ns[self._launches], trace.end_ns[event], side="right")
        ]  # fmt: skip
        inside = inside[
            (trace.thread[inside] == trace.thread[event])
            & (trace.end_ns[inside] <= trace.end_ns[event])
        ]
        # one launch of a graph starts many kernels
        device = np.flatnonzero(trace.is_a(Category.KERNEL, Category.MEMCPY, Category.MEMSET))
        return device[np.isin(trace.correlation[device], trace.correlation[inside])]

    @cached_property
    def _launches(self) -> Int64:
        trace = self.trace
        return np.flatnonzero(trace.is_a(Category.RUNTIME) & (trace.correlation >= 0))

    @cached_property
    def _calls(self) -> tuple[Int64, Int64]:
        calls = self._launches
        order = np.argsort(self.trace.correlation[calls], kind="stable")
        return calls[order], self.trace.correlation[calls][order]

    def _build(self) -> list[_Level]:
        trace = self.trace
        order = np.argsort(self.row, kind="stable")  # starts are sorted already
        start, end = trace.start_ns[order], trace.end_ns[order]
        level = self._level(
            0,
            self.row[order].astype(np.int32),
            start,
            end,
            np.ones(len(order), np.int64),
            end - start,
            order,
            end - start,
        )
        levels = [level]
        below = _FINEST_NS
        while len(level) > _SMALL_ENOUGH and below < self.span_ns:
            coarser = _merge(level, below)
            if len(coarser) < 0.7 * len(levels[-1]):
                levels.append(
                    self._level(
                        below,
                        coarser.row,
                        coarser.start,
                        coarser.end,
                        coarser.count,
                        coarser.busy,
                        coarser.event,
                        coarser.longest,
                    )
                )
            level = coarser
            below *= _COARSER
        return levels

    def _level(
        self,
        below: int,
        row: Int32,
        start: Int64,
        end: Int64,
        count: Int64,
        busy: Int64,
        event: Int64,
        longest: Int64,
    ) -> _Level:
        offsets = np.searchsorted(row, np.arange(self.n_rows + 1)).astype(np.int64)
        reach = end.copy()
        for r in range(self.n_rows):  # events that overlap without nesting: ends are not sorted
            part = reach[offsets[r] : offsets[r + 1]]
            np.maximum.accumulate(part, out=part)
        return _Level(below, row, start, end, count, busy, event, longest, offsets, reach)


def _of_a_library(frame: str) -> bool:
    path = frame.split("(")[0].replace("\\", "/")
    return any(
        part in path for part in ("torch/", "site-packages/", "dist-packages/", "lib/python")
    )


def _select(level: _Level, index: Int64) -> _Level:
    return _Level(
        level.below_ns,
        level.row[index],
        level.start[index],
        level.end[index],
        level.count[index],
        level.busy[index],
        level.event[index],
        level.longest[index],
        level.offsets,
        level.reach,
    )


def _merge(level: _Level, below_ns: int) -> _Level:
    """Neighbours in a row that are shorter than ``below_ns`` and start in the same bin: one box."""
    n = len(level)
    if n < 2:
        return level
    small = level.end - level.start < below_ns
    bins = level.start // below_ns
    new = np.ones(n, np.bool_)
    new[1:] = (
        (level.row[1:] != level.row[:-1])
        | (bins[1:] != bins[:-1])
        | ~small[1:]
        | ~small[:-1]
    )  # fmt: skip
    first = np.flatnonzero(new)
    if len(first) == n:
        return level
    group = np.cumsum(new) - 1
    longest = np.maximum.reduceat(level.longest, first)
    candidates = np.flatnonzero(level.longest == longest[group])
    of = group[candidates]
    chosen = candidates[np.r_[True, of[1:] != of[:-1]]]
    return _Level(
        below_ns,
        level.row[first],
        level.start[first],
        np.maximum.reduceat(level.end, first),
        np.add.reduceat(level.count, first),
        np.add.reduceat(level.busy, first),
        level.event[chosen],
        longest,
        level.offsets,
        level.reach,
    )


def _rows(trace: Trace, steps: Steps) -> tuple[tuple[Lane, ...], Int32, Int64]:
    n = len(trace)
    row = np.zeros(n, np.int32)
    parent = np.full(n, -1, np.int64)
    if not n:
        return (), row, parent
    by_thread = np.argsort(trace.thread, kind="stable")
    bounds = np.searchsorted(trace.thread[by_thread], np.arange(len(trace.threads) + 1))
    on_device = trace.is_a(*DEVICE_CATEGORIES, Category.DEVICE_ANNOTATION)
    python = trace.category == Category.PYTHON
    groups = []
    for t in range(len(trace.threads)):
        events = by_thread[bounds[t] : bounds[t + 1]]
        if not len(events):
            continue
        depth, above = nest(trace.start_ns[events], trace.end_ns[events])
        parent[events] = np.where(above >= 0, events[np.maximum(above, 0)], -1)
        of_device = bool(on_device[events].any())
        label = _label(trace, trace.threads[t], of_device, events)
        # the step's own thread first, then the device, then by how much there is to see
        rank = 0 if t == steps.thread else 2 if of_device else 4
        if t == steps.thread:
            label = f"{label}, runs the steps"
        # Python functions are dozens deep: among them the ops could not be seen
        functions, others = events[python[events]], events[~python[events]]
        if len(functions):
            depth, _ = nest(trace.start_ns[others], trace.end_ns[others])
            inner, _ = nest(trace.start_ns[functions], trace.end_ns[functions])
            name = f"{label}: Python"
            groups.append((rank + 3, -len(functions), t, name, functions, inner, False))
        if len(others):
            groups.append((rank, -len(others), t, label, others, depth, of_device))
    lanes = []
    at = 0
    for _, _, t, label, events, depth, of_device in sorted(groups, key=lambda g: g[:3]):
        n_rows = int(depth.max()) + 1
        row[events] = at + depth
        lanes.append(Lane(label, of_device, t, at, n_rows, len(events)))
        at += n_rows
    return tuple(lanes), row, parent


def _label(trace: Trace, thread: Thread, on_device: bool, events: Int64) -> str:
    name = thread.name.strip()
    if on_device:
        tid = str(thread.tid)
        name = name or (tid if "stream" in tid else f"stream {tid}")
        device = int(trace.device[events].max())
        return printable(f"device {device}: {name}" if device >= 0 else name, 60)
    return printable(name or f"thread {thread.tid}", 60)


def _kinds(trace: Trace, steps: Steps) -> UInt8:
    """The breakdown's classes, event by event: an op within the optimizer is optimizer."""
    number = {name: np.uint8(i) for i, name in enumerate(KINDS)}
    kind = np.full(len(trace), number["other"], np.uint8)
    if not len(trace):
        return kind
    for category, name in (
        (Category.OP, "forward"),
        (Category.ANNOTATION, "label"),
        (Category.DEVICE_ANNOTATION, "label"),
        (Category.PYTHON, "python"),
        (Category.RUNTIME, "runtime"),
        (Category.KERNEL, "compute"),
        (Category.MEMCPY, "copy"),
        (Category.MEMSET, "copy"),
        (Category.DEVICE_SYNC, "sync"),
    ):
        kind[trace.category == category] = number[name]
    labels = trace.is_a(Category.OP, Category.ANNOTATION)
    optimizer = labels & trace.begins("Optimizer.")
    data = labels & trace.begins(FETCH)
    ops = trace.category == Category.OP
    for around, name in (
        (backward_rows(trace), "backward"),
        (optimizer, "optimizer"),
        (data, "data wait"),
    ):
        kind[_inside(trace, around) & ops] = number[name]
        kind[around] = number[name]
    kind[(trace.category == Category.KERNEL) & trace.named(is_communication)] = number[
        "communication"
    ]
    if len(steps):
        calls = runtime_calls(trace, steps)
        kind[calls.rows[calls.is_sync]] = number["sync"]
        kind[calls.rows[calls.is_copy]] = number["copy"]
    return kind


def _inside(trace: Trace, around: Bool) -> Bool:
    """Events that begin while one of ``around`` is open on the same thread."""
    result = np.zeros(len(trace), np.bool_)
    for t in np.flatnonzero(np.bincount(trace.thread[around], minlength=1)):
        here = trace.thread == t
        chosen = around & here
        covered = span(trace, chosen)
        rows = np.flatnonzero(here)
        result[rows] = covered.covers(trace.start_ns[rows])
    return result
