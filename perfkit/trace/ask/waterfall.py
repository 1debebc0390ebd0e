"""From the length of a step down to its lower bound on the device, cause by cause.

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

A profiler slows the host, and not the device. Where steps without it were seen too, the step is one
of those: on the device its work, as recorded, and what is left is idle, in the recording's
proportions; on the host all in these. A step is never shorter than the device's work on it.

The last to go is the time of operators above their lower bound (:mod:`perfkit.trace.ask.limit`);
what remains is that lower bound, and the time of operators whose work is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.base.display import Shown
from perfkit.base.errors import UsageError
from perfkit.trace.ask import question
from perfkit.trace.ask.breakdown import device_layers, device_step_us, host_layers
from perfkit.trace.ask.set_up import set_up
from perfkit.trace.read.columns import DEVICE_CATEGORIES, RECORDED_HERE, Category, Int64, Trace
from perfkit.trace.read.events import (
    FETCH,
    device_rows,
    driver_calls,
    graph_captures,
    host_rows,
    is_communication,
    launch_calls,
    recorded_on,
    together,
)
from perfkit.trace.read.intervals import EMPTY, Intervals, paint, span, without
from perfkit.trace.read.steps import Steps, find_steps

if TYPE_CHECKING:
    from perfkit.trace.ask.limit import Limit

#: Said of a trace file without device activity.
NO_DEVICE = (
    "the trace has no device activity: if a GPU was in use, its work and the waits for it are "
    "not in this trace, so no gain is given"
)

#: What can be removed, from the outside in: ``setup`` (compiling, first calls), ``data`` (the
#: DataLoader), ``sync`` (the device idles because the host waited for it), ``copy`` (transfers that
#: nothing hides), ``communication`` (likewise), ``capture`` (of a CUDA graph), ``driver``
#: (allocating memory, loading code), ``host`` (Python and other work between operators), ``launch``
#: (the host calls operators and launches kernels), ``pauses`` (short ones of the device between
#: queued kernels), ``queued`` (longer ones, whose cause is not recorded), ``above`` (operators
#: above their lower bound).
CAUSES = (
    "setup", "data", "sync", "copy", "communication", "capture", "driver", "host",
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
# what the device does, of the causes; the others are why it idles
_WORK = frozenset(("communication", "copy", "above"))
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
        alone_ms: what removing nothing else brings; None where no gain can be told.
    """

    cause: str
    outside_in_ms: float
    inside_out_ms: float
    alone_ms: float | None


@dataclass(frozen=True)
class Waterfall(Shown):
    """A step, cause by cause, down to its lower bound; milliseconds of the mean step.

    Attributes:
        parts: what can be removed, from the outside in; only causes that the steps have.
        step_ms: length of a step: without the profiler where that is known, else as recorded.
        least_ms: lower bound of the operators whose work is known; 0 where no rates or no shapes
            are.
        uncounted_ms: recorded time of the other operators: whether they could be faster is not
            known.
        above_ms: kind of work, e.g. ``"matrix product"`` → recorded time above its lower bound, in
            order of time; adds up to ``outside_in_ms`` of ``above``.
        steps_ms: length of each recorded step.
        device: whose rates count; empty where none are known.
        kind: ``"measured here"`` or ``"predicted"`` (data sheet) rates; empty without.
        source: of the rates.
        recorded_on: the device of the trace; ``"cpu"`` without one.
        on_device: whether there is a device: else operators run on the host.
        workers_set_the_pace: whether a DataLoader's workers do: then nothing else brings anything
            before the wait for data is gone.
        host_ms: the host's own work, without its waits for the device: no step is shorter without
            a change on the host; 0 without a device.
        working_above_ms: recorded time of operators above their lower bound, also where removing it
            would bring nothing because something else takes as long.
        unprofiled_step_ms: length of a step without the profiler, where that is known.
        gives_gains: whether gains can be told. Not of a trace file without device activity: if a
            GPU was in use, its work and the waits for it are not in it, and what the parts say is
            how the host's time is divided.
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
        """What remains when every cause is gone: lower bound and what was not counted."""
        return self.least_ms + self.uncounted_ms

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
        left = self.step_ms - alone
        return self.step_ms / left if left > 0 else float("inf")

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
    """Two recordings, e.g. before and after a fix, each down to its lower bound.

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
        """How many times as fast the second is: mean step before over after.

        Of one recording each: no interval can be given.
        """
        return self.before.step_ms / self.after.step_ms if self.after.step_ms else float("inf")

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
    if (before.unprofiled_step_ms is None) != (after.unprofiled_step_ms is None):
        which = "before" if before.unprofiled_step_ms is None else "after"
        doubts.append(f"the step {which} is longer for being recorded; the other is not")
    low, high = sorted((before.least_ms, after.least_ms))
    if low and high > 1.05 * low:
        doubts.append(
            "the lower bounds differ: the two steps do not do the same work, or not in the same "
            "number format"
        )
    return WaterfallChange(before, after, tuple(doubts))


@question(
    "waterfall", "What lies between the step and its lower bound, and what would removal gain?"
)
def waterfall(
    trace: Trace,
    steps: Steps | None = None,
    *,
    device: str | None = None,
    plain_ms: float | None = None,
) -> Waterfall:
    """Split a step into what could be removed and the lower bound, in two orders.

    With recorded shapes and known rates it ends at the lower bound; without, at the operators as
    recorded.

    Args:
        device: ``"here"`` for this machine's measured peaks; by default as for the question
            ``limit``.
        plain_ms: length of a step without the profiler, where that is known.

    Raises:
        UsageError: ``device`` is another than the recorded one, or no data sheet of it is known.
    """
    steps = find_steps(trace) if steps is None else steps
    host = host_layers(trace, steps)
    far = None
    if device is not None or (trace.dims_id >= 0).any():
        from perfkit.trace.ask.limit import limit

        far = limit(
            trace,
            steps,
            device=device,
            leaving_out=EMPTY if trace.has_device else host["data wait"],
        )
        if far.is_other:
            raise UsageError(
                f"the waterfall ends at the lower bound of the device that was recorded, "
                f"{far.recorded_on}; for {far.device} ask `limit`"
            )
    recorded = _lanes(trace, steps, host, far)
    n = max(len(recorded.steps_ns), 1)
    works_us = device_step_us(trace, steps) if trace.has_device else None
    lanes = recorded.on_plain(plain_ms and plain_ms * 1e6, works_us and works_us * 1e3)
    total = lanes.whole_ns
    gives_gains = trace.has_device or trace.source == RECORDED_HERE
    outside_in, inside_out = lanes.gains(CAUSES), lanes.gains(tuple(reversed(CAUSES)))
    alone = {c: lanes.gains((c,))[c] for c in CAUSES}
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
        steps_ms=tuple(ns / 1e6 for ns in recorded.steps_ns),
        device=far.device if far else "",
        kind=far.kind if far and lanes.least_ns else "",
        source=far.source if far else "",
        recorded_on=recorded_on(trace),
        on_device=trace.has_device,
        workers_set_the_pace=lanes.is_paced,
        host_ms=sum(lanes.host.values()) / n / 1e6,
        working_above_ms=lanes.device["above"] / n / 1e6,
        unprofiled_step_ms=plain_ms,
        gives_gains=gives_gains,
        warnings=together(
            steps.warnings,
            () if gives_gains else (NO_DEVICE,),
            far.warnings if far and lanes.least_ns else (),
            lanes.doubts,
        ),  # that no lower bound is known is said by its absence
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
        above_of: kind of work → time above its lower bound, for proportions.
    """

    steps_ns: tuple[int, ...]
    device: Mapping[str, int]
    host: Mapping[str, int]
    is_paced: bool
    least_ns: int
    uncounted_ns: int
    above_of: Mapping[str, float]
    doubts: tuple[str, ...] = ()

    @property
    def whole_ns(self) -> int:
        """All steps together."""
        return sum(self.steps_ns)

    def on_plain(self, plain_ns: float | None, works_ns: float | None) -> _Lanes:
        """The same in steps without the profiler, of which the device works this long on each.

        Args:
            plain_ns: length of such a step; None where it is not known.
            works_ns: None where the recorded steps show all of it.
        """
        recorded, n = self.whole_ns, len(self.steps_ns)
        if not n or not recorded or (plain_ns is None and works_ns is None):
            return self
        if not self.host:  # no device
            scale = (plain_ns or 0.0) * n / recorded or 1.0
            return self._scaled(scale, scale, scale)
        idle = sum(ns for cause, ns in self.device.items() if cause not in _WORK)
        worked = recorded - idle
        more = works_ns * n / worked if works_ns and worked else 1.0
        whole = max((plain_ns or recorded / n) * n, more * worked)
        return self._scaled(
            more, (whole - more * worked) / idle if idle else 0.0, min(whole / recorded, 1.0)
        )

    def _scaled(self, work: float, idle: float, host: float) -> _Lanes:
        device = {
            cause: round(ns * (work if cause in _WORK or not self.host else idle))
            for cause, ns in self.device.items()
        }
        least, uncounted = round(self.least_ns * work), round(self.uncounted_ns * work)
        whole = sum(device.values()) + least + uncounted
        steps = [round(ns * whole / self.whole_ns) for ns in self.steps_ns]
        steps[-1] += whole - sum(steps)
        return replace(
            self,
            steps_ns=tuple(steps),
            device=device,
            host={cause: round(ns * host) for cause, ns in self.host.items()},
            least_ns=least,
            uncounted_ns=uncounted,
        )

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


def _lanes(trace: Trace, steps: Steps, host: Mapping[str, Intervals], far: Limit | None) -> _Lanes:
    driver = driver_calls(trace, steps)
    layers = {
        **host,
        "setup": set_up(trace).parts,
        "capture": graph_captures(trace),
        "driver": span(trace, driver),
        "full queue": _full_queue(trace, steps),
    }
    device, doubts = device_layers(trace)
    cells = paint(steps.start_ns, steps.end_ns, [layers[name] for name, _ in _HOST[:-1]], device)
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
        counted_us = _operators_us(trace, steps, host) if far is None else far.counted_us
        return _on_the_host(far, counted_us, own, lengths, paced, tuple(doubts))
    from perfkit.trace.ask.idle import idle_causes

    lane: dict[str, int] = {"communication": int(cells[:, :, 1].sum())}
    lane["copy"] = int(cells[:, :, 2].sum())
    idle = idle_causes(trace, steps)
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
    return span(trace, rows)


def _operators_us(trace: Trace, steps: Steps, host: Mapping[str, Intervals]) -> float:
    """Time in operators, and in no wait for data."""
    rows = (
        trace.is_a(Category.OP)
        & host_rows(trace, steps)
        & (steps.containing(trace.start_ns) >= 0)
        & ~trace.begins("autograd::", "torch::", FETCH)
    )
    spent = span(trace, rows)
    return without(spent, host["data wait"]).total_ns / 1e3


def _on_the_host(
    far: Limit | None,
    counted_us: float,
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
    working = min(room, round(counted_us * 1e3))
    least, above, uncounted, of = _split(far, working, counted_us)
    lane |= {"host": room - working, "above": above}
    return _Lanes(
        lengths, lane, {}, paced, least, uncounted, of, (*doubts, *_low(far, least / 1e3))
    )


def _split(
    far: Limit | None, working_ns: int, kernels_us: float
) -> tuple[int, int, int, dict[str, float]]:
    """Working time as lower bound, what is above it, and what was not counted, in ns; by family.

    An operator that took less than its lower bound counts with what it took.
    """
    if far is None or not far.is_known:
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


def _low(far: Limit | None, least_us: float) -> tuple[str, ...]:
    """A doubt where the lower bound here is not that of ``limit``."""
    if far is None or not far.is_known:
        return ()
    said = far.least_us * max(far.n_steps, 1)
    if said <= 0 or abs(said - least_us) < _WORTH_A_WORD * said:
        return ()
    return (
        "some operators took less than their lower bound (data in a cache, fewer operations than "
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
    mine = trace.is_a(Category.OP, Category.ANNOTATION) & host_rows(trace, steps)
    by_workers = trace.begins(FETCH) & trace.holds("MultiProcessing")
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
