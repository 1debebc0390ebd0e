"""What ``torch.compile`` left in the steps: compiled regions that were called, and compilations.

A call of compiled code is labelled ``Torch-Compiled Region: 0/1``: the piece of code, and which
attempt at it. A region ends where a graph does, so several pieces in a step are graph breaks, or
several compiled functions. Why a graph ended or was compiled again is in no trace:
``perfkit.profile`` reads torch's log for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfkit.base.display import Shown
from perfkit.trace.ask import question
from perfkit.trace.read.columns import Category, Trace, asked_once
from perfkit.trace.read.events import graph_captures, host_rows, is_compiling
from perfkit.trace.read.intervals import EMPTY, Intervals, joined, overlap, span, union
from perfkit.trace.read.steps import Steps, find_steps

#: Names the piece of code (``frame``) and the attempt at it.
REGION = re.compile(r"^Torch-Compiled Region: (?P<frame>\d+)/(?P<attempt>\d+)")

# Fewer steps with one are its beginning: a call is run once, then captured, then replayed.
_LEAST_STEPS = 3


@dataclass(frozen=True)
class Region:
    """Calls of one compiled piece of code inside the steps.

    Attributes:
        name: torch's, e.g. ``"0/1"``: piece 0, compiled a second time.
        count: calls, all steps together.
        total_us: their time on the host in µs, with what they call.
    """

    name: str
    count: int
    total_us: float


@dataclass(frozen=True)
class Compiled(Shown):
    """What of the steps is compiled code, and what of them is compiling.

    Attributes:
        regions: most host time first.
        n_compilations: compilations that began inside the steps.
        compile_us: time in which something was compiled, all steps together, in µs.
    """

    regions: tuple[Region, ...]
    n_compilations: int
    compile_us: float
    n_steps: int
    warnings: tuple[str, ...] = ()


@question("compiled", "Which compiled code ran, and was something compiled meanwhile?")
def compiled(trace: Trace, steps: Steps | None = None) -> Compiled:
    """Compiled regions by host time, and the time that compiling took inside the steps."""
    steps = find_steps(trace) if steps is None else steps
    inside = (
        trace.is_a(Category.OP, Category.ANNOTATION)
        & host_rows(trace, steps)
        & (steps.containing(trace.start_ns) >= 0)
    )
    rows = np.flatnonzero(inside & trace.named(REGION.match))
    calls: dict[str, list[float]] = {}
    for row in rows.tolist():
        match = REGION.match(trace.names[trace.name_id[row]])
        assert match is not None
        took_us = float(trace.end_ns[row] - trace.start_ns[row]) / 1e3
        calls.setdefault(f"{match['frame']}/{match['attempt']}", []).append(took_us)
    compiling = inside & trace.named(is_compiling)
    spans = span(trace, compiling)
    return Compiled(
        regions=tuple(
            sorted(
                (Region(name, len(took_us), sum(took_us)) for name, took_us in calls.items()),
                key=lambda one: (-one.total_us, one.name),
            )
        ),
        n_compilations=len(spans),
        compile_us=float(spans.total_ns) / 1e3,
        n_steps=len(steps),
        warnings=steps.warnings,
    )


@asked_once
def graphs_anew(trace: Trace, steps: Steps) -> Intervals:
    """When CUDA graphs are captured in step after step, with all of the compiled calls that do so.

    A call of a new size runs once without a graph (torch asks for the container of its graphs) and
    is captured the second time. Empty where the later half of the steps only replays.
    """
    here = trace.is_a(Category.OP, Category.ANNOTATION)
    first_runs = span(trace, here & trace.begins("cudagraphify.get_container"))
    new = joined((graph_captures(trace), first_runs))
    found = np.unique(steps.containing(new.start))
    found = found[found >= 0]
    if len(found) < _LEAST_STEPS or 2 * found[-1] < len(steps):
        return EMPTY
    calls = span(trace, here & trace.begins("## Call CompiledFxGraph"))
    makes = np.searchsorted(new.start, calls.start) < np.searchsorted(new.start, calls.end)
    inside = union(steps.start_ns, steps.end_ns)
    return overlap(joined((new, Intervals(calls.start[makes], calls.end[makes]))), inside)
