"""The critical path of one step: the chain of work and waits that made it as long as it was.

The path is walked backwards from the step's end. On the host it follows the step's thread (and
the backward threads that it waits for) until a call in which the host waited for the device; there
it enters the device at the activity that ended last before the wait was over. On the device an
activity is preceded by

* the activity before it on its stream, or a later one of another stream, if the launch had
  returned by the time that one ended (the gap between them is a *kernel gap*);
* where syncs were recorded (category ``cuda_sync``): by what a CUDA event made its stream wait for,
  instead of that guess at other streams;
* else by its launch: the path goes back to the host, and the time from the launching call until
  the activity starts is *launch delay*. An activity that starts long after that call returned had
  been queued: the trace does not show what held it, and that time is a *kernel gap*, too. Only
  where nothing but a copy to the host was queued and the host waited for it, that is *sync*.

What one call started (a CUDA graph) was all launched when the first of it started.

The step ends when its work is done, also if that is on the device after the host has gone on to
the next step; it begins where the step before it ended in this sense. So the parts of the path add
up to the step exactly, and the steps' paths to the run. Without a device the path is the host's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from perfkit.base.arguments import check_whole
from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.ask.breakdown import HOST_CLASSES, HOST_PRIORITY, breakdown, host_layers
from perfkit.trace.ask.event_waits import EventWaits
from perfkit.trace.ask.idle import waits_alone
from perfkit.trace.ask.set_up import set_up
from perfkit.trace.read.columns import DEVICE_CATEGORIES, HOST_CATEGORIES, Category, Int64, Trace
from perfkit.trace.read.events import (
    device_rows,
    driver_calls,
    is_communication,
    launch_calls,
    launch_rows,
    runtime_calls,
    together,
)
from perfkit.trace.read.intervals import paint, span, union
from perfkit.trace.read.steps import Steps, find_steps

#: What a part of the path can be; the host's classes are those of the breakdown, but launch calls
#: outside of operators are *forward*.
PATH_CLASSES = (
    *(f"host: {c}" for c in HOST_CLASSES),
    "host: set-up",
    "host: driver",
    "launch delay",
    "device: compute",
    "device: communication",
    "device: copy",
    "kernel gap",
    "sync return",
)

# What the host does at one time is the first of these.
_ON_THE_HOST = ("set-up", *HOST_PRIORITY[:3], "driver", *HOST_PRIORITY[3:])
# The answer to "what bounds it", in the words that the whole of perfkit uses.
_BOUND_BY = {
    "host: data wait": "data",
    "host: forward": "launch",
    "host: backward": "launch",
    "host: optimizer": "launch",
    "host: sync": "sync",
    "host: copy": "copy",
    "host: communication": "communication",
    "host: other": "host",
    "host: set-up": "setup",
    "host: driver": "driver",
    "launch delay": "launch",
    "device: compute": "compute",
    "device: communication": "communication",
    "device: copy": "copy",
    "kernel gap": "gaps",
    "sync return": "sync",
}

# A device takes some µs to start what it was given; what takes longer was held by something.
_LONGEST_START_NS = 50_000
# Another stream's activity counts as what a kernel waited for if the kernel's own stream had been
# empty for longer than this; back to back, kernels start within some µs of each other.
_OWN_STREAM_GAP_NS = 10_000


@dataclass(frozen=True)
class PathPart:
    """One stretch of the path.

    Attributes:
        kind: one of ``PATH_CLASSES``; ``host`` for a stretch on the host that holds several.
        name: kernel or copy; empty on the host.
        start_us: begin in µs after the trace's origin.
        dur_us: length in µs.
    """

    kind: str
    name: str
    start_us: float
    dur_us: float


@dataclass(frozen=True)
class CriticalPath(Shown):
    """The critical path of one step.

    Attributes:
        step: what the trace calls the step.
        wall_us: its length in µs, from the end of the step before it to its own, on the device
            if that is later.
        by_class_us: class → µs, adding up to ``wall_us``.
        bound_by: setup, data, host, launch, sync, copy, gaps, driver, compute or communication:
            what most of the path is.
        bounds_us: the same for all of them: what bounds → µs of the path, the most first.
        parts: the path in order of time.
        top: activities of the device on the path: name → µs, the longest first.
        event_waits: CUDA event waits on the path, where syncs were recorded: ``stream 20 for stream
            7`` → µs for which the waiting stream stood still, the longest first.
    """

    step: str
    wall_us: float
    by_class_us: Mapping[str, float]
    bound_by: str
    bounds_us: Mapping[str, float]
    parts: tuple[PathPart, ...]
    top: Mapping[str, float]
    event_waits: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@question("critical-path", "Which chain of work and waits made a step as long as it is?")
def critical_path(
    trace: Trace, steps: Steps | None = None, *, step: int | None = None
) -> CriticalPath:
    """The critical path of a step and what bounds it.

    Args:
        step: index of the step; by default the one of median length among those with work.

    Raises:
        UsageError: there is no such step.
    """
    steps = find_steps(trace) if steps is None else steps
    index = step
    if step is not None:
        check_whole("step", step, -len(steps), len(steps) - 1)
    if index is None:
        split = breakdown(trace, steps)
        index = next(i for i, one in enumerate(split.steps) if one is split.typical)
    begin, end = _window(trace, steps, range(len(steps))[index])
    walk = _Walk(trace, steps, begin, end)
    walk.run()
    by_class = {c: walk.ns[c] / 1e3 for c in PATH_CLASSES}
    names: dict[str, float] = defaultdict(float)
    for part in walk.parts:
        if part.kind.startswith("device"):
            names[part.name] += part.dur_us
    top = dict(sorted(names.items(), key=lambda item: -item[1]))
    bounds = _bounds(by_class, on_device=trace.has_device)
    return CriticalPath(
        step=steps.names[index],
        wall_us=(end - begin) / 1e3,
        by_class_us=by_class,
        bound_by=next(iter(bounds)),
        bounds_us=bounds,
        parts=tuple(reversed(walk.parts)),
        top=top,
        event_waits={
            name: ns / 1e3 for name, ns in sorted(walk.waited_ns.items(), key=lambda x: -x[1])
        },
        warnings=together(steps.warnings, walk.doubts),
    )


def _bounds(by_class: Mapping[str, float], *, on_device: bool) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for kind, us in by_class.items():
        bound = _BOUND_BY[kind]
        if not on_device and bound == "launch":
            bound = "compute"  # on a CPU the ops compute themselves
        sums[bound] += us
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _window(trace: Trace, steps: Steps, index: int) -> tuple[int, int]:
    """When the work of the step before was done, and when that of this one is."""
    done = steps.end_ns.copy()
    rows, step = device_rows(trace, steps, *DEVICE_CATEGORIES)
    np.maximum.at(done, step, trace.end_ns[rows])
    done = np.maximum.accumulate(done)
    begin = int(steps.start_ns[index])
    if index > 0 and steps.start_ns[index] - steps.end_ns[index - 1] < 1_000:
        begin = max(begin, int(done[index - 1]))
    return begin, max(int(done[index]), begin)


class _Walk:
    """The walk from ``end`` back to ``begin``."""

    def __init__(self, trace: Trace, steps: Steps, begin: int, end: int) -> None:
        self.trace, self.steps, self.begin, self.end = trace, steps, begin, end
        self.parts: list[PathPart] = []
        self.ns: dict[str, int] = defaultdict(int)
        self.doubts: list[str] = []
        self.waited_ns: dict[str, int] = defaultdict(int)
        self._host: list[tuple[int, int]] = []
        start, stop = trace.start_ns, trace.end_ns
        near = (stop > begin) & (start < end)
        rows = np.flatnonzero(
            trace.is_a(*DEVICE_CATEGORIES) & near & (stop <= end) & (stop > start)
        )
        self._rows = rows[np.argsort(stop[rows], kind="stable")]  # by end
        self._ends = stop[self._rows]
        launch = launch_rows(trace, self._rows)
        self._launch = launch
        known = launch >= 0
        first: Int64 = np.full(len(trace), np.iinfo(np.int64).max)
        np.minimum.at(first, launch[known], start[self._rows[known]])
        #: when the launch that each comes from had started something; the first of it, itself
        self._launch_began = np.where(known, first[np.maximum(launch, 0)], 0)
        self._place = {int(r): i for i, r in enumerate(self._rows)}
        # position of the activity before each on the same stream
        lane = trace.thread[self._rows]
        order = np.argsort(lane, kind="stable")
        self._before = np.full(len(rows), -1, dtype=np.int64)
        same = lane[order][1:] == lane[order][:-1]
        self._before[order[1:][same]] = order[:-1][same]
        if len(rows) and not (launch >= 0).any():
            self.doubts.append(
                "no correlation was recorded: which call launched what is not known, so the path "
                "may stay on the host or on the device too long"
            )
        calls = runtime_calls(trace, steps)
        waiting = calls.rows[(calls.is_sync | calls.is_copy) & near[calls.rows]]
        # the whole region may end with the last kernel, before the wait for it returns
        returned = np.minimum(stop[waiting], end)
        waits = union(start[waiting], returned)
        self._wait_start, self._wait_end = waits.start, waits.end
        self._alone = waits_alone(trace, steps)
        self._events = EventWaits(trace, self._rows)
        # what the call at the end of each wait waited for
        ends = dict(zip(returned.tolist(), trace.correlation[waiting].tolist(), strict=True))
        self._wait_call = [ends.get(int(end), -1) for end in waits.end]
        talk = trace.name_table(is_communication)
        self._talks = talk[trace.name_id[self._rows]]

    def run(self) -> None:
        on_host_until = int(self.steps.end_ns[self.steps.containing(np.array([self.begin]))[0]])
        last = len(self._ends) - 1
        # where a step is the whole region, it may end long after the host has done its part
        on_host_until = min(on_host_until, self._host_ended(on_host_until))
        if last >= 0 and self._ends[last] > on_host_until and self._ends[last] == self.end:
            at, now = last, self.end
        else:
            at, now = self._host_back(self.end)
        while now > self.begin:
            if at < 0:
                at, now = self._host_back(now)
            else:
                at, now = self._device_back(at, now)
        self._paint_host()

    def _host_ended(self, until: int) -> int:
        """When the last event of the host ends that began in the step; its mark is none."""
        trace = self.trace
        rows = (
            trace.is_a(*HOST_CATEGORIES)
            & (trace.start_ns < until)
            & (trace.end_ns > self.begin)
            & ~trace.begins("ProfilerStep", "perfkit ")
        )
        return int(trace.end_ns[rows].max()) if rows.any() else until

    def _add(self, kind: str, name: str, start: int, end: int) -> int:
        start = max(start, self.begin)
        if end > start:
            self.ns[kind] += end - start
            self.parts.append(PathPart(kind, name, start / 1e3, (end - start) / 1e3))
        return start

    def _host_back(self, now: int) -> tuple[int, int]:
        """Along the host from ``now`` back to where it had waited for the device."""
        wait = int(np.searchsorted(self._wait_end, now, side="right")) - 1
        while wait >= 0:
            until = int(self._wait_end[wait])
            at = int(np.searchsorted(self._ends, until, side="right")) - 1
            known = self._events.of_host(self._wait_call[wait])
            if known is not None and known <= at:
                at = known
            if at >= 0 and self._ends[at] > self._wait_start[wait]:
                self._on_host(until, now)
                ended = int(self._ends[at])
                self._add("sync return", "", ended, until)
                return at, max(ended, self.begin)
            wait -= 1  # it waited for nothing that is on record: the time is the host's own
        self._on_host(self.begin, now)
        return -1, self.begin

    def _on_host(self, start: int, end: int) -> None:
        if end > start:
            self._host.append((start, end))
            self.parts.append(PathPart("host", "", start / 1e3, (end - start) / 1e3))

    def _device_back(self, at: int, now: int) -> tuple[int, int]:
        """Over one activity, and on to what it had waited for."""
        trace, row = self.trace, int(self._rows[at])
        began = min(int(trace.start_ns[row]), now)
        kind = "device: copy"
        if trace.category[row] == Category.KERNEL:
            kind = "device: communication" if self._talks[at] else "device: compute"
        now = self._add(kind, trace.names[trace.name_id[row]], began, now)
        if now <= self.begin:
            return -1, now
        before = int(self._before[at])
        while before >= 0 and self._ends[before] > now:
            before = int(self._before[before])
        target, stream = self._events.before(at, int(self._before[at]))
        own_ended = int(self._ends[before]) if before >= 0 else self.begin
        waited_for = ""
        if target >= 0 and self._ends[target] <= now:
            if target > before:
                before = target
                waited_for = f"stream {int(trace.stream[row])} for stream {stream}"
        elif before < 0 or now - int(self._ends[before]) > _OWN_STREAM_GAP_NS:
            other = int(np.searchsorted(self._ends, now, side="right")) - 1
            before = max(before, other)
        launch = int(self._launch[at])
        if launch < 0:
            if before < 0:
                return -1, now
            return before, self._gap(int(self._ends[before]), now)
        # A call that returned after the activity began (a blocking copy) had submitted it earlier.
        ready = int(trace.end_ns[launch])
        if self._launch_began[at] < trace.start_ns[row]:  # others of the same launch came first
            ready = min(ready, int(self._launch_began[at]))
        if ready > int(trace.start_ns[row]):
            ready = int(trace.start_ns[launch])
        if before >= 0 and int(self._ends[before]) >= ready:
            if waited_for:  # from when it could have started
                self.waited_ns[waited_for] += max(now - max(own_ended, ready, self.begin), 0)
            return before, self._gap(int(self._ends[before]), now)
        called = min(int(trace.start_ns[launch]), now)
        if now - ready > _LONGEST_START_NS:
            now = self._gap(ready, now)
        return -1, self._add("launch delay", "", called, now)

    def _gap(self, start: int, end: int) -> int:
        """The device pauses: a kernel gap, or the host's wait with nothing else queued."""
        start = max(start, self.begin)
        if end - start <= _LONGEST_START_NS:
            return self._add("kernel gap", "", start, end)
        alone = self._alone
        first = int(np.searchsorted(alone.end, start, side="right"))
        last = int(np.searchsorted(alone.start, end, side="left"))
        for i in range(last - 1, first - 1, -1):
            waited, until = max(int(alone.start[i]), start), min(int(alone.end[i]), end)
            self._add("kernel gap", "", until, end)
            self._on_host(waited, until)
            end = waited
        self._add("kernel gap", "", start, end)
        return start

    def _paint_host(self) -> None:
        """Split the stretches on the host among the breakdown's classes."""
        stretches = sorted(self._host)
        if not stretches:
            return
        start = np.array([s for s, _ in stretches], dtype=np.int64)
        end = np.array([e for _, e in stretches], dtype=np.int64)
        layers = dict(host_layers(self.trace, self.steps))
        # a launch that no operator encloses is no Python
        calls = launch_calls(self.trace, self.steps)
        layers["forward"] = union(
            np.r_[layers["forward"].start, self.trace.start_ns[calls]],
            np.r_[layers["forward"].end, self.trace.end_ns[calls]],
        )
        driver = driver_calls(self.trace, self.steps)
        layers["driver"] = span(self.trace, driver)
        layers["set-up"] = set_up(self.trace).parts
        cells = paint(start, end, [layers[c] for c in _ON_THE_HOST[:-1]]).sum(axis=(0, 2))
        for kind, ns in zip(_ON_THE_HOST, cells, strict=True):
            self.ns[f"host: {kind}"] += int(ns)
