"""Time by operator inside the steps: self time on the host, and on the device where joined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Bool, Category, Int64, Trace, asked_once
from perfkit.trace.read.events import host_rows, launch_rows, sum_by
from perfkit.trace.read.intervals import nest
from perfkit.trace.read.steps import Steps


@dataclass(frozen=True)
class Operator:
    """All calls of one operator inside the steps, or all launches by one call outside of any.

    Attributes:
        name: e.g. ``aten::convolution_backward``; of a launch that no operator encloses (a replay
            of a CUDA graph, a kernel of Triton's) ``cudaGraphLaunch (no operator)``.
        count: calls, all steps together.
        self_us: host time without the operators it called, in µs, all steps together.
        total_us: host time with them (an operator that calls itself counts once), in µs.
        device_us: time of the kernels, copies and memsets that it launched itself, in µs; 0.0
            where none were joined. All that one launch started counts (a CUDA graph).
        n_launches: how many of these.
        share: ``self_us`` over the self time of all operators.
    """

    name: str
    count: int
    self_us: float
    total_us: float
    device_us: float
    n_launches: int
    share: float


@dataclass(frozen=True)
class Operators(Shown):
    """The operators of the steps, the costliest first.

    Attributes:
        operators: one entry per operator.
    """

    operators: tuple[Operator, ...]
    n_steps: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Nesting:
    """Events of the step's thread and its backward threads, with their enclosing operator.

    Attributes:
        rows: trace rows of ops, labels and runtime calls that begin inside a step.
        parent: position in ``rows`` of the innermost enclosing event; -1 where none.
        parent_op: position of the innermost enclosing op (not a label); -1 where none.
        step: index of the step in which each begins.
    """

    rows: Int64
    parent: Int64
    parent_op: Int64
    step: Int64


@asked_once
def nesting(trace: Trace, steps: Steps) -> Nesting:
    """Which op encloses which op and runtime call, inside the steps."""
    step_of = steps.containing(trace.start_ns)
    chosen = (
        trace.is_a(Category.OP, Category.ANNOTATION, Category.RUNTIME)
        & host_rows(trace, steps)
        & (step_of >= 0)
        # The steps' own marks enclose everything and are nobody's operator.
        & ~trace.begins("ProfilerStep", "perfkit ")
    )
    rows = np.flatnonzero(chosen)
    parent = np.full(len(rows), -1, dtype=np.int64)
    for thread in np.flatnonzero(np.bincount(trace.thread[rows])):
        here = np.flatnonzero(trace.thread[rows] == thread)
        _, above = nest(trace.start_ns[rows[here]], trace.end_ns[rows[here]])
        parent[here] = np.where(above >= 0, here[np.maximum(above, 0)], -1)
    is_op = trace.category[rows] == Category.OP
    parent_op = parent.copy()
    while True:  # climb over labels: as many rounds as labels are nested
        climb = (parent_op >= 0) & ~is_op[np.maximum(parent_op, 0)]
        if not climb.any():
            break
        parent_op[climb] = parent[parent_op[climb]]
    return Nesting(rows, parent, parent_op, step_of[rows])


@asked_once
def launched(trace: Trace, steps: Steps) -> tuple[Int64, Int64]:
    """The device's activities that were launched inside the steps, and the position of the call of
    each in ``nesting.rows``. One launch may start many.
    """
    inside = nesting(trace, steps)
    active = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[inside.rows] = np.arange(len(inside.rows))
    at = place[launch_rows(trace, active)]  # an unknown launch (-1) looks up the extra entry
    return active[at >= 0], at[at >= 0]


@asked_once
def self_ns(trace: Trace, steps: Steps) -> Int64:
    """For each event in ``nesting.rows``: its time without the operators that it called."""
    inside = nesting(trace, steps)
    dur = (trace.end_ns - trace.start_ns)[inside.rows]
    inner = (trace.category[inside.rows] == Category.OP) & (inside.parent_op >= 0)
    own: Int64 = dur - sum_by(inside.parent_op[inner], dur[inner], len(dur))
    return np.maximum(own, 0)


def owners(inside: Nesting, chosen: Bool) -> Int64:
    """For each nested event: the outermost chosen op that is it or encloses it, -1 for none."""
    n = len(inside.rows)
    owner = np.where(chosen, np.arange(n), -1).astype(np.int64)
    above = inside.parent.copy()
    while (above >= 0).any():  # as many rounds as events are nested
        there = above >= 0
        better = there & chosen[np.maximum(above, 0)]
        owner[better] = above[better]
        above[there] = inside.parent[above[there]]
    return owner


@question("operators", "Which operators take the time?")
def all_operators(trace: Trace, steps: Steps) -> Operators:
    """Operators by self time, the costliest first; see :func:`operators`."""
    return Operators(operators(trace, steps), len(steps), steps.warnings)


def operators(trace: Trace, steps: Steps) -> tuple[Operator, ...]:
    """Operators by self time, of calls that begin inside the steps, the costliest first."""
    inside = nesting(trace, steps)
    rows = inside.rows
    is_op = trace.category[rows] == Category.OP
    if not len(rows):
        return ()
    dur = trace.end_ns - trace.start_ns
    active, call = launched(trace, steps)
    # what a launch started goes to the operator that made the call; else to the call itself
    owner = np.where(inside.parent_op[call] >= 0, inside.parent_op[call], call)
    device_ns = sum_by(owner, dur[active], len(rows))
    launches = np.bincount(owner, minlength=len(rows))

    # names of calls that stand for themselves come after those of the trace
    alone = (launches > 0) & ~is_op
    name = trace.name_id[rows].astype(np.int64)
    name[alone] += len(trace.names)
    listed = is_op | alone
    outermost = is_op.copy()
    direct = (inside.parent_op >= 0) & (name == name[np.maximum(inside.parent_op, 0)])
    outermost[direct] = False
    outermost |= alone
    n_names = 2 * len(trace.names)

    count = np.bincount(name[listed], minlength=n_names)
    self_sum, device_sum, launch_sum = (
        sum_by(name[listed], values[listed], n_names)
        for values in (self_ns(trace, steps), device_ns, launches)
    )
    total_sum = sum_by(name[outermost], dur[rows[outermost]], n_names)
    all_self = max(int(self_sum.sum()), 1)
    found = [
        Operator(
            name=(
                trace.names[i]
                if i < len(trace.names)
                else f"{trace.names[i - len(trace.names)]} (no operator)"
            ),
            count=int(count[i]),
            self_us=int(self_sum[i]) / 1e3,
            total_us=int(total_sum[i]) / 1e3,
            device_us=int(device_sum[i]) / 1e3,
            n_launches=int(launch_sum[i]),
            share=int(self_sum[i]) / all_self,
        )
        for i in np.flatnonzero(count)
    ]
    return tuple(sorted(found, key=lambda o: (-o.self_us, o.name)))
