"""FLOPs of the steps, from recorded shapes: matrix products, convolutions, attention.

The formulas are those of :mod:`perfkit.limit.flops`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from perfkit.base.display import Shown
from perfkit.base.words import plural
from perfkit.limit.flops import FORMULAS, counted
from perfkit.trace.ask import question
from perfkit.trace.ask.operators import launched, nesting, owners
from perfkit.trace.read.columns import Category, Trace
from perfkit.trace.read.events import sum_by, together
from perfkit.trace.read.steps import Steps, find_steps


@dataclass(frozen=True)
class OpFlops:
    """All calls of one operator with one set of shapes.

    Attributes:
        op: e.g. ``aten::addmm``.
        shapes: recorded input shapes, as JSON.
        count: calls, all steps together.
        flops: floating-point operations of all these calls.
        busy_us: time of the kernels that they launched, in µs; without a device the time on the
            host.
    """

    op: str
    shapes: str
    count: int
    flops: float
    busy_us: float

    @property
    def tflop_per_s(self) -> float | None:
        """Achieved 10¹² FLOP per second; None where no time was recorded."""
        return self.flops / self.busy_us / 1e6 if self.busy_us else None


@dataclass(frozen=True)
class Flops(Shown):
    """FLOPs of the steps; all figures 0 where no shapes were recorded.

    Attributes:
        ops: the most FLOPs first.
        wall_us: length of all steps in µs.
        on_device: whether times are of kernels rather than of the host.
        n_counted: calls whose FLOPs are in these figures.
        n_unknown: calls of counted operators whose shapes do not tell.
    """

    ops: tuple[OpFlops, ...]
    wall_us: float
    n_steps: int
    on_device: bool
    n_counted: int
    n_unknown: int
    warnings: tuple[str, ...] = ()

    @property
    def per_step(self) -> float:
        """FLOPs of a step."""
        return sum(o.flops for o in self.ops) / max(self.n_steps, 1)

    @property
    def achieved_tflop_per_s(self) -> float:
        """10¹² FLOP per second over the steps' whole time, waits included."""
        return sum(o.flops for o in self.ops) / self.wall_us / 1e6 if self.wall_us else 0.0

    @property
    def busy_tflop_per_s(self) -> float | None:
        """10¹² FLOP per second while the counted operators' kernels ran."""
        busy_us = sum(o.busy_us for o in self.ops)
        return sum(o.flops for o in self.ops) / busy_us / 1e6 if busy_us else None


@question("flops", "How many FLOPs does a step do, and how fast?")
def flops(trace: Trace, steps: Steps | None = None) -> Flops:
    """Count FLOPs from the shapes that were recorded (``record_shapes=True``)."""
    steps = find_steps(trace) if steps is None else steps
    wall_us = steps.total_ns / 1e3
    on_device = trace.has_device
    inside = nesting(trace, steps)
    formula = trace.name_table(FORMULAS.__contains__)
    is_op = trace.category[inside.rows] == Category.OP
    counted = is_op & formula[trace.name_id[inside.rows]]
    # A counted op inside a counted op (a convolution that calls mm) would count twice.
    owner = owners(inside, counted)
    outermost = np.flatnonzero(counted & (owner == np.arange(len(owner))))
    rows = inside.rows[outermost]
    shaped = trace.dims_id[rows] >= 0
    n_unshaped = int((~shaped).sum())
    outermost, rows = outermost[shaped], rows[shaped]
    keys = np.stack([trace.name_id[rows], trace.dims_id[rows], trace.concrete_id[rows]], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    count = np.bincount(group, minlength=len(distinct))
    busy = (trace.end_ns - trace.start_ns)[inside.rows]
    if on_device:  # what each has launched
        active, at = launched(trace, steps)
        counts = owner[at] >= 0
        took = (trace.end_ns - trace.start_ns)[active[counts]]
        busy = sum_by(owner[at][counts], took, len(inside.rows))
    busy_of = sum_by(group, busy[outermost], len(distinct))
    found, n_unknown = [], n_unshaped
    for i, (name_id, dims_id, concrete_id) in enumerate(distinct.tolist()):
        name, shapes = trace.names[name_id], trace.input_dims[dims_id]
        one = _count(name, shapes, trace.concrete_inputs[concrete_id] if concrete_id >= 0 else "")
        if one is None:
            n_unknown += int(count[i])
            continue
        found.append(
            OpFlops(name, shapes, int(count[i]), one * int(count[i]), int(busy_of[i]) / 1e3)
        )
    doubts = []
    if not (trace.dims_id >= 0).any():
        doubts.append("no shapes were recorded: FLOPs are not known (record_shapes=True)")
    elif n_unknown:
        doubts.append(
            f"not counted: {plural(n_unknown, 'call')} whose shapes do not show the FLOPs"
        )
    return Flops(
        ops=tuple(sorted(found, key=lambda o: (-o.flops, o.op, o.shapes))),
        wall_us=wall_us,
        n_steps=len(steps),
        on_device=on_device,
        n_counted=sum(o.count for o in found),
        n_unknown=n_unknown,
        warnings=together(steps.warnings, doubts),
    )


def _count(name: str, shapes: str, concrete: str) -> float | None:
    """FLOPs of one call; None where its shapes do not tell."""
    try:
        dims = msgspec.json.decode(shapes)
        inputs = msgspec.json.decode(concrete) if concrete else []
    except msgspec.DecodeError:
        return None
    return counted(name, dims, inputs)
