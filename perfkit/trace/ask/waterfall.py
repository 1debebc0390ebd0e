"""From the length of a step down to the least time that the device needs for it, cause by cause.

Gains do not multiply, and seldom add up: a cause that is removed may uncover another. So a step is
seen as lanes that run beside each other, each as long as the step:

==========  ==================================================================================
the device  its work, and why it idled (:mod:`perfkit.trace.ask.idle`)
the host    its own work (data loading, operators and launches, other Python, copies that it
            carries out); where it only waits for the device, also for room in a full queue of
            launches, it is free
the workers of a DataLoader, where the host waits for them at step after step: then they set the
            pace, and whatever else becomes faster, the host only waits longer
==========  ==================================================================================

With some causes removed, the step takes as long as the longest lane then does. That is at least
what a real fix leaves (a lane cannot be faster than its own work), so the gains are bounds. The
causes are removed one after another, in two orders, from the outside in (data, waits, Python,
launches, then kernels) and from the inside out; in either order they add up to the step, exactly.

Without a device there is one lane, the host's, on which operators are the work: without a
DataLoader's workers both orders are the same.

A profiler slows the host, so that a device with little work for each operator idles while it
records, and not without it. Where steps without it were seen too, by how much they are shorter is
taken off first, as a part of its own: no fix brings it.

The last to go is the time of operators above their least time (:mod:`perfkit.trace.ask.limit`);
what remains is that least time, and the time of operators whose work is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.base.words import fmt_us
from perfkit.trace.ask.breakdown import device_layers, host_layers
from perfkit.trace.ask.idle import idle_causes
from perfkit.trace.ask.limit import Limit, limit_beside
from perfkit.trace.ask.operators import Nesting
from perfkit.trace.ask.question import question
from perfkit.trace.ask.run_ahead import device_step_us
from perfkit.trace.ask.set_up import set_up
from perfkit.trace.read.columns import (
    DEVICE_CATEGORIES,
    RECORDED_HERE,
    Category,
    Int64,
    Trace,
)
from perfkit.trace.read.events import (
    driver_calls,
    graph_captures,
    host_threads,
    is_communication,
    is_data_wait,
    launch_calls,
)
from perfkit.trace.read.intervals import EMPTY, Intervals, paint, union
from perfkit.trace.read.lookups import device_rows, together
from perfkit.trace.read.steps import Steps, find_steps

#: Said of a trace file without device activity.
NO_DEVICE = (
    "the trace has no device activity: if a GPU was in use, its work and the waits for it are "
    "not in this trace, so no gain is given"
)

#: What can be removed, from the outside in: ``profiler`` (time that only recording takes; removed
#: first in both orders), ``setup`` (compiling, first calls), ``data`` (the DataLoader), ``sync``
#: (the device idles because the host waited for it), ``copy`` (transfers that nothing hides),
#: ``communication`` (likewise), ``capture`` (of a CUDA graph), ``driver`` (allocating memory,
#: loading code), ``host`` (Python and other work between operators), ``launch`` (the host calls
#: operators and launches kernels), ``pauses`` (short ones of the device between queued kernels),
#: ``queued`` (longer ones, whose cause is not recorded), ``above`` (operators above their least
#: time).
CAUSES = (
    "profiler", "setup", "data", "sync", "copy", "communication", "capture", "driver", "host",
    "launch", "pauses", "queued", "above",
)  # fmt: skip

# The host's layers in order of priority, and the cause that each is work of; a wait is none.
_HOST = (
    ("setup", "setup"),
    ("full queue", ""),
    ("sync", ""),
    ("copy", "copy"),
    ("data wait", "data"),
    ("capture", "capture"),
    ("driver", "driver"),
    ("optimizer", "launch"),
    ("backward", "launch"),
    ("forward", "launch"),
    ("communication", "communication"),
    ("other", "host"),
)
_FULL, _COPY = 1, 3  # their places in _HOST
_COMPUTE = 0  # the device's layers: compute, communication, copy, idle
_IDLE = {"kernels": "pauses"}  # the idle causes under another name here

# A launch takes some µs. One that takes this many times the median, and this long, waits for room
# in a full queue: 1024 launches on CUDA.
_FULL_TIMES, _FULL_NS = 10, 100_000
# Batches that are ready are fetched in some 100 µs. Workers set the pace where the host waits for
# them for more than this share of the steps, the longest wait (a new epoch) left out.
_WORKERS_LATE = 0.05
# Below this share of the counted time, a difference is rounding.
_WORTH_A_WORD = 0.01


@dataclass(frozen=True)
class Part:
    """One cause; milliseconds of a step.

    Attributes:
        cause: one of :data:`CAUSES`.
        outside_in_ms: what removing it brings when the causes before it are gone already.
        inside_out_ms: what removing it brings when those after it are gone already.
        alone_ms: what removing nothing else brings (of ``profiler`` aside, which is gone then);
            None where no gain can be told.
    """

    cause: str
    outside_in_ms: float
    inside_out_ms: float
    alone_ms: float | None


@dataclass(frozen=True)
class Waterfall(Shown):
    """A step, cause by cause, down to its least time; milliseconds of the mean step.

    Attributes:
        parts: what can be removed, from the outside in; only causes that the steps have.
        step_ms: length of a step as recorded, with the profiler's own time in it.
        least_ms: least time of the operators whose work is known; 0 where no rates or no shapes
            are.
        uncounted_ms: recorded time of the other operators: whether they could be faster is not
            known.
        above_ms: kind of work, e.g. ``"matrix product"`` → recorded time above its least time, in
            order of time; adds up to ``outside_in_ms`` of ``above``.
        steps_ms: length of each step.
        device: whose rates count; empty where none are known.
        kind: ``"measured here"`` or ``"predicted"`` (data sheet) rates; empty without.
        source: of the rates.
        recorded_on: the device of the trace; ``"cpu"`` without one.
        on_device: whether there is a device: else operators run on the host.
        workers_set_the_pace: whether a DataLoader's workers do: then nothing else brings anything
            before the wait for data is gone.
        host_ms: the host's own work, without its waits for the device: no step is shorter without
            a change on the host; 0 without a device.
        working_above_ms: recorded time of operators above their least time, also where removing it
            would bring nothing because something else takes as long.
        unprofiled_step_ms: length of a step without the profiler, where that is known.
        gives_gains: whether gains can be told. Not of a trace file without device activity: if a
            GPU was in use, its work and the waits for it are not in it, and what the parts say is
            how the host's time is divided.
        warnings: what is doubtful.
    """

    parts: tuple[Part, ...]
    step_ms: float
    least_ms: float
    uncounted_ms: float
    above_ms: Mapping[str, float]
    steps_ms: tuple[float, ...]
    device: str
    kind: str
    source: str
    recorded_on: str
    on_device: bool
    workers_set_the_pace: bool
    host_ms: float = 0.0
    working_above_ms: float = 0.0
    unprofiled_step_ms: float | None = None
    gives_gains: bool = True
    warnings: tuple[str, ...] = field(default=())

    @property
    def floor_ms(self) -> float:
        """What remains when every cause is gone: least time and what was not counted."""
        return self.least_ms + self.uncounted_ms

    @property
    def plain_ms(self) -> float:
        """Length of a step without what only recording takes, as far as that is known."""
        return self.step_ms - self.ms_of("profiler")

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.steps_ms)

    @property
    def orders_differ(self) -> bool:
        """Whether it matters what is removed first."""
        return any(
            abs(p.outside_in_ms - p.inside_out_ms) > 0.005 * self.step_ms for p in self.parts
        )

    def gain_of(self, cause: str) -> float:
        """Removing this cause alone makes the step at most so many times as fast.

        Args:
            cause: one of :data:`CAUSES`; of one that the steps do not have it is 1.

        Raises:
            UsageError: no gain can be told (``gives_gains``).
        """
        if not self.gives_gains:
            raise UsageError(f"no gain can be told: {NO_DEVICE}")
        alone = next((p.alone_ms for p in self.parts if p.cause == cause), None) or 0.0
        left = self.plain_ms - alone
        return self.plain_ms / left if left > 0 else float("inf")

    def ms_of(self, cause: str) -> float:
        """``outside_in_ms`` of this cause; 0 for one that the steps do not have.

        Args:
            cause: one of :data:`CAUSES`.
        """
        return next((p.outside_in_ms for p in self.parts if p.cause == cause), 0.0)

    def summary(self) -> dict[str, Any]:
        """In plain figures, milliseconds of the mean step."""
        return {
            "step_ms": self.step_ms,
            "least_ms": self.least_ms or None,
            "uncounted_ms": self.uncounted_ms,
            "parts": [asdict(part) for part in self.parts],
        }


@dataclass(frozen=True)
class WaterfallChange(Shown):
    """Two recordings, e.g. before and after a fix, each down to its least time.

    Attributes:
        before: the first.
        after: the second.
        warnings: what is doubtful about comparing them.
    """

    before: Waterfall
    after: Waterfall
    warnings: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times as fast the second is: mean step before over after, both without the
        profiler's own time where that is known.

        Of one recording each: no interval can be given.
        """
        return self.before.plain_ms / self.after.plain_ms if self.after.plain_ms else float("inf")

    @property
    def changes_ms(self) -> dict[str, float]:
        """Cause → change in ms a step (negative: shorter), from the outside in.

        With ``"uncounted"`` and ``"least"``, what is not removed, it adds up to the change of the
        step.
        """
        found = {
            cause: self.after.ms_of(cause) - self.before.ms_of(cause)
            for cause in CAUSES
            if any(p.cause == cause for w in (self.before, self.after) for p in w.parts)
        }
        found["uncounted"] = self.after.uncounted_ms - self.before.uncounted_ms
        found["least"] = self.after.least_ms - self.before.least_ms
        return found


def change(before: Waterfall, after: Waterfall) -> WaterfallChange:
    """Two waterfalls beside each other.

    Args:
        before: the first.
        after: the second.
    """
    doubts = []
    if before.recorded_on != after.recorded_on:
        doubts.append(f"recorded on two devices: {before.recorded_on}, {after.recorded_on}")
    if bool(before.ms_of("profiler")) != bool(after.ms_of("profiler")):
        which = "before" if before.ms_of("profiler") else "after"
        doubts.append(
            f"the profiler's own time is known, and left out, {which} alone: the other step may "
            "hold some of it"
        )
    low, high = sorted((before.least_ms, after.least_ms))
    if low and high > 1.05 * low:
        doubts.append(
            "the least times differ: the two steps do not do the same work, or not in the same "
            "number format"
        )
    return WaterfallChange(before, after, tuple(doubts))


@question(
    "waterfall", "What lies between the step and its least time, and what would removal gain?"
)
def waterfall(
    trace: Trace,
    steps: Steps | None = None,
    *,
    device: str | None = None,
    within: Nesting | None = None,
) -> Waterfall:
    """Split a step into what could be removed and the least time, in two orders.

    With recorded shapes and known rates it ends at the least time; without, at the operators as
    recorded.

    Args:
        trace: the trace.
        steps: its steps; found from the trace where not given.
        device: ``"here"`` for this machine's measured peaks; by default as for the question
            ``limit``.
        within: the result of ``operators.nesting``, where it is known already.

    Raises:
        UsageError: ``device`` is another than the recorded one, or no data sheet of it is known.
    """
    return waterfall_beside(trace, steps, device=device, within=within)


def waterfall_beside(
    trace: Trace,
    steps: Steps | None = None,
    *,
    device: str | None = None,
    within: Nesting | None = None,
    plain_ms: float | None = None,
    surplus_ms: float = 0.0,
) -> Waterfall:
    """The waterfall of recorded steps beside others of the same run, without the profiler.

    Args:
        trace, steps, device, within: as for :func:`waterfall`.
        plain_ms: length of a step without the profiler, where that is known.
        surplus_ms: by how much the recorded ones are clearly longer: on a device, so much of its
            waiting for the host is the profiler's.

    Raises:
        UsageError: as for :func:`waterfall`.
    """
    steps = find_steps(trace) if steps is None else steps
    host = host_layers(trace, steps)
    far = limit_beside(
        trace,
        steps,
        device=device,
        within=within,
        leaving_out=EMPTY if trace.has_device else host["data wait"],
    )
    if far.is_other:
        raise UsageError(
            f"the waterfall ends at the least time of the device that was recorded, "
            f"{far.recorded_on}; for {far.device} ask `limit`"
        )
    lanes = _lanes(trace, steps, host, far).with_profiler(surplus_ms)
    n = max(len(lanes.steps_ns), 1)
    total = sum(lanes.steps_ns)
    gives_gains = trace.has_device or trace.source == RECORDED_HERE
    first, *others = CAUSES
    outside_in, inside_out = lanes.gains(CAUSES), lanes.gains((first, *reversed(others)))
    alone = {c: lanes.gains((first, c) if c != first else (c,))[c] for c in CAUSES}
    parts = tuple(
        Part(
            c,
            outside_in[c] / n / 1e6,
            inside_out[c] / n / 1e6,
            alone[c] / n / 1e6 if gives_gains else None,
        )
        for c in CAUSES
        if outside_in[c] or inside_out[c]
    )
    return Waterfall(
        parts=parts,
        step_ms=total / n / 1e6,
        least_ms=lanes.least_ns / n / 1e6,
        uncounted_ms=lanes.uncounted_ns / n / 1e6,
        above_ms=_shared(lanes.above_of, outside_in["above"] / n / 1e6),
        steps_ms=tuple(ns / 1e6 for ns in lanes.steps_ns),
        device=far.device,
        kind=far.kind if lanes.least_ns else "",
        source=far.source,
        recorded_on=far.recorded_on,
        on_device=trace.has_device,
        workers_set_the_pace=lanes.is_paced,
        host_ms=sum(lanes.host.values()) / n / 1e6,
        working_above_ms=lanes.device["above"] / n / 1e6,
        unprofiled_step_ms=plain_ms,
        gives_gains=gives_gains,
        warnings=together(
            steps.warnings,
            () if gives_gains else (NO_DEVICE,),
            far.warnings if lanes.least_ns else (),
            lanes.doubts,
            _ahead(trace, steps),
        ),  # that no least time is known is said by its absence
    )


@dataclass(frozen=True)
class _Lanes:
    """The lanes of all steps together, in ns.

    Attributes:
        steps_ns: length of each step.
        device: cause → what removing it takes from the device's lane.
        host: the same of the host's lane, its own work alone.
        is_paced: whether a DataLoader's workers are a lane of their own, as long as the steps.
        least_ns: what no cause can take.
        uncounted_ns: likewise.
        above_of: kind of work → time above its least time, for proportions.
    """

    steps_ns: tuple[int, ...]
    device: Mapping[str, int]
    host: Mapping[str, int]
    is_paced: bool
    least_ns: int
    uncounted_ns: int
    above_of: Mapping[str, float]
    doubts: tuple[str, ...] = ()

    def with_profiler(self, surplus_ms: float) -> _Lanes:
        """So much of each step as the profiler's: where the device waited for the host.

        Without a device its time lies within the operators, and cannot be told apart.
        """
        left = round(surplus_ms * 1e6) * len(self.steps_ns) if self.host else 0
        device, host = dict(self.device), dict(self.host)
        for cause in ("launch", "host"):
            taken = min(left, device.get(cause, 0), host.get(cause, 0))
            if taken <= 0:
                continue
            left -= taken
            for lane in (device, host):
                lane[cause] -= taken
                lane["profiler"] = lane.get("profiler", 0) + taken
        return replace(self, device=device, host=host)

    def left(self, gone: set[str]) -> int:
        """How long the steps take without these causes."""
        whole = sum(self.steps_ns)
        lanes = [whole - sum(ns for cause, ns in self.device.items() if cause in gone)]
        lanes.append(sum(ns for cause, ns in self.host.items() if cause not in gone))
        if self.is_paced and "data" not in gone:
            lanes.append(whole)
        return max(lanes)

    def gains(self, order: Iterable[str]) -> dict[str, int]:
        """What each brings, removed in this order."""
        gone: set[str] = set()
        before, found = self.left(gone), {}
        for cause in order:
            gone.add(cause)
            after = self.left(gone)
            found[cause], before = before - after, after
        return found


def _lanes(trace: Trace, steps: Steps, host: Mapping[str, Intervals], far: Limit) -> _Lanes:
    driver = driver_calls(trace, steps)
    layers = {
        **host,
        "setup": set_up(trace).parts,
        "capture": graph_captures(trace),
        "driver": union(trace.start_ns[driver], trace.end_ns[driver]),
        "full queue": _full_queue(trace, steps),
    }
    device, doubts = device_layers(trace)
    cells = paint(steps.start_ns, steps.end_ns, [layers[name] for name, _ in _HOST[:-1]], device)
    idle = idle_causes(trace, steps)
    worked = cells[:, :-1].any(axis=(1, 2)) | cells[:, :, :-1].any(axis=(1, 2))
    kept = np.flatnonzero(worked) if worked.any() else np.arange(len(steps))
    cells = cells[kept]
    lengths = tuple(int(ns) for ns in (steps.end_ns - steps.start_ns)[kept])
    paced = _is_paced(trace, steps, host["data wait"], lengths, kept)
    own = dict.fromkeys((cause for _, cause in _HOST if cause), 0)
    for i, (_, cause) in enumerate(_HOST):
        if cause:  # a copy that the host asks for behind queued kernels is a wait for these
            own[cause] += int(cells[:, i, 1 if i == _COPY and device else 0 :].sum())
    if device:  # of a launch that takes long while the device idles, the device is not the cause
        own["launch"] += int(cells[:, _FULL, -1].sum())
    if paced:
        del own["data"]  # the work is the workers'
    if not device:
        return _on_the_host(far, own, lengths, paced, tuple(doubts))
    lane: dict[str, int] = {"communication": int(cells[:, :, 1].sum())}
    lane["copy"] = int(cells[:, :, 2].sum())
    for causes in (idle[i] for i in kept.tolist()):
        for cause, ns in causes.items():
            name = _IDLE.get(cause, cause)
            lane[name] = lane.get(name, 0) + ns
    computing = int(cells[:, :, _COMPUTE].sum())
    least, above, uncounted, of = _split(far, computing, _kernels_ns(trace, steps) / 1e3)
    lane["above"] = above
    return _Lanes(
        lengths, lane, own, paced, least, uncounted, of, (*doubts, *_low(far, least / 1e3))
    )


def _full_queue(trace: Trace, steps: Steps) -> Intervals:
    """When a launch waited until the device had taken others from the queue."""
    calls = launch_calls(trace, steps)
    if not len(calls):
        return EMPTY
    dur = trace.end_ns[calls] - trace.start_ns[calls]
    rows = calls[dur > max(_FULL_TIMES * float(np.median(dur)), _FULL_NS)]
    return union(trace.start_ns[rows], trace.end_ns[rows])


def _on_the_host(
    far: Limit,
    own: Mapping[str, int],
    lengths: tuple[int, ...],
    paced: bool,
    doubts: tuple[str, ...],
) -> _Lanes:
    """Without a device: operators are the work, and what is between them is the host's."""
    waited = sum(lengths) - sum(
        own.get(c, 0) for c in ("setup", "launch", "capture", "driver", "host", "copy")
    )
    lane = {"communication": own["communication"], "data": waited - own["communication"]}
    room = sum(lengths) - waited
    counted = sum(o.measured_us for o in far.ops) + sum(u.measured_us for u in far.unknown)
    working = min(room, round(counted * 1e3))
    least, above, uncounted, of = _split(far, working, counted)
    lane |= {"host": room - working, "above": above}
    return _Lanes(
        lengths, lane, {}, paced, least, uncounted, of, (*doubts, *_low(far, least / 1e3))
    )


def _split(
    far: Limit, working_ns: int, kernels_us: float
) -> tuple[int, int, int, dict[str, float]]:
    """Working time as least time, what is above it, and what was not counted, in ns; by family.

    An operator that took less than its least time counts with what it took.
    """
    if not far.is_known:
        return 0, 0, working_ns, {}
    of: dict[str, float] = {}
    least_us = 0.0
    for o in far.ops:
        low = min(o.least_us or 0.0, o.measured_us)
        least_us += low
        of[o.family] = of.get(o.family, 0.0) + o.measured_us - low
    above_us = sum(of.values())
    unknown_us = max(kernels_us - least_us - above_us, 0.0)
    least = min(round(least_us * 1e3), working_ns)
    room = working_ns - least
    wanted = (above_us + unknown_us) * 1e3
    # kernels that run at the same time take less together than one after another
    above = round(above_us * 1e3 * min(room / wanted, 1.0)) if wanted else 0
    above = min(above, room)
    return least, above, room - above, of


def _ahead(trace: Trace, steps: Steps) -> tuple[str, ...]:
    """A doubt where the steps' marks show only what the host did."""
    device_us = device_step_us(trace, steps)
    if device_us is None:
        return ()
    return (
        f"the host ran ahead, and steps end on its clock: the device works {fmt_us(device_us)} on "
        "a step, of which this shows a part; end the step with a synchronisation, or record more",
    )


def _low(far: Limit, least_us: float) -> tuple[str, ...]:
    """A doubt where the least time here is not that of ``limit``."""
    said = far.least_us * max(far.n_steps, 1)
    if not far.is_known or said <= 0 or abs(said - least_us) < _WORTH_A_WORD * said:
        return ()
    return (
        "some operators took less than their least time (data in a cache, fewer operations than "
        "counted, or at the same time as others): they count with what they took",
    )


def _kernels_ns(trace: Trace, steps: Steps) -> int:
    """Time of all kernels that compute, in the steps, one after another."""
    rows, _ = device_rows(trace, steps, *DEVICE_CATEGORIES)
    talk = trace.name_table(is_communication)[trace.name_id[rows]]
    rows = rows[(trace.category[rows] == Category.KERNEL) & ~talk]
    return int((trace.end_ns[rows] - trace.start_ns[rows]).sum())


def _is_paced(
    trace: Trace, steps: Steps, waits: Intervals, lengths: tuple[int, ...], kept: Int64
) -> bool:
    """Whether worker processes load, and the host waits for them at step after step."""
    mine = trace.is_a(Category.OP, Category.ANNOTATION) & host_threads(trace, steps)[trace.thread]
    by_workers = trace.named(lambda n: is_data_wait(n) and "MultiProcessing" in n)
    if not (mine & by_workers).any() or len(lengths) < 2:
        return False
    waited = paint(steps.start_ns, steps.end_ns, [waits])[kept, 0].sum(axis=1)
    return int(waited.sum() - waited.max()) > _WORKERS_LATE * sum(lengths)


def _shared(of: Mapping[str, float], whole_ms: float) -> dict[str, float]:
    """``whole_ms`` in the proportions of ``of``, the largest first."""
    total = sum(of.values())
    if not total or not whole_ms:
        return {}
    largest = sorted(of.items(), key=lambda item: -item[1])
    return {name: whole_ms * us / total for name, us in largest if us}
