"""What was running around a runtime call, on its own thread."""

from __future__ import annotations

import numpy as np

from perfkit.trace.read.columns import Bool, Int64, Trace
from perfkit.trace.read.intervals import nest


def rows_around(trace: Trace, calls: Int64, around: Bool) -> dict[int, tuple[int, ...]]:
    """For each of these rows: the rows that enclose it, outermost first.

    Args:
        trace: the trace.
        calls: rows of runtime calls.
        around: which rows may enclose them.
    """
    result: dict[int, tuple[int, ...]] = {}
    is_call = np.zeros(len(trace), dtype=np.bool_)
    is_call[calls] = True
    for thread in np.unique(trace.thread[calls]):
        rows = np.flatnonzero((around | is_call) & (trace.thread == thread))
        _, parent = nest(trace.start_ns[rows], trace.end_ns[rows])
        for position in np.flatnonzero(is_call[rows]):
            chain = []
            at = parent[position]
            while at >= 0:
                if not is_call[rows[at]]:
                    chain.append(int(rows[at]))
                at = parent[at]
            result[int(rows[position])] = tuple(reversed(chain))
    return result
