"""Backward passes through one graph."""

from __future__ import annotations

import numpy as np

from perfkit.trace.read.columns import Trace
from perfkit.trace.read.events import backward_rows
from perfkit.trace.read.steps import Steps


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
