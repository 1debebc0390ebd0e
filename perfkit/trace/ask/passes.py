"""Backward passes of a step: through one graph, and before an update."""

from __future__ import annotations

import numpy as np

from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.intervals import span
from perfkit.trace.read.steps import Steps

# More than a few micro-batches.
_MANY = 8
_ADDS_UP = "torch::autograd::AccumulateGrad"


def passes_of_a_graph(trace: Trace, steps: Steps) -> float:
    """How often a step runs the same node of a graph, in the middle of the steps."""
    rows = np.flatnonzero(backward_rows(trace))
    step = steps.containing(trace.start_ns[rows])
    rows, step = (x[(step >= 0) & (trace.sequence[rows] >= 0)] for x in (rows, step))
    if not len(rows):
        return 0.0
    nodes = np.stack((step, trace.name_id[rows], trace.sequence[rows]))
    (of, *_), n = np.unique(nodes, axis=1, return_counts=True)
    return float(np.median([n[of == one].max(initial=0) for one in range(len(steps))]))


def many_passes(trace: Trace, steps: Steps, n_tensors: int) -> int:
    """The passes whose gradients a step adds up, but for an update's own; 0 where they are few.

    Args:
        n_tensors: with gradients, of all optimizers; 0 if unknown: then no pass is.
    """
    rows = np.flatnonzero(trace.is_a(Category.OP) & trace.named(_ADDS_UP.__eq__))
    at = trace.start_ns[rows]
    updates = span(trace, trace.is_a(Category.ANNOTATION) & trace.begins("Optimizer.step#"))
    n = np.count_nonzero((steps.containing(at) >= 0) & ~updates.covers(at))
    n_passes = round(n / max(n_tensors * len(steps), 1)) if n_tensors else 0
    return n_passes if n_passes >= _MANY else 0
