"""How far is a step from its lower bound on a device?

FLOPs and bytes are counted from the recorded shapes (:mod:`perfkit.limit.work`), divided by the
device's rates (:mod:`perfkit.limit.roofline`), and set beside the recorded times: of the kernels
that an operator launched, without a device of the operator itself.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from perfkit.base.display import Shown
from perfkit.limit.arguments import Tensor, arguments
from perfkit.limit.call import Work
from perfkit.limit.datasheet import DataSheet, data_sheet, sheet_of
from perfkit.limit.kept import kept_peaks, peaks_in_use
from perfkit.limit.operator_kinds import COMPOSITE, NOTHING
from perfkit.limit.roofline import least
from perfkit.limit.roofs import Roofs
from perfkit.limit.work import is_known, work
from perfkit.trace.ask import question
from perfkit.trace.ask.breakdown import device_step_us
from perfkit.trace.ask.operators import launched, nesting, owners
from perfkit.trace.read.columns import RECORDED_HERE, Bool, Category, Int64, Trace
from perfkit.trace.read.events import is_communication, recorded_on, sum_by, together
from perfkit.trace.read.intervals import EMPTY, Intervals, span, without
from perfkit.trace.read.steps import Steps, find_steps

_NODE = "autograd::engine::evaluate_function: "
# What a forward pass calls and the backward functions of torch do not: inside one of those it is
# a forward pass that checkpointing repeats.
_FORWARD = re.compile(
    r"^aten::(linear|matmul|addmm|conv[123]d|convolution|scaled_dot_product_attention)$"
)
_TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
# A causal or full attention's backward computes one of its five products a second time.
_AGAIN_IN_ATTENTION = 0.2
# Why an operator's work is not known.
_NO_RULE = "no rule for it"
_NO_SHAPES = "no shapes recorded"
_LONG_LISTS = "lists of more than 30 tensors: the profiler writes no shapes of these"
_NO_DTYPE = "the profiler writes no dtypes of lists"
_ODD_SHAPES = "its shapes do not say"
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.IGNORECASE)


@dataclass(frozen=True)
class OpLimit:
    """All calls of one operator with one set of shapes, all steps together.

    Attributes:
        op: e.g. ``aten::addmm``.
        family: e.g. ``"matrix product"``.
        shapes: recorded input shapes, as JSON.
        form: number format of its products as computed; empty without products.
        count: calls.
        flops: of its products.
        n_bytes: read and written at least.
        least_us: lower bound on the device; None without rates.
        arithmetic_us: part of MFU: its FLOPs at the fastest rate; 0 without rates.
        bound: ``"arithmetic"``, ``"memory"``; empty without rates.
        measured_us: recorded time of its kernels; without a device of itself.
        n_kernels: how many of these; 0 without a device.
        recomputed_flops: FLOPs done a second time for a backward pass.
    """

    op: str
    family: str
    shapes: str
    form: str
    count: int
    flops: float
    n_bytes: int
    least_us: float | None
    arithmetic_us: float
    bound: str
    measured_us: float
    n_kernels: int
    recomputed_flops: float = 0.0

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.n_bytes if self.n_bytes else 0.0

    @property
    def ratio(self) -> float | None:
        """Recorded over lower bound."""
        return self.measured_us / self.least_us if self.least_us and self.measured_us else None


@dataclass(frozen=True)
class Unknown:
    """An operator whose work is not known, all calls and steps together.

    Attributes:
        op: its name.
        count: calls, on a device kernels.
        measured_us: recorded time.
        why: what is missing.
    """

    op: str
    count: int
    measured_us: float
    why: str = ""


@dataclass(frozen=True)
class Limit(Shown):
    """The steps beside their lower bound on a device.

    Attributes:
        ops: what was counted, the longest recorded time first.
        unknown: what was not, likewise.
        device: whose rates count; empty where none are known.
        kind: ``"measured here"`` where the rates were measured on this machine, ``"predicted"``
            where they are a data sheet's; empty without rates.
        source: of the rates.
        is_other: whether that is another device than the recorded one.
        recorded_on: the device of the trace; ``"cpu"`` without one.
        n_steps: number of steps.
        wall_us: length of all steps together.
        on_device: whether times are of kernels.
        host_copies_us: time of copies between host and device; not in ``ops``.
        flop_per_s: format → rate.
        memory_bytes_per_s: of the memory itself; 0 without rates.
        cache_bytes_per_s: the fastest, of small working sets.
        communication_us: time of collectives that no other work of the device hides; not in
            ``ops`` either.
        step_us: length of one step where that is known better than from the steps' marks: of a
            step that was not profiled, or where the host ran ahead, of the device's work on it.
        is_unprofiled: whether that is a step without the profiler.
    """

    ops: tuple[OpLimit, ...]
    unknown: tuple[Unknown, ...]
    device: str
    kind: str
    source: str
    is_other: bool
    recorded_on: str
    n_steps: int
    wall_us: float
    on_device: bool
    host_copies_us: float
    flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    communication_us: float = 0.0
    step_us: float | None = None
    is_unprofiled: bool = False
    warnings: tuple[str, ...] = field(default=())

    @property
    def is_known(self) -> bool:
        """Whether there is a lower bound: rates, and work that was counted."""
        return bool(self.kind and self.ops and self.least_us)

    @property
    def counted_us(self) -> float:
        """Recorded time of what was counted and what was not, all steps together."""
        return sum(o.measured_us for o in self.ops) + sum(u.measured_us for u in self.unknown)

    @property
    def flops(self) -> float:
        """FLOPs of a step."""
        return sum(o.flops for o in self.ops) / max(self.n_steps, 1)

    @property
    def n_bytes(self) -> float:
        """Bytes of a step, read and written at least."""
        return sum(o.n_bytes for o in self.ops) / max(self.n_steps, 1)

    @property
    def least_us(self) -> float:
        """The lower bound of a step, one operator after another; 0 without rates."""
        return sum(o.least_us or 0.0 for o in self.ops) / max(self.n_steps, 1)

    @property
    def measured_step_us(self) -> float:
        """Length of a step."""
        return self.wall_us / max(self.n_steps, 1) if self.step_us is None else self.step_us

    @property
    def split_step_us(self) -> float:
        """The length that :meth:`rest_us` splits.

        On a device ``measured_step_us``, because kernels take no longer while a profiler runs. On
        the host operators do, so there it is the step as recorded.
        """
        if self.on_device:
            return self.measured_step_us
        return self.wall_us / max(self.n_steps, 1)

    @property
    def ratio(self) -> float | None:
        """Step over lower bound; None without, or for another device."""
        return None if self.is_other or not self.is_known else self.measured_step_us / self.least_us

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization: all FLOPs at the fastest rate, over the step.

        None without rates or products, or for another device.
        """
        if self.is_other or not self.is_known:
            return None
        done = sum(o.arithmetic_us for o in self.ops) / max(self.n_steps, 1)
        return done / self.measured_step_us if done and self.measured_step_us else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: the same without what is computed a second time.

        Chowdhery and others 2022, "PaLM", appendix B.
        """
        hfu = self.hfu
        if hfu is None:
            return None
        done = sum(o.arithmetic_us for o in self.ops)
        again = sum(o.arithmetic_us * o.recomputed_flops / o.flops for o in self.ops if o.flops)
        return hfu * (done - again) / done

    @property
    def counted_share(self) -> float:
        """Share of the operators' recorded time whose work was counted."""
        counted = sum(o.measured_us for o in self.ops)
        whole = counted + sum(u.measured_us for u in self.unknown)
        return counted / whole if whole else 0.0

    def summary(self) -> dict[str, Any]:
        """A step in plain figures; those that are not known are None."""
        known = self.is_known
        return {
            "device": self.device or None,
            "kind": self.kind or None,
            "flops": self.flops,
            "least_bytes": self.n_bytes,
            "least_ms": self.least_us / 1e3 if known else None,
            "step_ms": self.measured_step_us / 1e3,
            "ratio": self.ratio,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "counted_share": self.counted_share,
        }

    def families(self) -> dict[str, tuple[float, float]]:
        """Family → (recorded, least) µs of a step; the longest recorded time first."""
        recorded: dict[str, float] = defaultdict(float)
        needed: dict[str, float] = defaultdict(float)
        for o in self.ops:
            recorded[o.family] += o.measured_us / max(self.n_steps, 1)
            needed[o.family] += (o.least_us or 0.0) / max(self.n_steps, 1)
        return {f: (recorded[f], needed[f]) for f in sorted(recorded, key=lambda f: -recorded[f])}

    def rest_us(self) -> dict[str, float]:
        """From the lower bound up to the step: cause → µs of a step, adding up.

        A family may be below its lower bound: a convolution that Winograd's method computes in
        fewer operations, data that is still in a cache, or a tensor that was expanded from less.
        """
        n = max(self.n_steps, 1)
        rest = {
            f"{name} above its lower bound": us - low for name, (us, low) in self.families().items()
        }
        not_counted = sum(u.measured_us for u in self.unknown) / n
        copies = self.host_copies_us / n
        talk = self.communication_us / n
        busy = sum(o.measured_us for o in self.ops) / n + not_counted + copies + talk
        if not_counted:
            rest["operators whose work is unknown"] = not_counted
        if copies:
            rest["copies between host and device"] = copies
        if talk:
            rest["communication that nothing hides"] = talk
        idle = "the device idles" if self.on_device else "the host between operators"
        rest[idle] = self.split_step_us - busy
        return rest


@question("limit", "How far is a step from its lower bound on the device?")
def limit(
    trace: Trace,
    steps: Steps | None = None,
    *,
    device: str | None = None,
    leaving_out: Intervals = EMPTY,
) -> Limit:
    """Count FLOPs and bytes from the recorded shapes, and divide them by a device's rates.

    Needs shapes (``record_shapes=True``, ``%torchprof --shapes``).

    Args:
        device: whose rates: the name of a data sheet such as ``"H200"``, or ``"here"`` for this
            machine's measured peaks (``perfkit doctor --peaks``). By default those of this machine
            for what was recorded in this process, else the data sheet of the device that the
            trace names.
        leaving_out: when the host's operators do not count: a data set's own are work of the wait
            for data, not of the step.

    Raises:
        UsageError: no data sheet of ``device`` is known.
    """
    steps = find_steps(trace) if steps is None else steps
    roofs = _roofs(trace, device)
    counting = _Counting(trace, steps, leaving_out)
    ops, partial = counting.ops(roofs)
    doubts = list(roofs.doubts) if roofs is not None else []
    if not (trace.dims_id >= 0).any():
        doubts.append("no shapes were recorded: work is not known (record_shapes=True)")
    if partial:
        doubts.append(f"no rate is known for products in {', '.join(sorted(partial))}")
    device_us = device_step_us(trace, steps)
    if device_us is not None:
        doubts.append(
            "the host ran ahead of the device: a step counts with the time that the device works "
            "on it, without its pauses, so that it may take longer, and MFU and HFU be lower"
        )
    return Limit(
        ops=tuple(sorted(ops, key=lambda o: (-o.measured_us, o.op, o.shapes))),
        unknown=counting.unknown(),
        device=roofs.device if roofs is not None else "",
        kind=roofs.kind if roofs is not None else "",
        source=roofs.source if roofs is not None else "",
        is_other=roofs is not None and device not in (None, "here") and not _same(roofs, trace),
        recorded_on=recorded_on(trace),
        n_steps=len(steps),
        wall_us=steps.total_ns / 1e3,
        on_device=trace.has_device,
        host_copies_us=counting.host_copies_us,
        communication_us=counting.communication_us,
        flop_per_s=dict(roofs.flop_per_s) if roofs is not None else {},
        memory_bytes_per_s=roofs.memory_bytes_per_s if roofs is not None else 0.0,
        cache_bytes_per_s=roofs.bytes_per_s(0) if roofs is not None else 0.0,
        step_us=device_us,
        warnings=together(steps.warnings, doubts),
    )


def _sheet_of(trace: Trace) -> DataSheet | None:
    """The data sheet of the device that the trace names."""
    memory = trace.gpu.get("totalGlobalMem")
    return sheet_of(recorded_on(trace), memory if isinstance(memory, int) else None)


def _same(roofs: Roofs, trace: Trace) -> bool:
    sheet = _sheet_of(trace)
    return sheet is not None and sheet.name == roofs.device


def _roofs(trace: Trace, device: str | None) -> Roofs | None:
    if device is not None and device != "here":
        return data_sheet(device).roofs()
    if device == "here" or trace.source == RECORDED_HERE:
        kept = peaks_in_use() if trace.has_device else kept_peaks("cpu")
        if kept is not None:
            return kept.roofs()
    sheet = _sheet_of(trace) if trace.has_device else None
    return None if sheet is None else sheet.roofs()


class _Counting:
    """The counted calls of a trace, and what they took."""

    def __init__(self, trace: Trace, steps: Steps, leaving_out: Intervals) -> None:
        self._trace, self._steps = trace, steps
        self._inside = inside = nesting(trace, steps)
        rows = inside.rows
        self._kept = ~leaving_out.covers(trace.start_ns[rows])
        is_op = (trace.category[rows] == Category.OP) & self._kept
        shaped = trace.dims_id[rows] >= 0
        known = is_op & shaped & trace.name_table(is_known)[trace.name_id[rows]]
        self._owner = owners(inside, known)
        self._outermost = np.flatnonzero(known & (self._owner == np.arange(len(rows))))
        self._list_dtype = _list_dtype(trace)
        self._outputs = _convolution_outputs(trace)
        self._join()
        if trace.has_device:  # what launched nothing worked on the host, or copied from it
            self._outermost = self._outermost[self._kernels[self._outermost] > 0]
        self._without_work: set[int] = set()

    def _join(self) -> None:
        """Recorded time of each counted call; of a device, what its launches started."""
        trace, inside = self._trace, self._inside
        n = len(inside.rows)
        dur = trace.end_ns - trace.start_ns
        self.host_copies_us = self.communication_us = 0.0
        self._tf32 = np.zeros(n, dtype=np.bool_)
        self._kernels = np.zeros(n, dtype=np.int64)
        self._alone: list[tuple[str, int]] = []  # kernels of nobody's work
        if not trace.has_device:
            self._ns = dur[inside.rows]
            return
        self._ns = np.zeros(n, dtype=np.int64)
        active, at = launched(trace, self._steps)
        copied = trace.name_table(lambda name: _HOST_COPY.search(name) is not None)
        is_copy = (trace.category[active] == Category.MEMCPY) & copied[trace.name_id[active]]
        self.host_copies_us = int(dur[active[is_copy]].sum()) / 1e3
        talks = trace.name_table(is_communication)[trace.name_id[active]] & ~is_copy
        if talks.any():  # what of it nothing else hides
            exposed = without(span(trace, active[talks]), span(trace, active[~talks]))
            self.communication_us = exposed.total_ns / 1e3
        works = ~is_copy & ~talks
        active, at = active[works], at[works]
        owner = self._owner[at]
        found = owner >= 0
        np.add.at(self._ns, owner[found], dur[active[found]])
        np.add.at(self._kernels, owner[found], 1)
        narrow = trace.name_table(lambda name: _TF32.search(name) is not None)
        self._tf32[owner[found][narrow[trace.name_id[active[found]]]]] = True
        for row, where in zip(active[~found].tolist(), at[~found].tolist(), strict=True):
            above = inside.parent_op[where]
            name = (
                trace.names[trace.name_id[inside.rows[above]]]
                if above >= 0
                else trace.names[trace.name_id[row]]
            )
            self._alone.append((name, int(dur[row])))

    def ops(self, roofs: Roofs | None) -> tuple[list[OpLimit], set[str]]:
        """Each operator and set of shapes, and the formats without a rate."""
        trace, at = self._trace, self._outermost
        rows = self._inside.rows[at]
        again = self._repeated()[at]
        keys = np.stack(
            [
                trace.name_id[rows],
                trace.dims_id[rows],
                trace.types_id[rows],
                trace.concrete_id[rows],
                self._tf32[at],
                again,
            ],
            axis=1,
        ).astype(np.int64)
        distinct, group = np.unique(keys, axis=0, return_inverse=True)
        group = group.reshape(-1)
        calls = np.bincount(group, minlength=len(distinct)).tolist()
        spent = sum_by(group, self._ns[at], len(distinct)).tolist()
        kernels = sum_by(group, self._kernels[at], len(distinct)).tolist()
        found: list[OpLimit] = []
        partial: set[str] = set()
        for i, key in enumerate(distinct.tolist()):
            name_id, dims_id, types_id, concrete_id, tf32, repeated = key
            one = self._work(name_id, dims_id, types_id, concrete_id)
            if one is None:
                self._without_work.update(at[group == i].tolist())
                continue
            low = least(one, roofs, tf32=bool(tf32)) if roofs is not None else None
            if low is not None and low.is_partial:
                partial.add(one.dtype)
            name, n = trace.names[name_id], calls[i]
            share = 1.0 if repeated else 0.0
            if one.family == "attention" and "backward" in name:
                share = max(share, _AGAIN_IN_ATTENTION)
            found.append(
                OpLimit(
                    op=name,
                    family=one.family,
                    shapes=trace.input_dims[dims_id],
                    form=(low.form if low is not None else one.dtype) if one.flops else "",
                    count=n,
                    flops=one.flops * n,
                    n_bytes=one.n_bytes * n,
                    least_us=None if low is None else low.us * n,
                    arithmetic_us=0.0 if low is None else low.arithmetic_us * n,
                    bound="" if low is None else low.bound,
                    measured_us=spent[i] / 1e3,
                    n_kernels=kernels[i],
                    recomputed_flops=one.flops * n * share,
                )
            )
        return found, partial

    def _work(self, name_id: int, dims_id: int, types_id: int, concrete_id: int) -> Work | None:
        trace = self._trace
        dims = trace.input_dims[dims_id]
        types = trace.input_types[types_id] if types_id >= 0 else ""
        try:
            args = arguments(dims, types)
            told = trace.concrete_inputs[concrete_id] if concrete_id >= 0 else ""
            values = msgspec.json.decode(told) if told else []
        except (ValueError, msgspec.DecodeError):
            return None
        shapes = tuple(a.shape for a in args[:2] if isinstance(a, Tensor))
        return work(
            trace.names[name_id],
            args,
            values if isinstance(values, list) else [],
            list_dtype=self._list_dtype,
            output=self._outputs.get(shapes),
        )

    def _repeated(self) -> Bool:
        """Which events are a forward pass that checkpointing repeats inside a backward pass."""
        trace, inside = self._trace, self._inside
        n = len(inside.rows)
        name = trace.name_id[inside.rows]
        forward = trace.name_table(lambda text: _FORWARD.match(text) is not None)[name]
        forward |= trace.name_table(
            lambda text: text.startswith("aten::_scaled_dot_product") and "backward" not in text
        )[name]
        node = trace.name_table(lambda text: text.startswith(_NODE))[name]
        # a user's own autograd.Function may call anything; torch's functions end in a digit
        torchs = trace.name_table(
            lambda text: text[-1:].isdigit() or text.endswith("CheckpointFunctionBackward")
        )[name]
        seen = forward.copy()
        result = np.zeros(n, dtype=np.bool_)
        open_ = np.ones(n, dtype=np.bool_)
        above = inside.parent.copy()
        while (open_ & (above >= 0)).any():
            here = np.flatnonzero(open_ & (above >= 0))
            up = above[here]
            ends = node[up]
            result[here[ends]] = seen[here[ends]] & torchs[up[ends]]
            open_[here[ends]] = False
            seen[here] |= forward[up]
            above[here] = inside.parent[up]
        return result

    def unknown(self) -> tuple[Unknown, ...]:
        """What was not counted, the longest recorded time first."""
        trace, inside = self._trace, self._inside
        spent: dict[tuple[str, str], int] = defaultdict(int)
        count: Counter[tuple[str, str]] = Counter()
        for at in self._without_work:
            row = int(inside.rows[at])
            key = trace.names[trace.name_id[row]], self._why(row)
            spent[key] += int(self._ns[at])
            count[key] += max(int(self._kernels[at]), 1) if trace.has_device else 1
        for name, ns in self._alone:
            key = name, _NO_SHAPES if is_known(name) else _NO_RULE
            spent[key] += ns
            count[key] += 1
        if not trace.has_device:
            for at, ns in zip(*(each.tolist() for each in self._uncounted()), strict=True):
                name = trace.names[trace.name_id[inside.rows[at]]]
                key = name, _NO_SHAPES if is_known(name) else _NO_RULE
                spent[key] += ns
                count[key] += 1
        found = [
            Unknown(op, count[op, why], ns / 1e3, why) for (op, why), ns in spent.items() if ns
        ]
        return tuple(sorted(found, key=lambda u: (-u.measured_us, u.op, u.why)))

    def _why(self, row: int) -> str:
        """Why the work of a call with shapes is not known."""
        trace = self._trace
        types = trace.input_types[trace.types_id[row]] if trace.types_id[row] >= 0 else ""
        try:
            args = arguments(trace.input_dims[trace.dims_id[row]], types)
        except ValueError:
            return _ODD_SHAPES
        lists = [one for one in args if isinstance(one, list)]
        if lists and not any(lists):
            return _LONG_LISTS
        if not self._list_dtype and any(not t.dtype for one in lists for t in one):
            return _NO_DTYPE
        return _ODD_SHAPES

    def _uncounted(self) -> tuple[Int64, Int64]:
        """Operators that do something and are in no counted one, and their own time in ns.

        A convolution on a CPU asks for memory first, a pooling fills its result: such an operator
        calls others and works itself. Its own time is what lies in none of those that count.
        """
        trace, inside = self._trace, self._inside
        name = trace.name_id[inside.rows]
        is_op = (trace.category[inside.rows] == Category.OP) & self._kept
        chosen = is_op & trace.name_table(_does_something)[name] & (self._owner < 0)
        counts = chosen.copy()
        counts[self._outermost] = True
        above = inside.parent_op.copy()
        while True:  # climb to the next one that counts
            climb = (above >= 0) & ~counts[np.maximum(above, 0)]
            if not climb.any():
                break
            above[climb] = inside.parent_op[above[climb]]
        own = self._ns.copy()
        inner = np.flatnonzero(counts & (above >= 0))
        np.subtract.at(own, above[inner], self._ns[inner])
        at: Int64 = np.flatnonzero(chosen)
        return at, np.maximum(own[at], 0)


def _does_something(name: str) -> bool:
    space, _, base = name.partition("::")
    if not base or space in ("autograd", "torch", "profiler"):
        return False
    return base not in NOTHING and base not in COMPOSITE


def _list_dtype(trace: Trace) -> str:
    """The dtype of the gradients, as autograd accumulates them: that of an optimizer's lists."""
    rows = np.flatnonzero(trace.holds("AccumulateGrad") & (trace.types_id >= 0))
    dtypes: Counter[str] = Counter()
    for dims_id, types_id in zip(trace.dims_id[rows], trace.types_id[rows], strict=True):
        try:
            args = arguments(trace.input_dims[dims_id], trace.input_types[types_id])
        except ValueError:
            continue
        dtypes.update(a.dtype for a in args[:1] if isinstance(a, Tensor))
    return dtypes.most_common(1)[0][0] if len(dtypes) == 1 else ""


def _convolution_outputs(trace: Trace) -> dict[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """(input, weight) → output, from the backward passes: older traces lack strides."""
    found: dict[tuple[tuple[int, ...], ...], set[tuple[int, ...]]] = defaultdict(set)
    for name, order in (
        ("aten::convolution_backward", (1, 2, 0)),
        ("aten::cudnn_convolution_backward", (0, 2, 1)),
    ):
        rows = np.flatnonzero(trace.named(name.__eq__) & (trace.dims_id >= 0))
        pairs = np.unique(np.stack([trace.dims_id[rows], trace.types_id[rows]], axis=1), axis=0)
        for dims_id, types_id in pairs.tolist():
            try:
                args = arguments(
                    trace.input_dims[dims_id], trace.input_types[types_id] if types_id >= 0 else ""
                )
                x, weight, out = (args[i].shape for i in order)
            except (ValueError, AttributeError, IndexError):
                continue
            found[x, weight].add(out)
    return {key: outs.pop() for key, outs in found.items() if len(outs) == 1}
