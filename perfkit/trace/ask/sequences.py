"""Kernel sequences that repeat: candidates for fusion.

Two to six kernels in a row on one stream, all of families that a compiler can fuse (elementwise,
normalization, reduction, memory …): matrix products, convolutions, attention and collectives end a
sequence. What fusing could save is bounded: a fused kernel has to do at least the work of the
longest of them, and the gaps between them go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.base.arguments import check_whole
from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.ask.kernels import TENSOR_FAMILIES, family
from perfkit.trace.read.columns import Bool, Category, Int64, Trace
from perfkit.trace.read.events import device_rows, sum_by, together
from perfkit.trace.read.steps import Steps, find_steps

_LONGEST = 6
# A sequence that does not repeat within a step is not a pattern of the model.
_AT_LEAST_PER_STEP = 2
# Kernels further apart than this are not neighbours: the host did something between them that a
# compiler would break the graph for.
_NEIGHBOURS_NS = 1_000_000
_UNFUSABLE = (*TENSOR_FAMILIES, "communication")


@dataclass(frozen=True)
class Sequence:
    """One sequence of kernels.

    Attributes:
        names: the kernels in order.
        count: how often it occurs without overlapping itself, all steps together.
        busy_us: time of its kernels in µs, all steps together.
        gaps_us: time between its kernels in µs, likewise.
        saved_at_most_us: what one kernel in its place could save, in µs, likewise: all but its
            longest kernel, and the gaps.
    """

    names: tuple[str, ...]
    count: int
    busy_us: float
    gaps_us: float
    saved_at_most_us: float


@dataclass(frozen=True)
class Sequences(Shown):
    """Candidates for fusion, the largest possible saving first.

    Candidates may share kernels: their savings do not add up.

    Attributes:
        sequences: at most ``top`` of them.
    """

    sequences: tuple[Sequence, ...]
    n_steps: int
    warnings: tuple[str, ...] = ()


@question("sequences", "Which short kernels follow each other again and again?")
def sequences(trace: Trace, steps: Steps | None = None, *, top: int = 20) -> Sequences:
    """Frequent sequences of kernels that a compiler could fuse.

    Args:
        top: how many to return at most.

    Raises:
        UsageError: ``top`` is not a whole number of at least 1.
    """
    check_whole("top", top, 1)
    steps = find_steps(trace) if steps is None else steps
    rows, step = device_rows(trace, steps, Category.KERNEL)
    order = np.lexsort((trace.start_ns[rows], trace.thread[rows]))
    rows, step = rows[order], step[order]
    fusable = trace.name_table(lambda n: family(n) not in _UNFUSABLE) if len(rows) else None
    found: list[Sequence] = []
    if fusable is not None and len(rows) > 1:
        found = _find(trace, rows, step, fusable[trace.name_id[rows]], len(steps))
    found.sort(key=lambda s: (-s.saved_at_most_us, s.names))
    doubts = () if len(rows) else ("no kernel was recorded",)
    return Sequences(tuple(_distinct(found)[:top]), len(steps), together(steps.warnings, doubts))


def _find(
    trace: Trace, rows: Int64, step: Int64, fusable: Bool,
    n_steps: int,
) -> list[Sequence]:  # fmt: skip
    n = len(rows)
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    name = trace.name_id[rows].astype(np.int64)
    gap = np.maximum(start[1:] - end[:-1], 0)
    joined = (
        (trace.thread[rows][1:] == trace.thread[rows][:-1])
        & (step[1:] == step[:-1])
        & fusable[1:]
        & fusable[:-1]
        & (gap < _NEIGHBOURS_NS)
    )
    dur = end - start
    least = max(_AT_LEAST_PER_STEP * n_steps, 2)
    # Grams grow by one kernel a round; only those that are frequent can be part of longer ones.
    at = np.arange(n)
    gram = name
    busy, gaps, longest = dur.copy(), np.zeros(n, np.int64), dur.copy()
    found = []
    for length in range(2, _LONGEST + 1):
        last = at + length - 1
        alive = last < n
        alive[alive] &= joined[last[alive] - 1]
        at, gram, last = at[alive], gram[alive], last[alive]
        busy, gaps, longest = busy[alive], gaps[alive], longest[alive]
        if not len(at):
            break
        pair = gram * (int(name.max()) + 1) + name[last]
        _, first, gram, count = np.unique(
            pair, return_index=True, return_inverse=True, return_counts=True
        )
        busy, gaps = busy + dur[last], gaps + gap[last - 1]
        longest = np.maximum(longest, dur[last])
        alone = _not_overlapping(at, gram, length)
        n_grams = len(first)
        counts = np.bincount(gram[alone], minlength=n_grams)
        sums = [sum_by(gram[alone], x[alone], n_grams) for x in (busy, gaps, longest)]
        for i in np.flatnonzero(counts >= least):
            begin = int(at[first[i]])
            found.append(
                Sequence(
                    names=tuple(trace.names[j] for j in name[begin : begin + length]),
                    count=int(counts[i]),
                    busy_us=int(sums[0][i]) / 1e3,
                    gaps_us=int(sums[1][i]) / 1e3,
                    saved_at_most_us=int(sums[0][i] + sums[1][i] - sums[2][i]) / 1e3,
                )
            )
        frequent = count[gram] >= least
        at, gram = at[frequent], gram[frequent]
        busy, gaps, longest = busy[frequent], gaps[frequent], longest[frequent]
    return found


def _not_overlapping(at: Int64, gram: Int64, length: int) -> Bool:
    """Occurrences that are left when none may overlap another of the same gram.

    Where occurrences overlap in a row, those at multiples of ``length`` after the first of the row
    stay: all that fit for a kernel that repeats, at most too few for other patterns.
    """
    order = np.lexsort((at, gram))
    a, g = at[order], gram[order]
    first = np.r_[True, (g[1:] != g[:-1]) | (a[1:] - a[:-1] >= length)]
    offset = a - a[np.maximum.accumulate(np.where(first, np.arange(len(a)), 0))]
    keep = np.zeros(len(at), dtype=np.bool_)
    keep[order] = first | (offset % length == 0)
    return keep


def _distinct(found: list[Sequence]) -> list[Sequence]:
    """Leave out sequences that are part of a longer one that saves more and is as frequent."""
    kept: list[Sequence] = []
    for s in found:
        if not any(s.count <= k.count and _joined(s) in _joined(k) for k in kept):
            kept.append(s)
        if len(kept) >= 200:
            break
    return kept


def _joined(s: Sequence) -> str:
    """All names, with a mark at both ends of each: one may be the end of another."""
    return "".join(f"\0{name}\0" for name in s.names)
