"""Set-up in the steps: compiling, first calls, and searches for an algorithm.

A first call takes long because it is the first: it creates the device's context, loads a library
or a kernel's code, tries algorithms. Later calls of the same take less than a tenth of that, in
this recording: what is as long again in a later step is no start-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.trace.ask.breakdown import device_layers
from perfkit.trace.ask.operators import Nesting, nesting
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Category, Int64, Trace, asked_once
from perfkit.trace.read.events import (
    graph_captures,
    host_rows,
    is_compiling,
    join_device,
    runtime_calls,
)
from perfkit.trace.read.intervals import EMPTY, Intervals, covered_ns, joined, span, without
from perfkit.trace.read.steps import Steps, find_steps

# A shorter call, or one that is less of all steps, is not worth a word.
_LEAST_NS, _LEAST_SHARE = 1e6, 0.05
# Later calls of what is loaded take less than this part of the first one.
_LATER = 0.1
# In the last step it takes less than this part of what it takes in the first one.
_AGAIN = 0.5
# Torch makes the device's context by a cudaFree(0).
_MAKES_A_CONTEXT = re.compile(r"^(cuda|hip)Free$|^cuInit|^hipInit|PrimaryCtxRetain")
# cuDNN's and MIOpen's: forward, backward, transposed.
_CONVOLUTION = re.compile(r"conv", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class SetUp:
    """What of the steps is set-up.

    Attributes:
        first: when first calls run that take long because they are the first.
        longest: (name, ms) of the longest of them.
        searching: when a convolution searches for its algorithm, in step after step.
        n_searches: how many convolutions do.
        parts: all set-up, without captures of CUDA graphs.
    """

    first: Intervals
    longest: tuple[tuple[str, float], ...]
    searching: Intervals
    n_searches: int
    parts: Intervals


@asked_once
def compiling(trace: Trace, steps: Steps) -> Intervals:
    """When ``torch.compile`` compiles inside the steps."""
    rows = (
        trace.is_a(Category.ANNOTATION, Category.OP)
        & host_rows(trace, steps)
        & (steps.containing(trace.start_ns) >= 0)
        & trace.named(is_compiling)
    )
    return span(trace, rows)


@asked_once
def set_up(trace: Trace) -> SetUp:
    """What of a trace's steps is set-up."""
    steps = find_steps(trace)
    first, searching, n_searches = EMPTY, EMPTY, 0
    longest: tuple[tuple[str, float], ...] = ()
    device, _ = device_layers(trace)
    if device:
        inside = nesting(trace, steps)
        searches = _searches(trace, steps, inside)
        searching, n_searches = span(trace, searches), len(searches)
        first, longest = _first_calls(trace, steps, inside, device)
    parts = joined((first, searching, compiling(trace, steps)))
    return SetUp(first, longest, searching, n_searches, without(parts, graph_captures(trace)))


def _first_calls(
    trace: Trace, steps: Steps, inside: Nesting, device: list[Intervals]
) -> tuple[Intervals, tuple[tuple[str, float], ...]]:
    """Long first calls of operators, launches and of the driver.

    An operator counts by its self time, without what it called or waited for; one that is called
    once, if it allocates. A launch counts as the first of its kernel, while the device idles: where
    that works, it may wait in a full queue.
    """
    rows = inside.rows
    own, counted = _self_ns(trace, steps, inside)
    least_ns = max(_LEAST_NS, _LEAST_SHARE * steps.total_ns)
    name = trace.name_id[rows].astype(np.int64)
    is_op, is_call = trace.is_a(Category.OP)[rows], trace.is_a(Category.RUNTIME)[rows]
    # the driver's launch inside the runtime's is the same one
    is_inner = (inside.parent >= 0) & is_call[inside.parent]
    is_launch = is_call & trace.holds("Launch")[rows] & ~is_inner
    kernel = join_device(trace, rows)
    of_kernel = is_launch & (kernel >= 0)
    key = np.where(of_kernel, len(trace.names) + trace.name_id[kernel], name)
    busy = joined(device)
    calls = trace.start_ns[trace.is_a(Category.RUNTIME)]
    worked = trace.start_ns[trace.is_a(*DEVICE_CATEGORIES)]
    chosen: list[int] = []
    for at in np.flatnonzero((own > least_ns) & (is_op | is_call)).tolist():
        same = np.flatnonzero((key == key[at]) & (is_op == is_op[at]))
        later = own[same[same > at]]
        is_short = later.max(initial=0) < _LATER * own[at]
        start, end = trace.start_ns[rows[[at]]], trace.end_ns[rows[[at]]]
        if is_op[at]:
            first = (
                is_short or float(np.median(later)) < 0.01 * own[at]
                if len(later)
                else same[0] == at and trace.names[name[at]].startswith("aten::empty")
            )
        elif is_launch[at]:
            others = own[is_launch & (np.arange(len(rows)) != at)]
            first = (
                same[0] == at
                and is_short
                and len(others) > 0
                and float(np.median(others)) < _LATER * own[at]
                and int(covered_ns(busy, start, end)[0]) < own[at] / 2
            )
        else:
            first = (
                is_short
                and _MAKES_A_CONTEXT.search(trace.names[name[at]]) is not None
                and start[0] <= calls.min()
                and end[0] <= worked.min()
            )
        if first:
            chosen.append(at)
    chosen = [at for at in chosen if not _comes_again(at, chosen, key, own, inside.step)]
    outer = [at for at in chosen if int(inside.parent_op[at]) not in chosen]
    longest = sorted(outer, key=lambda at: -own[at])[:3]
    named = [trace.names[name[at]] for at in longest]
    above = [int(inside.parent_op[at]) for at in longest]
    named = [
        f"{one} in {trace.names[name[op]]}" if op >= 0 and is_call[at] else one
        for one, op, at in zip(named, above, longest, strict=True)
    ]
    took_ms = [float(own[at]) / 1e6 for at in longest]
    alone = [  # what else they call is as long in later steps
        without(span(trace, rows[[at]]), span(trace, rows[counted & (inside.parent_op == at)]))
        for at in chosen
    ]
    return joined(alone), tuple(zip(named, took_ms, strict=True))


def _comes_again(at: int, chosen: list[int], key: Any, own: Int64, step: Int64) -> bool:
    """Whether the last step that has such calls takes about as long for them as the first."""
    first = min(int(step[one]) for one in chosen if key[one] == key[at])
    same = key == key[at]
    last = int(step[same].max())
    spent = [float(own[same & (step == one)].sum()) for one in (first, last)]
    return last > first and spent[1] >= _AGAIN * spent[0]


def _self_ns(trace: Trace, steps: Steps, inside: Nesting) -> tuple[Int64, Any]:
    """Time of each event without the operators and waits inside it, and which events are such."""
    rows = inside.rows
    dur: Int64 = (trace.end_ns - trace.start_ns)[rows]
    counted = trace.is_a(Category.OP)[rows] | np.isin(rows, runtime_calls(trace, steps).rows)
    counted |= trace.is_a(Category.RUNTIME)[rows] & trace.holds("Launch")[rows]
    of_others = np.zeros(len(rows), dtype=np.int64)
    within = counted & (inside.parent_op >= 0)
    np.add.at(of_others, inside.parent_op[within], dur[within])
    return dur - of_others, counted


def _searches(trace: Trace, steps: Steps, inside: Nesting) -> Int64:
    """Rows of convolutions that time one algorithm after another, if they do so to the end.

    ``torch.backends.cudnn.benchmark`` has cuDNN do so for each new shape: nothing else waits for
    the device within a convolution.
    """
    calls = runtime_calls(trace, steps)
    waits = np.isin(inside.rows, calls.rows[calls.is_sync]) & (inside.parent_op >= 0)
    timed = np.unique(inside.parent_op[waits])
    convolves = trace.named(_CONVOLUTION.search)[inside.rows]
    timed = timed[convolves[timed]]
    in_steps = np.unique(inside.step[timed])
    if len(in_steps) < 2 or in_steps[-1] < inside.step[convolves].max():
        return np.zeros(0, dtype=np.int64)
    return inside.rows[timed]
