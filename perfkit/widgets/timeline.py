"""A trace to explore: lanes, zoom, search, and lines from launches to kernels."""

from __future__ import annotations

import math
import os
import threading
import traceback
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import traitlets

from perfkit.base.errors import UsageError
from perfkit.base.printable import printable
from perfkit.base.words import fmt_us, plural
from perfkit.trace.ask.levels import KINDS, Boxes, Levels
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.load import load
from perfkit.widgets._frontend import answer_on_own_shell, bundle, has_front_end, no_widgets_here
from perfkit.widgets._stays import staying

if TYPE_CHECKING:
    from perfkit.show.strip import Strip

_LONGEST_NAME = 120  # in a box; the details say all of it
_LONGEST_VALUE = 4000
_MAX_STEPS = 1000
_PIXELS = (50, 6000)
_MAX_ROWS = 400  # of a viewport; a screen shows some dozens


class Timeline(anywidget.AnyWidget):
    """A widget that shows every event of a trace: pan, zoom, search, click for details.

    The browser requests only what it shows, at most a few thousand boxes at a time, however many
    events the trace has. While the kernel is busy it draws what it already has.

    Keys, once the timeline has the focus: A and D or the arrows pan, W and S or + and - zoom,
    Home and End jump to the ends, 0 shows all, Tab goes to the next event, Enter chooses it,
    N and P go through the search results.

    Args:
        source: a trace, its path or bytes, or an object with a ``trace`` such as a profile from
            ``%torchprof -o`` or a recording.
        title: the heading; by default the trace's file name.

    Raises:
        UsageError: ``source`` is none of these.
        TraceError: the file is not a trace.

    Example, in a notebook::

        >>> perfkit.Timeline("trace.json.gz")
    """

    _esm = bundle("timeline.js")
    _css = bundle("timeline.css")

    timeline_id = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    lanes = traitlets.List().tag(sync=True)
    kinds = traitlets.List(list(KINDS)).tag(sync=True)
    steps = traitlets.List().tag(sync=True)
    span_us = traitlets.Float().tag(sync=True)
    overview = traitlets.Dict().tag(sync=True)
    #: The range that Python asks the browser to show: [start, end] in µs after the trace's start.
    shown_us = traitlets.List().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)

    def __init__(
        self, source: Trace | str | os.PathLike[str] | bytes | object, *, title: str | None = None
    ) -> None:
        trace = _trace_of(source)
        self._trace = trace
        self._n = len(trace)
        self._levels = Levels(trace)
        self._lock = threading.Lock()  # a click may arrive on a subshell's thread
        self._found: tuple[str, Any] = ("", np.zeros(0, np.int64))
        self._strip: Strip | None = None
        self._name = printable(os.path.basename(trace.source) or "trace", 80)  # noqa: PTH119
        levels = self._levels
        steps = levels.steps
        whole = levels.boxes(0, levels.span_ns, pixels=1000)
        header, data = _pack(levels, whole, 0, levels.span_ns)
        super().__init__(
            timeline_id=uuid.uuid4().hex[:12],
            title=title if title is not None else self._name,
            summary=f"{plural(self._n, 'event')} over {fmt_us(levels.span_ns / 1e3)}",
            lanes=[
                {
                    "label": lane.label,
                    "device": lane.on_device,
                    "first": lane.first_row,
                    "rows": lane.n_rows,
                    "events": lane.n_events,
                }
                for lane in levels.lanes
            ],
            steps=[
                [float(a) / 1e3, float(b) / 1e3, printable(name, 40)]
                for a, b, name in zip(steps.start_ns, steps.end_ns, steps.names, strict=True)
            ][:_MAX_STEPS],
            span_us=levels.span_ns / 1e3,
            overview={**header, "data": data},
        )
        self.on_msg(self._on_message)
        answer_on_own_shell(self.comm)

    def __repr__(self) -> str:
        return f"Timeline({self._name!r}, {plural(self._n, 'event')}, {len(self.lanes)} lanes)"

    def _ipython_display_(self) -> None:
        """Display the widget, and the static step strip, which the live widget hides."""
        from IPython.display import display

        static = self._static_bundle()
        if not has_front_end():
            display({"text/plain": static["text/plain"]}, raw=True)
            return
        if lacks := no_widgets_here():
            display({"text/plain": f"A Timeline is not shown here: {lacks}."}, raw=True)
            display(static, raw=True)
            return
        made = self._repr_mimebundle_()
        data, metadata = made if isinstance(made, tuple) else (made, {})
        display(data, metadata=metadata, raw=True)
        display(static, raw=True)

    def _static_bundle(self) -> dict[str, str]:
        from perfkit import show
        from perfkit.show import strip
        from perfkit.show.document import Document

        shown = self._static()
        whole = f"{self.title}: {self.summary}"
        said = (
            Document("timeline", f"{whole}; no step was found.")
            if shown is None
            else Document(
                "timeline",
                f"{whole}; shown is {shown.title}.",
                pictures=(strip.StepStrip(shown, folds=False, alone=True),),
            )
        )
        report = show.mime_bundle(said)["text/html"]
        bundle_ = {
            "text/plain": f"{self!r}\n{show.text(said)}",
            "text/html": staying(f"pk-static-{self.timeline_id}", report),
        }
        if shown is not None:
            bundle_["image/svg+xml"] = strip.svg(shown)
        return bundle_

    def show(self, start_ms: float, end_ms: float) -> None:
        """Zoom to a time, in ms after the start of the trace.

        Raises:
            UsageError: the end does not come after the start.
        """
        if not (math.isfinite(start_ms) and math.isfinite(end_ms) and end_ms > start_ms):
            raise UsageError(f"show needs a start before the end, got {start_ms} and {end_ms} ms")
        self.shown_us = []  # requesting the same range again is a change too
        self.shown_us = [start_ms * 1e3, end_ms * 1e3]

    def _static(self) -> Strip | None:
        if self._strip is None:
            from perfkit.show.strip import strip_of

            self._strip = strip_of(self._trace, self._levels.steps)
        return self._strip

    # ---- requests of the browser --------------------------------------------------------

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        try:
            answer = self._answer(content) if isinstance(content, Mapping) else None
        except Exception as error:  # shown under the widget, not hidden in a log
            self.problem = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            return
        if answer is not None:
            header, buffers = answer
            self.send({**header, "id": content.get("id")}, buffers=buffers)

    def _answer(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[bytes]] | None:
        kind = content.get("type")
        if kind == "query":
            start, end = (_ns(content.get(k), self._levels.span_ns) for k in ("start", "end"))
            pixels = min(max(int(content.get("pixels", 1000)), _PIXELS[0]), _PIXELS[1])
            rows = [int(r) for r in content.get("rows", [])][:_MAX_ROWS]
            boxes = self._levels.boxes(start, end, pixels=pixels, rows=rows)
            header, data = _pack(self._levels, boxes, start, end)
            return {"type": "boxes", **header}, [data]
        if kind == "details":
            event = int(content.get("event", -1))
            if 0 <= event < self._n:
                return {"type": "details", "details": self._details(event)}, []
        if kind == "search":
            return {"type": "found", **self._search(content)}, []
        return None

    def _search(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The next match after a time (before it, if asked backwards), round and round."""
        text = str(content.get("text", ""))[:500]
        with self._lock:
            if self._found[0] != text:
                self._found = (text, self._levels.find(text))
            rows = self._found[1]
        if not len(rows):
            return {"text": text, "count": 0, "index": 0, "details": None}
        index = content.get("index")
        if index is None:  # a new search: the first match at or after the current view
            at = _ns(content.get("from"), self._levels.span_ns)
            index = int(np.searchsorted(self._trace.start_ns[rows], at, side="left"))
        index = int(index) % len(rows)
        return {
            "text": text,
            "count": len(rows),
            "index": index,
            "details": self._details(int(rows[index])),
        }

    def _details(self, event: int) -> dict[str, Any]:
        trace, levels = self._trace, self._levels
        place = self._place(event)
        facts: list[tuple[str, str]] = [
            ("category", Category(int(trace.category[event])).name.lower().replace("_", " ")),
            ("part of", KINDS[levels.kind[event]]),
            ("duration", fmt_us(float(trace.dur_us[event]))),
            ("start", f"{float(trace.start_us[event]) / 1e3:,.3f} ms after the start of the trace"),
            ("lane", levels.lane_of(event).label),
        ]
        step = int(levels.steps.containing(trace.start_ns[event : event + 1])[0])
        if step >= 0:
            facts.append(("step", printable(levels.steps.names[step], 80)))
        flows = levels.flows(event)
        source = levels.source_line(event)
        if not source:
            source = next(
                (
                    s
                    for f in flows
                    if f.role == "launched by" and (s := levels.source_line(f.event))
                ),
                "",
            )
        if source:
            facts.append(("source line", source))
        facts += self._arguments(event)
        around = levels.ancestors(event)
        if around:
            facts.append(("inside", " ‹ ".join(self._event_name(x) for x in around)))
        for flow in flows:
            if flow.role == "launched by":
                callers = [flow.event, *levels.ancestors(flow.event)]
                facts.append(("launched by", " ‹ ".join(self._event_name(x) for x in callers)))
                late = float(trace.start_us[event]) - float(trace.start_us[flow.event])
                facts.append(("from launch to start", fmt_us(late)))
        launched = levels.launched(event)
        if len(launched):
            total = float(trace.dur_us[launched].sum())
            facts.append(("launches", f"{len(launched):,} on the device, {fmt_us(total)} in all"))
        return {
            **place,
            "facts": [[name, printable(value, _LONGEST_VALUE)] for name, value in facts],
            "flows": [{"role": f.role, **self._place(f.event)} for f in flows],
        }

    def _arguments(self, event: int) -> list[tuple[str, str]]:
        trace = self._trace
        result = []
        if trace.types_id[event] >= 0:
            result.append(("input types", trace.input_types[trace.types_id[event]]))
        if trace.dims_id[event] >= 0:
            result.append(("input shapes", trace.input_dims[trace.dims_id[event]]))
        if trace.collective_id[event] >= 0:
            c = trace.collectives[trace.collective_id[event]]
            of = f" of {c.n_in:,} × {c.dtype}" if c.n_in >= 0 else ""
            among = f" among {c.group_size} ranks" if c.group_size >= 0 else ""
            result.append(("collective", f"{c.name}{of}{among}"))
        if not math.isnan(trace.occupancy[event]):
            result.append(("estimated occupancy", f"{float(trace.occupancy[event]):.0f} %"))
        if trace.n_bytes[event] >= 0:
            result.append(("bytes", f"{int(trace.n_bytes[event]):,}"))
        for name in ("stream", "device", "correlation"):
            value = int(getattr(trace, name)[event])
            if value >= 0:
                result.append((name, str(value)))
        return result

    def _event_name(self, event: int) -> str:
        return printable(self._trace.names[self._trace.name_id[event]], 200)

    def _place(self, event: int) -> dict[str, Any]:
        trace = self._trace
        return {
            "event": event,
            "name": printable(trace.names[trace.name_id[event]], _LONGEST_VALUE),
            "row": int(self._levels.row[event]),
            "start": float(trace.start_us[event]),
            "dur": float(trace.dur_us[event]),
        }


def _trace_of(source: object) -> Trace:
    if isinstance(source, Trace):
        return source
    if isinstance(source, str | os.PathLike | bytes | bytearray | memoryview):
        return load(source)
    trace = getattr(source, "trace", None)
    if isinstance(trace, Trace):
        return trace
    raise UsageError(
        f"Timeline needs a trace, its path, or a profile of %torchprof, got {type(source).__name__}"
    )


def _ns(value: Any, span_ns: int) -> int:
    """µs from the browser as ns, limited to the trace and its surroundings."""
    try:
        number = float(value) * 1e3
    except (TypeError, ValueError):
        return 0
    if not math.isfinite(number):
        return 0
    return int(min(max(number, -span_ns), 2 * span_ns + 1))


def _pack(levels: Levels, boxes: Boxes, start_ns: int, end_ns: int) -> tuple[dict[str, Any], bytes]:
    """Boxes as consecutive columns; ``boxes.js`` reads them in the same order.

    Times are float32 µs after ``start``: a viewport is a few thousand pixels wide, so a float32 is
    far finer than a pixel. 22 bytes per box.
    """
    trace = levels.trace
    ids, local = np.unique(trace.name_id[boxes.event], return_inverse=True)
    data = b"".join(
        np.ascontiguousarray(column).tobytes()
        for column in (
            ((boxes.start_ns - start_ns) / 1e3).astype("<f4"),
            ((boxes.end_ns - boxes.start_ns) / 1e3).astype("<f4"),
            boxes.event.astype("<u4"),
            boxes.count.astype("<u4"),
            local.astype("<u2"),
            boxes.row.astype("<u2"),
            levels.kind[boxes.event],
            np.rint(boxes.fill * 255).astype("u1"),
        )
    )
    header = {
        "n": len(boxes),
        "start": start_ns / 1e3,
        "end": end_ns / 1e3,
        "rows": int(boxes.row.max()) if len(boxes) else 0,
        "pixel": boxes.merged_below_ns / 1e3,
        "names": [printable(trace.names[i], _LONGEST_NAME) for i in ids],
    }
    return header, data
