"""Where each step's time went: exclusive classes that add up to the step, exactly.

On the host every ns of a step belongs to the first of these classes that covers it:

1. *sync*: a runtime call that waits for the device, or a blocking device-to-host copy;
2. *copy*: a host-to-device transfer and the wait that belongs to it;
3. *data wait*: ``enumerate(DataLoader)#…__next__`` on the step's thread;
4. *optimizer*: ``Optimizer.step#`` (without the closures that it runs, and without what follows
   its last operator for long: hooks) and ``Optimizer.zero_grad#``;
5. *backward*: the autograd engine, on the step's thread (CPU) or its own (CUDA), with the
   short gaps between two of its functions;
6. *forward*: every other op on the step's thread (the loss and metrics too), and all of
   ``DataParallel.forward`` on several devices: the profiler records no ops of its threads;
7. *communication*: an exchange that the host carries out (gloo, MPI), in any thread: one that the
   step's thread began is recorded there until its end, and other ops run meanwhile;
8. *other*: what is left: Python between ops, logging, data loading without a DataLoader.

On the device: *compute* (kernels), else *communication* (NCCL, RCCL), else *copy* (copies and
memsets), else *idle*; of the busiest device where a process uses several.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Bool, Category, Int64, Trace, asked_once
from perfkit.trace.read.events import (
    FETCH,
    backward_rows,
    device_rows,
    host_collective_rows,
    host_rows,
    is_communication,
    runtime_calls,
)
from perfkit.trace.read.intervals import Intervals, overlap, paint, span, union, without
from perfkit.trace.read.steps import Steps, find_steps

HOST_CLASSES = (
    "data wait", "forward", "backward", "optimizer", "sync", "copy", "communication", "other",
)  # fmt: skip
DEVICE_CLASSES = ("compute", "communication", "copy", "idle")

#: The host's classes, the first that covers a ns first.
HOST_PRIORITY = (
    "sync", "copy", "data wait", "optimizer", "backward", "forward", "communication", "other",
)  # fmt: skip

# Between two autograd functions the engine itself works for some µs; a longer pause without
# any op is Python between two calls of backward().
_ENGINE_GAP_NS = 1_000_000
# An update ends with its last operator; what takes longer than this after it is a hook's.
_FREES_NS = 1_000_000
# A step's last kernels may always end after it; more than this, and the host did not wait.
_AHEAD = 1.05


@dataclass(frozen=True)
class StepBreakdown:
    """One step. The values of ``host_ns``, and of ``device_ns`` if there are any, add up to
    ``wall_ns``.

    Attributes:
        name: what the trace calls the step.
        start_us: its start, in µs after the trace's origin.
        wall_ns: its length in ns.
        host_ns: host class → ns.
        device_ns: device class → ns; empty without a device.
        idle_ns: the device's idle time, by what the host did meanwhile: host class → ns.
        n_fetches: how often a DataLoader was asked for a batch in it.
    """

    name: str
    start_us: float
    wall_ns: int
    host_ns: Mapping[str, int]
    device_ns: Mapping[str, int]
    idle_ns: Mapping[str, int]
    n_fetches: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing ran in it: a mark that was open when the profiler stopped, for one."""
        host = any(ns for name, ns in self.host_ns.items() if name != "other")
        return not host and not any(ns for name, ns in self.device_ns.items() if name != "idle")

    @property
    def wall_us(self) -> float:
        """Length in µs."""
        return self.wall_ns / 1e3

    @property
    def host_us(self) -> dict[str, float]:
        """Host class → µs."""
        return {k: v / 1e3 for k, v in self.host_ns.items()}

    @property
    def device_us(self) -> dict[str, float]:
        """Device class → µs; empty without a device."""
        return {k: v / 1e3 for k, v in self.device_ns.items()}


@dataclass(frozen=True)
class Breakdown(Shown):
    """Where the steps' time went.

    Attributes:
        steps: one entry per step.
        how_found: how the steps were found, in words.
    """

    steps: tuple[StepBreakdown, ...]
    how_found: str
    warnings: tuple[str, ...] = ()

    @property
    def has_device(self) -> bool:
        """Whether the trace holds device work."""
        return bool(self.steps) and bool(self.steps[0].device_ns)

    @cached_property
    def wall_ms(self) -> tuple[float, ...]:
        """Length of every step in ms."""
        return tuple(s.wall_ns / 1e6 for s in self.steps)

    @property
    def median_step_ms(self) -> float:
        """Median length of a step in ms."""
        return statistics.median(self.wall_ms) if self.steps else 0.0

    @property
    def typical(self) -> StepBreakdown:
        """The step of median length (the shorter of the middle two), of those with work in them.

        Where no step has any, all count.
        """
        steps = [s for s in self.steps if not s.is_empty] or list(self.steps)
        return sorted(steps, key=lambda s: s.wall_ns)[(len(steps) - 1) // 2]

    def shares(self) -> dict[str, float]:
        """Host class → its share of all steps' time, adding up to 1; empty without any step."""
        return self._shares([s.host_ns for s in self.steps], HOST_CLASSES)

    def device_shares(self) -> dict[str, float]:
        """Device class → its share of all steps' time, adding up to 1; empty without a device."""
        return self._shares([s.device_ns for s in self.steps], DEVICE_CLASSES)

    def _shares(self, parts: list[Mapping[str, int]], classes: tuple[str, ...]) -> dict[str, float]:
        if not parts or not parts[0]:
            return {}
        wall_ns = max(sum(s.wall_ns for s in self.steps), 1)  # steps may have no length at all
        return {c: sum(p[c] for p in parts) / wall_ns for c in classes}

    def median_ms(self) -> dict[str, float]:
        """Host class → median over the steps, in ms (medians do not add up to a step)."""
        return {c: statistics.median(s.host_ns[c] / 1e6 for s in self.steps) for c in HOST_CLASSES}


@question("breakdown", "Where did the time of each step go?")
def breakdown(trace: Trace, steps: Steps | None = None) -> Breakdown:
    """Split every step among the classes in this module's head."""
    steps = find_steps(trace) if steps is None else steps
    host = host_layers(trace, steps)
    device, device_warnings = device_layers(trace)
    cells = paint(steps.start_ns, steps.end_ns, [host[c] for c in HOST_PRIORITY[:-1]], device)
    n_fetches = _fetches(trace, steps)
    result = []
    for index, name in enumerate(steps.names):
        cell = cells[index]
        by_host = dict(zip(HOST_PRIORITY, map(int, cell.sum(axis=1)), strict=True))
        idle = dict(zip(HOST_PRIORITY, map(int, cell[:, -1]), strict=True))
        by_device = (
            dict(zip(DEVICE_CLASSES, map(int, cell.sum(axis=0)), strict=True)) if device else {}
        )
        result.append(
            StepBreakdown(
                name=name,
                start_us=float(steps.start_ns[index]) / 1e3,
                wall_ns=int(steps.end_ns[index] - steps.start_ns[index]),
                host_ns={c: by_host[c] for c in HOST_CLASSES},
                device_ns=by_device,
                idle_ns={c: idle[c] for c in HOST_CLASSES} if device else {},
                n_fetches=int(n_fetches[index]),
            )
        )
    return Breakdown(tuple(result), steps.how_found, (*steps.warnings, *device_warnings))


def _fetches(trace: Trace, steps: Steps) -> Int64:
    """How often a DataLoader was asked for a batch, in each step."""
    rows = trace.is_a(Category.OP, Category.ANNOTATION) & trace.begins(FETCH)
    inside = steps.containing(trace.start_ns[rows & (trace.thread == steps.thread)])
    return np.bincount(inside[inside >= 0], minlength=len(steps)).astype(np.int64)


@asked_once
def host_layers(trace: Trace, steps: Steps) -> dict[str, Intervals]:
    """Where each host class (all but *other*) was active; they overlap, priority decides."""
    start = trace.start_ns
    on_thread = trace.thread == steps.thread
    labels = trace.is_a(Category.OP, Category.ANNOTATION) & on_thread
    exchanges = host_collective_rows(trace, steps)
    ops = trace.is_a(Category.OP) & on_thread
    ops[exchanges] = False
    data = labels & trace.begins(FETCH)
    optimizer = labels & trace.begins("Optimizer.step#", "Optimizer.zero_grad#")
    marked = backward_rows(trace) & host_rows(trace, steps)
    # A thread of the autograd engine does nothing else: all its ops are backward.
    engine_threads = np.flatnonzero(np.bincount(trace.thread[marked & ~on_thread]))
    backward = marked | (trace.is_a(Category.OP) & np.isin(trace.thread, engine_threads))
    calls = runtime_calls(trace, steps)
    forward = ops
    if len(np.unique(trace.device[trace.is_a(*DEVICE_CATEGORIES)])) > 1:
        forward = ops | (labels & trace.named("DataParallel.forward".__eq__))
    # What the step's thread does by itself; a gap in which it starts something is no engine gap.
    busy = start[(ops | data | optimizer) & ~backward]
    backward_parts = _close_gaps(span(trace, backward), busy)
    return {
        "sync": calls.waiting(trace),
        "copy": calls.copying(trace),
        "data wait": span(trace, data),
        "optimizer": without(
            _without_closures(
                span(trace, optimizer),
                backward_parts,
                _recorded(trace, ops & ~backward_parts.covers(start), backward),
            ),
            after_updates(trace, steps),
        ),
        "backward": backward_parts,
        "forward": span(trace, forward),
        "communication": span(trace, exchanges),
    }


@asked_once
def after_updates(trace: Trace, steps: Steps) -> Intervals:
    """What follows the last operator of an ``Optimizer.step`` for long: a hook, and no update."""
    here = trace.thread == steps.thread
    labels = trace.is_a(Category.OP, Category.ANNOTATION) & trace.begins("Optimizer.step#") & here
    parts = overlap(span(trace, labels), union(steps.start_ns, steps.end_ns))
    work = np.sort(trace.end_ns[trace.is_a(Category.OP, Category.RUNTIME) & here & ~labels])
    last = np.r_[-1, work][np.searchsorted(work, parts.end, side="right")]
    long = (last > parts.start) & (parts.end - last > _FREES_NS)
    return Intervals(last[long], parts.end[long])


def _recorded(trace: Trace, forward: Bool, backward: Bool) -> Int64:
    """When the operators began that autograd recorded and went back through, by time."""
    known = np.flatnonzero(forward & (trace.sequence >= 0))
    # of ops with one sequence number the last is the node's own
    numbers, last = np.unique(trace.sequence[known][::-1], return_index=True)
    rows = known[::-1][last]
    return np.sort(trace.start_ns[rows[np.isin(numbers, trace.sequence[backward])]])


def _without_closures(optimizer: Intervals, backward: Intervals, recorded: Int64) -> Intervals:
    """``optimizer.step(closure)`` runs forward and backward inside, LBFGS again and again.

    What is neither a backward pass nor between its first recorded operator and its begin is the
    update. Where nothing says what was recorded, the update is what follows the last pass.
    """
    at = _index_in(optimizer, backward.start)
    closures = np.unique(at[at >= 0])
    if not len(closures):
        return optimizer
    following = np.searchsorted(backward.start, recorded)
    inside = _index_in(optimizer, recorded)
    ends_there = np.r_[at, -1][following]
    forward = (inside >= 0) & (inside == ends_there)
    unknown = closures[~np.isin(closures, inside[forward])]
    last_of = np.searchsorted(backward.start, optimizer.end[unknown]) - 1
    holes = union(
        np.r_[backward.start[at >= 0], recorded[forward], optimizer.start[unknown]],
        np.r_[backward.end[at >= 0], backward.start[following[forward]], backward.end[last_of]],
    )
    return without(optimizer, holes)


def _index_in(parts: Intervals, points: Int64) -> Int64:
    """Index of the interval in which each point lies, -1 where in none."""
    index = np.searchsorted(parts.start, points, side="right") - 1
    return np.where(parts.covers(points), index, -1)


def _close_gaps(parts: Intervals, busy_start: Int64) -> Intervals:
    """Join neighbours whose gap is short and in which the step's thread starts nothing."""
    if len(parts) < 2:
        return parts
    busy_start = np.sort(busy_start)
    gap_start, gap_end = parts.end[:-1], parts.start[1:]
    starts_inside = np.searchsorted(busy_start, gap_end, side="left") - np.searchsorted(
        busy_start, gap_start, side="left"
    )
    closed = (starts_inside == 0) & (gap_end - gap_start <= _ENGINE_GAP_NS)
    keep_start = np.r_[True, ~closed]
    keep_end = np.r_[~closed, True]
    return Intervals(parts.start[keep_start], parts.end[keep_end])


def busiest_device(trace: Trace) -> int:
    """Index of the device that worked the longest; -1 where none did."""
    on_device = trace.is_a(*DEVICE_CATEGORIES)
    dur = (trace.end_ns - trace.start_ns)[on_device]
    device = trace.device[on_device]
    time_of = {int(d): int(dur[device == d].sum()) for d in np.unique(device)}
    return max(time_of, key=lambda d: time_of[d], default=-1)


@asked_once
def device_layers(trace: Trace) -> tuple[list[Intervals], list[str]]:
    """Where each device class (all but *idle*) was active, and doubts; empty without a device."""
    on_device = trace.is_a(*DEVICE_CATEGORIES)
    if not on_device.any():
        return [], []
    warnings = []
    n_devices = len(np.unique(trace.device[on_device]))
    if n_devices > 1:
        busiest = busiest_device(trace)
        on_device = on_device & (trace.device == busiest)
        warnings.append(
            f"{n_devices} devices in one process: device figures are of device {busiest}, "
            "the busiest"
        )
    kernels = on_device & trace.is_a(Category.KERNEL)
    talk = kernels & trace.named(is_communication)
    compute = kernels & ~talk
    copies = on_device & ~kernels
    layers = [span(trace, rows) for rows in (compute, talk, copies)]
    return layers, warnings


def device_step_us(trace: Trace, steps: Steps) -> float | None:
    """Time that the device is busy with one step, in µs; None where the step is not shorter.

    Steps end on the host's clock: when the optimizer's ``step`` returns. A loop that never waits
    hands out step after step while the device is still at work on the first, as long as the queue
    has room, so a recording of a few steps shows steps of the host's length. The device's work on
    what they launched says how long they really take.
    """
    if not trace.has_device or not len(steps):
        return None
    rows, _ = device_rows(trace, steps, *DEVICE_CATEGORIES)
    busy = span(trace, rows)
    working_ns = busy.total_ns
    if working_ns <= _AHEAD * steps.total_ns:
        return None
    return working_ns / len(steps) / 1e3
