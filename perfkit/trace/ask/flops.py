"""FLOPs of the steps, from recorded shapes: matrix products, convolutions, attention.

A multiplication and an addition are two operations. The formulas are the textbook ones, the same
that ``torch.utils.flop_counter`` uses:

* ``mm``, ``addmm``, ``bmm``, ``baddbmm``: 2·(b·)m·n·k; the added matrix is not counted;
* convolution: 2 · batch · output positions · (elements of the weight); of its backward the same
  once for the gradient of the input and once for that of the weight, as asked for;
* attention: 2·b·h·q·k·d for each of its two products; backward 5 products (the scores are
  computed once more). A causal mask is not taken off: these are the FLOPs of the formula, and a
  kernel that skips masked blocks does up to half of them.

Everything else (elementwise, normalization, reductions) counts as nothing: it is bound by memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from perfkit.base.display import Shown
from perfkit.base.words import fmt_count
from perfkit.trace.ask.operators import Nesting, nesting
from perfkit.trace.ask.question import question
from perfkit.trace.read.columns import DEVICE_CATEGORIES, Category, Int64, Trace
from perfkit.trace.read.lookups import launch_rows, sum_by, together
from perfkit.trace.read.steps import Steps, find_steps

_Dims = list[Any]
_Inputs = list[Any]


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
        n_steps: number of steps that these figures are of.
        on_device: whether times are of kernels rather than of the host.
        n_counted: calls whose FLOPs are in these figures.
        n_unknown: calls of counted operators whose shapes do not tell.
        warnings: what is doubtful.
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
def flops(trace: Trace, steps: Steps | None = None, *, within: Nesting | None = None) -> Flops:
    """Count FLOPs from the shapes that were recorded (``record_shapes=True``).

    Args:
        trace: the trace.
        steps: its steps; found from the trace where not given.
        within: the result of ``operators.nesting``, where it is known already.
    """
    steps = find_steps(trace) if steps is None else steps
    wall_us = int((steps.end_ns - steps.start_ns).sum()) / 1e3
    on_device = trace.has_device
    inside = nesting(trace, steps) if within is None else within
    formula = trace.name_table(lambda n: n in _FORMULAS)
    is_op = trace.category[inside.rows] == Category.OP
    counted = is_op & formula[trace.name_id[inside.rows]]
    # A counted op inside a counted op (a convolution that calls mm) would count twice.
    owner = _owner(inside, counted)
    outermost = np.flatnonzero(counted & (owner == np.arange(len(owner))))
    rows = inside.rows[outermost]
    shaped = trace.dims_id[rows] >= 0
    n_unshaped = int((~shaped).sum())
    outermost, rows = outermost[shaped], rows[shaped]
    keys = np.stack([trace.name_id[rows], trace.dims_id[rows], trace.concrete_id[rows]], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    count = np.bincount(group, minlength=len(distinct))
    busy = _busy_ns(trace, inside, owner, on_device)[outermost]
    busy_of = sum_by(group, busy, len(distinct))
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
            f"the shapes of {fmt_count(n_unknown)} calls do not show their FLOPs and are not "
            "counted"
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


def _owner(inside: Nesting, counted: Any) -> Int64:
    """For each nested event: the outermost counted op that is it or encloses it, -1 for none."""
    n = len(inside.rows)
    owner = np.where(counted, np.arange(n), -1).astype(np.int64)
    above = inside.parent.copy()
    while (above >= 0).any():  # as many rounds as events are nested
        there = above >= 0
        better = there & counted[np.maximum(above, 0)]
        owner[better] = above[better]
        above[there] = inside.parent[above[there]]
    return owner


def _busy_ns(trace: Trace, inside: Nesting, owner: Int64, on_device: bool) -> Int64:
    """Per nested event: ns of the device activities launched inside it (or its own, on a CPU)."""
    dur = trace.end_ns - trace.start_ns
    if not on_device:
        return dur[inside.rows]
    busy = np.zeros(len(inside.rows), dtype=np.int64)
    if not len(inside.rows):
        return busy
    device = np.flatnonzero(trace.is_a(*DEVICE_CATEGORIES))
    launch = launch_rows(trace, device)
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[inside.rows] = np.arange(len(inside.rows))
    at = place[launch]  # an unknown launch (-1) looks up the extra entry
    at = np.where(at >= 0, owner[np.maximum(at, 0)], -1)
    np.add.at(busy, at[at >= 0], dur[device[at >= 0]])
    return busy


def _count(name: str, shapes: str, concrete: str) -> float | None:
    """FLOPs of one call; None where its shapes do not tell."""
    try:
        dims: _Dims = msgspec.json.decode(shapes)
        inputs: _Inputs = msgspec.json.decode(concrete) if concrete else []
        value = float(_FORMULAS[name](dims, inputs))
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, OverflowError):
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _mm(dims: _Dims, at: int = 0) -> float:
    (m, k), (k2, n) = dims[at], dims[at + 1]
    if k != k2:
        raise ValueError("inner sizes differ")
    return float(2 * m * n * k)


def _bmm(dims: _Dims, at: int = 0) -> float:
    (b, m, k), (_, _, n) = dims[at], dims[at + 1]
    return float(2 * b * m * n * k)


def _conv(dims: _Dims, inputs: _Inputs) -> float:
    """(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)"""
    source, weight = dims[0], dims[1]
    kernel = weight[2:]
    positions = source[2:]
    if str(inputs[6]).lower() not in ("true", "1"):
        stride, padding, dilation = (_spread(inputs[i], len(kernel)) for i in (3, 4, 5))
        positions = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, p, d, k, s in zip(source[2:], padding, dilation, kernel, stride, strict=True)
        ]
    # Transposed, every input position meets every element of the weight once.
    return float(2 * source[0] * math.prod(positions) * math.prod(weight))


def _conv_backward(dims: _Dims, inputs: _Inputs) -> float:
    """(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, …, mask)"""
    grad, source, weight = dims[0], dims[1], dims[2]
    transposed = len(inputs) > 7 and str(inputs[7]).lower() in ("true", "1")
    positions = source[2:] if transposed else grad[2:]
    once = 2 * source[0] * math.prod(positions) * math.prod(weight)
    mask = _flags(inputs[10]) if len(inputs) > 10 else []
    return float(once * (sum(mask[:2]) if len(mask) >= 2 else 2))


def _spread(value: Any, n: int) -> list[int]:
    numbers = msgspec.json.decode(value) if isinstance(value, str) else value
    numbers = numbers if isinstance(numbers, list) else [numbers]
    return [int(x) for x in (numbers * n if len(numbers) == 1 else numbers)]


def _flags(value: Any) -> list[bool]:
    text = str(value).lower().strip("[]() ")
    return [part.strip() in ("true", "1") for part in text.split(",")] if text else []


def _attention(dims: _Dims, at: int = 0) -> float:
    (b, h, q, d), (_, _, k, _), (_, _, _, d_v) = dims[at : at + 3]
    return float(2 * b * h * q * k * (d + d_v))


def _attention_backward(dims: _Dims, inputs: _Inputs) -> float:
    (b, h, q, d), (_, _, k, _), (_, _, _, d_v) = dims[1:4]
    # scores again, gradients of scores and of v (both with d_v), of q and of k
    return float(2 * b * h * q * k * (3 * d + 2 * d_v))


_FORMULAS: dict[str, Callable[[_Dims, _Inputs], float]] = {
    "aten::mm": lambda d, i: _mm(d),
    "aten::_scaled_mm": lambda d, i: _mm(d),
    "aten::_int_mm": lambda d, i: _mm(d),
    "aten::addmm": lambda d, i: _mm(d, 1),
    "aten::_addmm_activation": lambda d, i: _mm(d, 1),
    "aten::bmm": lambda d, i: _bmm(d),
    "aten::baddbmm": lambda d, i: _bmm(d, 1),
    "aten::convolution": _conv,
    "aten::convolution_backward": _conv_backward,
    **{
        f"aten::_scaled_dot_product_{kind}": lambda d, i: _attention(d)
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
    **{
        f"aten::_scaled_dot_product_{kind}_backward": _attention_backward
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
        )
    },
}
