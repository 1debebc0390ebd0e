"""Where the launches of a step come from: a phase or label; loops; tensors made on the host."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from perfkit.base.printable import printable
from perfkit.base.words import fmt_count
from perfkit.trace.ask.breakdown import host_layers
from perfkit.trace.ask.modules import source_lines
from perfkit.trace.ask.operators import nesting
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Bool, Category, Int64, Trace, asked_once
from perfkit.trace.read.events import join_device, launch_rows
from perfkit.trace.read.intervals import Intervals, span, union
from perfkit.trace.read.steps import Steps

# What ``torch._foreach_…`` does to many tensors in one call.
_ELEMENTWISE = re.compile(r"^aten::(add|addcdiv|addcmul|clamp|copy|div|fill|lerp|mul|sub|zero)_?$")
# Making the lists (``state_dict()``, ``.data``) is part of such a loop.
_OF_LISTS = ("aten::detach", "detach")
# Filling a tensor, and moving one.
_MAKES = re.compile(
    r"^aten::(zeros|ones|full|arange|eye|linspace|tril|triu|rand(n|int|perm)?)(_like)?$"
)
_MOVES = re.compile(r"^aten::(to|_to_copy|copy_)$")
# A model has fewer of its own in a row.
_LEAST_UPDATES = 40
# A line with less of the launches is one of several.
_MUCH = 0.5
# Labels that torch and perfkit set by themselves.
_TORCHS = re.compile(
    r"^(ProfilerStep|perfkit |Optimizer\.|enumerate\(|nn\.Module: |\w+::|\w+:|Torch-Compiled|"
    r"(Distributed)?DataParallel)"
)
_PHASES = {
    "optimizer": "the optimizer",
    "backward": "the backward pass",
    "forward": "the forward pass",
    "other": "outside of torch's operators",
}


@asked_once
def launching_calls(trace: Trace, steps: Steps) -> Int64:
    """Rows of the calls inside the steps that launched something."""
    calls = np.unique(launch_rows(trace, np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))))
    calls = calls[calls >= 0]
    found: Int64 = calls[steps.containing(trace.start_ns[calls]) >= 0]
    return found


def launches_in(trace: Trace, steps: Steps, parts: Intervals) -> str:
    """``2,400 of 3,605 launches``: of a step, inside these parts."""
    calls = launching_calls(trace, steps)
    return f"{_of(int(parts.covers(trace.start_ns[calls]).sum()), len(calls), steps)} launches"


def _of(n: int, of: int, steps: Steps) -> str:
    some, every = (fmt_count(round(k / max(len(steps), 1))) for k in (n, of))
    return f"all {every}" if n == of else f"{some} of {every}"


def launched_from(
    trace: Trace, steps: Steps, beside: Intervals
) -> tuple[str, Intervals, str | None]:
    """Where most launches come from: in words, when that is, and the line that issues most.

    ``308 of 592 come from the backward pass``; where a label of the user's own is around most of
    these, with its name. The line is known where stacks were recorded.

    Args:
        beside: when launches have another cause: these do not count.
    """
    calls = launching_calls(trace, steps)
    left = calls[~beside.covers(trace.start_ns[calls])]
    layers = {**host_layers(trace, steps), "other": union(steps.start_ns, steps.end_ns)}
    of = dict[str, Int64]()
    for phase in _PHASES:
        inside = layers[phase].covers(trace.start_ns[left])
        of[phase], left = left[inside], left[~inside]
    top = max(of, key=lambda phase: len(of[phase]))
    at = trace.start_ns[of[top]]
    words = f"{_of(len(at), len(calls), steps)} come from {_PHASES[top]}"
    labels = np.flatnonzero(
        trace.is_a(Category.ANNOTATION)
        & (trace.thread == steps.thread)
        & trace.named(lambda name: not _TORCHS.match(name))
    )
    narrowest: dict[int, str] = {}
    for name in np.unique(trace.name_id[labels]).tolist():
        rows = labels[trace.name_id[labels] == name]
        parts = span(trace, rows)
        if 2 * int(parts.covers(at).sum()) > len(at):
            narrowest[parts.total_ns] = trace.names[name]
    if narrowest:
        words += f', in "{printable(narrowest[min(narrowest)], 40)}"'
    stacks = source_lines(trace, steps)
    most = max(stacks.lines, key=lambda one: one.n_launches, default=None)
    # the engine's thread has no Python
    if most is None or top == "backward" or most.n_launches <= _MUCH * len(at):
        return words, layers[top], None
    is_def = " (its def)" * (not stacks.of_calls)
    return words, layers[top], f"{most.file}:{most.line} in {most.function}{is_def}"


@asked_once
def tensor_loops(trace: Trace, steps: Steps) -> tuple[Intervals, Counter[str]]:
    """When the step's thread updated one tensor after the other, and how often by which operator.

    Outside of optimizer, backward pass, DataLoader and what torch does for several ranks, and where
    autograd records nothing: a moving average of the weights, clipping by hand, copying weights.
    """
    host = host_layers(trace, steps)
    rows = np.flatnonzero(trace.is_a(Category.OP) & (trace.thread == steps.thread))
    rows = rows[steps.containing(trace.start_ns[rows]) >= 0]
    before = np.maximum.accumulate(np.r_[0, trace.end_ns[rows]])[:-1]
    rows = rows[trace.start_ns[rows] >= before]  # those that no other one calls
    known = trace.name_table(_ELEMENTWISE.match) | trace.name_table(_OF_LISTS.__contains__)
    ends = ~known[trace.name_id[rows]] | (trace.sequence[rows] >= 0)
    # what torch sends to other ranks: buffers, gradients
    sends = span(trace, trace.is_a(Category.ANNOTATION) & trace.holds("DataParallel"))
    for aside in (host["optimizer"], host["backward"], host["data wait"], sends):
        ends |= aside.covers(trace.start_ns[rows])
    updates = ~ends & trace.named(lambda n: n.startswith("aten::") and n.endswith("_"))[rows]
    run = np.cumsum(ends)
    is_long = np.bincount(run[updates], minlength=len(rows) + 1) >= _LEAST_UPDATES
    inside = is_long[run] & ~ends
    kept, run = rows[inside], run[inside]
    first = np.flatnonzero(np.r_[True, run[1:] != run[:-1]][: len(run)])
    last = np.r_[first[1:], len(run)][: len(first)] - 1
    names = trace.name_id[rows[updates & is_long[np.cumsum(ends)]]]
    called = Counter(trace.names[i].removeprefix("aten::") for i in names.tolist())
    return union(trace.start_ns[kept[first]], trace.end_ns[kept[last]]), called


@asked_once
def made_on_host(trace: Trace, steps: Steps) -> tuple[Int64, Int64]:
    """Rows of the operators that fill a tensor on the host, and of those that then move it."""
    rows = nesting(trace, steps).rows
    rows = rows[trace.thread[rows] == steps.thread]
    launched = join_device(trace, rows)
    calls_ns, launched = trace.start_ns[rows[launched >= 0]], launched[launched >= 0]
    sends_ns = calls_ns[trace.holds("HtoD")[launched]]
    ops = rows[trace.is_a(Category.OP)[rows]]
    start, end = trace.start_ns[ops], trace.end_ns[ops]
    loading = host_layers(trace, steps)["data wait"]
    made = np.flatnonzero(trace.named(_MAKES.search)[ops] & ~loading.covers(start))
    moved, first = np.unique(np.searchsorted(start, end[made]), return_index=True)
    made, moved = made[first][moved < len(ops)], moved[moved < len(ops)]

    def have(calls: Int64, at: Int64) -> Bool:
        found: Bool = np.searchsorted(calls, end[at]) > np.searchsorted(calls, start[at])
        return found

    is_pair = trace.named(_MOVES.search)[ops[moved]] & have(sends_ns, moved) & ~have(calls_ns, made)
    return ops[made[is_pair]], ops[moved[is_pair]]
