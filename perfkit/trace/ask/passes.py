"""Backward passes of a step: through one graph, before an update, and with layers run again."""

from __future__ import annotations

import numpy as np

from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.intervals import span
from perfkit.trace.read.steps import Steps

# More than a few micro-batches.
_MANY = 8
_ADDS_UP = "torch::autograd::AccumulateGrad"
#: Operators of layers that autograd's own nodes never call.
LAYERS = (
    "aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::layer_norm",
    "aten::batch_norm", "aten::embedding", "aten::scaled_dot_product_attention", "aten::lstm",
    "aten::gru",
)  # fmt: skip


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
    if not n or not n_tensors:
        return 0
    # gradients of weights that no optimizer has are as many more: a pass has each of its nodes
    nodes = backward_rows(trace) & (steps.containing(trace.start_ns) >= 0)
    rarest = np.unique(trace.name_id[nodes], return_counts=True)[1].min(initial=n)
    n_passes = round(min(n / n_tensors, float(rarest)) / max(len(steps), 1))
    return n_passes if n_passes >= _MANY else 0


def run_again(trace: Trace, steps: Steps) -> tuple[float, float]:
    """Parts of the model that a step runs again in its backward pass; of all layers, their part."""
    ops = trace.is_a(Category.OP) & trace.named(LAYERS.__contains__)
    at = trace.start_ns[ops]
    at = at[steps.containing(at) >= 0]
    backward = np.flatnonzero(backward_rows(trace))
    again = at[span(trace, backward).covers(at)]
    nodes = np.searchsorted(np.sort(trace.start_ns[backward]), again)
    part = len(again) / max(len(at) - len(again), 1)
    return len(np.unique(nodes)) / max(len(steps), 1), min(part, 1.0)
