"""Where the training steps of a trace begin and end, found from the trace alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfkit.base.words import fmt_share
from perfkit.trace.read.columns import (
    HOST_CATEGORIES,
    Bool,
    Category,
    Int32,
    Int64,
    Trace,
    asked_once,
)
from perfkit.trace.read.intervals import span

#: How steps were found where nothing marks them, and what such a "step" is called.
WHOLE = "no marks and no optimizer: the whole region"
WHOLE_NAME = "whole region"
#: How steps were found in a region without an optimizer that was recorded from its beginning.
BY_PASSES = "ends of backward passes"
#: Why they were.
NO_OPTIMIZER = "no optimizer was seen"
#: What perfkit's recorder puts around a region from its beginning to the end of the warm-up.
REGION_MARK = "perfkit region"

_BACKWARD = re.compile(r"autograd::engine|Backward\d*$|AccumulateGrad$")
_STARTS_PROFILER = re.compile(r"torch/profiler/profiler\.py\(\d+\): (__enter__|start)$")
_STOPS_PROFILER = re.compile(
    r"torch/profiler/profiler\.py\(\d+\): (__exit__|stop)$|^<built-in method _disable_profiler\b"
)
_FETCH = re.compile(r"^enumerate\(DataLoader\)#.*__next__")
# What a DataLoader does by itself between two fetches when it is iterated over anew: it draws a
# seed for its workers, its sampler draws the order, and the first indices are sent out.
_LOADERS_OWN = frozenset(
    {
        "aten::_local_scalar_dense", "aten::arange", "aten::empty", "aten::item",
        "aten::multinomial", "aten::randint", "aten::random_", "aten::randperm", "aten::resize_",
        "aten::resolve_conj", "aten::resolve_neg", "aten::scalar_tensor", "aten::set_",
    }
)  # fmt: skip
# Fewer of the region in steps, and the loop over the loader is not what the region is about.
_LEAST_IN_STEPS = 0.5
# … and more of it is not worth a word.
_NEARLY_ALL = 0.9
# Two ends of passes make one step, of which nothing could be said.
_FEWEST_PASSES = 3


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps that do not overlap, sorted by time.

    Attributes:
        names: what each step is called.
        start_ns: starts, in ns after the trace's origin.
        end_ns: ends, likewise.
        thread: index of the host thread that runs the steps.
        how_found: the rule by which they were found, in words.
        warnings: what is doubtful about them.
    """

    names: tuple[str, ...]
    start_ns: Int64
    end_ns: Int64
    thread: int
    how_found: str
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def total_ns(self) -> int:
        """Length of all steps together."""
        return int((self.end_ns - self.start_ns).sum())

    def containing(self, points_ns: Int64) -> Int64:
        """Index of the step in which each point lies, -1 where in none."""
        if not len(self):
            return np.full(len(points_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.start_ns, points_ns, side="right") - 1
        inside = (index >= 0) & (points_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, index, -1).astype(np.int64)


def is_backward(name: str) -> bool:
    """Whether an op of this name is part of the backward pass, in traces of any year.

    Since torch 1.10 the engine labels its work ``autograd::engine::evaluate_function: …``;
    before that only the nodes' own names (``…Backward``, ``AccumulateGrad``) tell.
    """
    return _BACKWARD.search(name) is not None


@asked_once
def find_steps(trace: Trace) -> Steps:
    """Find the steps: ``ProfilerStep#``, else ends of ``Optimizer.step``, else fetches of the
    DataLoader (evaluation, inference), else the whole region. Where perfkit recorded a region from
    its beginning, so that no optimizer can have been missed, the ends of several backward passes
    come before that: a loop that updates its parameters by hand.

    With several optimizers a step is a full cycle of the first one seen. Optimizer steps
    without a backward pass between them belong to the same step.
    """
    labels = trace.is_a(Category.ANNOTATION, Category.OP)
    marks = labels & trace.begins("ProfilerStep")
    if marks.any():
        marked = _from_marks(trace, marks)
        ops = trace.is_a(Category.OP)
        has_ops = (marked.containing(trace.start_ns[ops]) >= 0).any()
        # a mark that began as the loop ended has nothing of it
        if has_ops or span(trace, ops).total_ns <= marked.total_ns:
            return marked
    optimizer = labels & trace.begins("Optimizer.step#")
    if optimizer.any():
        found = _from_optimizer(trace, optimizer)
        if found is not None:
            return found
    else:
        fetches = labels & trace.named(_FETCH.match)
        if fetches.any():
            found = _from_fetches(trace, fetches)
            if found is not None:
                return found
        if (labels & trace.named(REGION_MARK.__eq__)).any():
            found = _from_passes(trace)
            if found is not None:
                return found
    return _whole(trace)


def _busiest(threads: Int32, where: Bool) -> int:
    return int(np.bincount(threads[where]).argmax())


def _from_marks(trace: Trace, marks: Bool) -> Steps:
    thread = _busiest(trace.thread, marks)
    rows = np.flatnonzero(marks & (trace.thread == thread))
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    # Nested marks (two profilers): the outer one counts. Overlapping ones: cut at the earlier end.
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1]]
    keep = end > np.maximum(start, reach)
    warnings = []
    if not keep.all():
        warnings.append(f"{int((~keep).sum())} nested or empty step marks were left out")
    rows, start, end = rows[keep], np.maximum(start, reach)[keep], end[keep]
    if not len(rows):
        return _whole(trace)
    names = tuple(trace.names[i] for i in trace.name_id[rows])
    return Steps(names, start, end, thread, "ProfilerStep marks", tuple(warnings))


def _from_optimizer(trace: Trace, optimizer: Bool) -> Steps | None:
    thread = _busiest(trace.thread, optimizer)
    rows = np.flatnonzero(optimizer & (trace.thread == thread))
    first = trace.name_id[rows[0]]
    n_optimizers = len(np.unique(trace.name_id[rows]))
    rows = rows[trace.name_id[rows] == first]
    backward = trace.start_ns[trace.is_a(Category.OP) & trace.named(is_backward)]
    if len(rows) > 1 and len(backward):
        # Backward work between two optimizer steps: only then has a new step begun.
        before = np.searchsorted(backward, trace.start_ns[rows])
        new = np.r_[True, np.diff(before) > 0]
        last_of_group = np.r_[np.flatnonzero(new)[1:] - 1, len(rows) - 1]
        rows = rows[last_of_group]
    ends = np.sort(trace.end_ns[rows])
    if len(ends) == 1:
        return None
    how = (
        "ends of Optimizer.step"
        if n_optimizers == 1
        else (f"ends of {trace.names[first]}, the first of {n_optimizers} optimizers")
    )
    names = tuple(f"step {i + 1}" for i in range(len(ends) - 1))
    return Steps(
        names,
        ends[:-1],
        ends[1:],
        thread,
        how,
        ("the time before the first optimizer step's end is in no step: its start is unknown",),
    )


def _from_fetches(trace: Trace, fetches: Bool) -> Steps | None:
    """A step is a batch: from the start of its fetch to the start of the next one.

    A fetch after which nothing was computed is no batch: the end of an epoch, or the first of two
    loaders that are read together, whose step then begins with it.
    """
    thread = _busiest(trace.thread, fetches)
    rows = np.flatnonzero(fetches & (trace.thread == thread))
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    # a data set that reads from a loader itself: its fetches lie inside
    outer = start >= np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1]]
    start, end = start[outer], end[outer]
    if len(start) < 2:
        return None
    ops = trace.is_a(Category.OP) & (trace.thread == thread)
    begun = np.searchsorted(start, trace.start_ns[ops], side="right") - 1
    outside = (begun >= 0) & (trace.start_ns[ops] >= end[np.maximum(begun, 0)])
    loaders_own = trace.named(_LOADERS_OWN.__contains__)[ops]
    n_ops = np.bincount(begun[outside], minlength=len(start))
    n_work = np.bincount(begun[outside & ~loaders_own], minlength=len(start))
    begins: list[int] = []
    ends: list[int] = []
    first = None  # of the fetches that belong to the next batch
    for i in range(len(start) - 1):  # when the last one's work ended is not known
        first = start[i] if first is None else first
        if n_work[i]:
            begins.append(int(first))
            ends.append(int(start[i + 1]))
        if n_ops[i]:
            first = None
    region = _whole(trace)
    in_steps = sum(ends) - sum(begins)
    if in_steps < _LEAST_IN_STEPS * int(region.end_ns[0] - region.start_ns[0]):
        return None
    return Steps(
        tuple(f"batch {i + 1}" for i in range(len(begins))),
        np.array(begins, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        thread,
        "fetches of the DataLoader",
        ("what follows the last fetch is in no step: its end is unknown",) if n_work[-1] else (),
    )


def _from_passes(trace: Trace) -> Steps | None:
    """A step is a backward pass: from the end of one to the end of the next.

    Of several passes for one update (accumulation, two networks) each is a step: nothing in a trace
    says which of them belong together.
    """
    ends = _ends_of_passes(trace)
    if len(ends) < _FEWEST_PASSES:
        return None
    region = _whole(trace)
    whole_ns = int(region.end_ns[0] - region.start_ns[0])
    share = int(ends[-1] - ends[0]) / max(whole_ns, 1)
    if share < _LEAST_IN_STEPS:
        return None
    warnings = [f"a step here is one backward pass: {NO_OPTIMIZER}"]
    if share < _NEARLY_ALL:
        warnings.append(
            f"{fmt_share(1 - share)} of the recorded time is before the first pass's end or after "
            "the last one's, and in no step"
        )
    return Steps(
        tuple(f"pass {i + 2}" for i in range(len(ends) - 1)),
        ends[:-1],
        ends[1:],
        region.thread,
        BY_PASSES,
        tuple(warnings),
    )


def _profilers_own_end(trace: Trace, work: Bool) -> Bool:
    """Runtime calls that begin after all of the code's own: stopping the profiler waits for the
    device, and makes its context where the code has used none.
    """
    if not work.any():
        return work
    last = trace.end_ns[work].max()
    waits = trace.is_a(Category.RUNTIME) & trace.holds("DeviceSynchronize")
    after: Bool = trace.start_ns >= last
    return waits & after


def _without_profiler(trace: Trace, timed: Bool) -> tuple[int, int]:
    """Begin and end of these events, without frames of Python that only start or stop the profiler,
    without those that some versions place behind the end of the recording, and without the ends of
    those that were still open then: they do not say until when the code ran.
    """
    recording, ends = trace.begins("PyTorch Profiler"), trace.end_ns
    if recording.any():  # torch ends open labels after it has gone through all events
        stopped = int(ends[recording].max())
        labels = trace.is_a(Category.OP, Category.ANNOTATION) & (trace.start_ns < stopped)
        ends = np.where(labels, np.minimum(ends, stopped), ends)
    start, end = int(trace.start_ns[timed].min()), int(ends[timed].max())
    python = trace.is_a(Category.PYTHON)
    work = timed & ~python
    if not work.any() or not python.any():
        return start, end
    first, last = int(trace.start_ns[work].min()), int(ends[work].max())
    starts = python & trace.named(_STARTS_PROFILER.search) & (trace.end_ns <= first)
    start = max(start, int(trace.end_ns[starts].max(initial=start)))
    stops = python & trace.named(_STOPS_PROFILER.search) & (trace.start_ns >= last)
    end = min(end, int(trace.start_ns[stops].min(initial=end)))
    if recording.any():
        closed = python & (trace.end_ns < stopped)
        began = python & (trace.start_ns < stopped)
        seen = max(
            last,
            int(trace.end_ns[closed].max(initial=last)),
            int(trace.start_ns[began].max(initial=last)),
        )
        end = min(end, seen)
    return start, end


def _whole(trace: Trace) -> Steps:
    work = trace.is_a(Category.OP, Category.ANNOTATION)
    if not work.any():
        work = trace.is_a(*HOST_CATEGORIES)
    if not work.any():
        work = np.ones(len(trace), dtype=np.bool_)
    thread = _busiest(trace.thread, work)
    timed = trace.category != Category.OVERHEAD
    timed &= ~trace.begins("PyTorch Profiler")
    timed &= ~_profilers_own_end(trace, work)
    if not timed.any():
        timed = work
    start, end = _without_profiler(trace, timed)
    bounds = np.array([start], np.int64), np.array([max(end, start)], np.int64)
    n_passes = n_backward_passes(trace)
    doubts = (
        (
            f"no step was recognised (no end of an optimizer's step, no DataLoader): all that was "
            f"recorded counts as one, and {n_passes} backward passes are in it",
        )
        if n_passes > 1
        else ()
    )
    return Steps((WHOLE_NAME,), *bounds, thread, WHOLE, doubts)


def n_backward_passes(trace: Trace) -> int:
    """How often a backward pass followed a forward pass; what a checkpoint computes again is
    inside its backward pass.
    """
    return len(_ends_of_passes(trace))


def _ends_of_passes(trace: Trace) -> Int64:
    """When each backward pass ended, by time."""
    ops = trace.is_a(Category.OP)
    backward = ops & trace.named(is_backward)
    if not backward.any():
        return np.zeros(0, dtype=np.int64)
    within = span(trace, backward)
    forward = ops & ~backward & (trace.sequence >= 0)
    starts = np.sort(trace.start_ns[forward])
    starts = starts[~within.covers(starts)]
    number = np.searchsorted(starts, trace.start_ns[backward])
    found, index = np.unique(number, return_inverse=True)
    ends = np.zeros(len(found), dtype=np.int64)
    np.maximum.at(ends, index, trace.end_ns[backward])
    return ends
