"""``torch.compile``: compiling inside the profiled steps, and breaks in the graph."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfkit.advice.case import Case
from perfkit.advice.findings import Finding, amdahl
from perfkit.advice.rules.rule import rule
from perfkit.base.words import fmt_ms, fmt_share, plural
from perfkit.trace.read.columns import Category
from perfkit.trace.read.intervals import Intervals, union

_LEAST_SHARE = 0.05
_REGION = re.compile(r"^Torch-Compiled Region: (?P<frame>\d+)/(?P<attempt>\d+)")


@rule
def recompiles(case: Case) -> Iterator[Finding]:
    """Compilation inside the steps: shapes or values change, or there was no warm-up."""
    parts = case.compiling
    share = case.share_of(parts)
    if share < _LEAST_SHARE:
        return
    attempts = _attempts(case)
    again = max(attempts.values(), default=0)
    in_steps = len(set(case.steps.containing(parts.start).tolist()))
    evidence = [
        f"{len(parts)} compilations in {in_steps} of {case.n_steps} steps take "
        f"{fmt_ms(parts.total_ns / 1e6)}, {fmt_share(share)} of all profiled time"
    ]
    if again:
        evidence.append(f"one region was compiled {again + 1} times: its inputs keep changing")
    gain, formula = amdahl(share)
    yield Finding(
        rule="recompiles",
        cures=("host", "launch", "driver"),
        title=(
            "torch.compile keeps recompiling"
            if again or in_steps > 1
            else "torch.compile compiles inside the profiled steps"
        ),
        evidence=tuple(evidence),
        what_to_do=(
            "model = torch.compile(model, dynamic=True)  # one graph for all sizes\n"
            "torch._dynamo.mark_dynamic(x, 0)  # or say which dimension varies\n"
            "# TORCH_LOGS=recompiles python train.py  tells why; drop_last=True keeps batches equal"
        ),
        gain_at_most=gain,
        formula=formula,
    )


def _attempts(case: Case) -> dict[int, int]:
    """Compiled region → how often it was recompiled, from the names."""
    found: dict[int, int] = {}
    for name in case.trace.names:
        match = _REGION.match(name)
        if match:
            frame = int(match["frame"])
            found[frame] = max(found.get(frame, 0), int(match["attempt"]))
    return found


@rule
def graph_breaks(case: Case) -> Iterator[Finding]:
    """Several compiled regions in a step with Python between them."""
    trace = case.trace
    rows = np.flatnonzero(case.rows(Category.OP, Category.ANNOTATION, named=_REGION.match))
    if len(rows) < 2:
        return
    frames = {
        i: int(m["frame"]) for i, name in enumerate(trace.names) if (m := _REGION.match(name))
    }
    frame = np.array([frames[i] for i in trace.name_id[rows].tolist()])
    step = case.steps.containing(trace.start_ns[rows])
    # From the end of one region to the start of the next in the same step. The backward pass has no
    # regions of its own, so forward code between two regions was not compiled.
    between = (step[1:] == step[:-1]) & (frame[1:] != frame[:-1])
    gaps = union(trace.end_ns[rows[:-1]][between], trace.start_ns[rows[1:]][between])
    lost = case.lost_in(_without(gaps, case.compiling))
    if lost < _LEAST_SHARE:
        return
    gain, formula = amdahl(lost)
    yield Finding(
        rule="graph-breaks",
        cures=("host", "launch"),
        title="The compiled model is in pieces: between them Python runs uncompiled code",
        evidence=(
            f"{plural(len(rows) / case.n_steps, 'compiled region')} per step, of "
            f"{len(set(frame))} "
            "different pieces of code",
            f"what runs between them costs {fmt_share(lost)} of each step",
        ),
        what_to_do=(
            "model = torch.compile(model, fullgraph=True)  # an error at the first break\n"
            "# TORCH_LOGS=graph_breaks python train.py  lists them: print, .item(), NumPy …"
        ),
        gain_at_most=gain,
        formula=formula,
    )


def _without(parts: Intervals, holes: Intervals) -> Intervals:
    """``parts`` minus ``holes``."""
    if not len(parts) or not len(holes):
        return parts
    edges = np.unique(np.concatenate([parts.start, parts.end, holes.start, holes.end]))
    left, right = edges[:-1], edges[1:]
    keep = parts.covers(left) & ~holes.covers(left)
    return union(left[keep], right[keep])
