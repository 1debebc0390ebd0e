"""A training step on a simulated GPU: the timeline of host and device, from stated assumptions.

The host runs a Python loop, operator by operator, and launches kernels into a queue; the device
executes them in order. Nothing here is measured. The rules:

* a kernel takes ``max(shortest, FLOPs / FLOP rate, bytes / byte rate)``;
* it starts when its launch has arrived and the previous kernel has ended;
* an operator takes a fixed time on the host, however small its kernel is;
* ``.item()`` makes the host wait until the device has finished everything launched;
* a copy from pageable memory makes it wait until the copy is done, one from pinned memory does not;
* the queue holds a limited number of launches; a full one makes the host wait.

A simulation can answer what no recording can: how long would the same step take without its loader,
or without its syncs? See :func:`what_if`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from perfkit.base.errors import UsageError
from perfkit.course.kit.simulated_traces import ENGINE, HOST, SINGLE, Simulated
from perfkit.trace.read.columns import Trace
from perfkit.trace.read.load import load

#: What a simulated step can be bound by.
BOUNDS = ("data", "launch", "sync", "copy", "compute")

# A cause that costs less does not bound a step: without it the step would be less than a quarter
# faster (the same fifth of the step as in perfkit's verdicts).
_BOUND_FROM = 1.25
_FLOAT = 4  # bytes
# Steady state: per step, the device falls behind the host by less than this share of a step. A host
# that is barely ahead fills the queue slowly, but in fewer steps than this.
_STEADY = 1e-3
_MOST_WARM_UP = 3_000


@dataclass(frozen=True)
class SimulatedGpu:
    """The properties of the device.

    Attributes:
        tflop_per_s: rate of matrix products, 10¹² FLOP/s.
        gb_per_s: rate at which kernels read and write memory, 10⁹ B/s.
        link_gb_per_s: rate of copies from the host, 10⁹ B/s.
        shortest_us: minimum time of a kernel.
        arrives_us: time from the return of a launch until an idle device can start it.
        gap_us: gap between two queued kernels.
        queue: capacity of the launch queue.
    """

    tflop_per_s: float = 20.0
    gb_per_s: float = 600.0
    link_gb_per_s: float = 12.0
    shortest_us: float = 3.0
    arrives_us: float = 2.0
    gap_us: float = 1.0
    queue: int = 1024


@dataclass(frozen=True)
class SimulatedTraining:
    """A loop that trains ``layers`` linear layers, each followed by elementwise operators.

    Attributes:
        batch: rows of a batch.
        width: inputs and outputs of each layer.
        layers: number of layers.
        elementwise: elementwise operators after each layer, each with its own kernel.
        op_us: host time of an operator around its launches.
        launch_us: host time of one launch.
        loader_us: how long the host waits for its next batch.
        input_bytes: bytes of a batch that the host sends; 0 means batch · width floats.
        pinned: whether the batch is in pinned memory.
        items: ``.item()`` calls between forward and backward.
        python_us: Python time after each of these.
        item_at_end: one more ``.item()`` after the optimizer, for the log.
    """

    batch: int = 1024
    width: int = 512
    layers: int = 24
    elementwise: int = 1
    op_us: float = 8.0
    launch_us: float = 4.0
    loader_us: float = 50.0
    input_bytes: int = 0
    pinned: bool = True
    items: int = 0
    python_us: float = 0.0
    item_at_end: bool = False

    def __post_init__(self) -> None:
        if min(self.batch, self.width, self.layers) < 1:
            raise UsageError("batch, width and layers must be at least 1")
        rest = (self.elementwise, self.op_us, self.launch_us, self.loader_us, self.input_bytes)
        if min(*rest, self.items, self.python_us) < 0:
            raise UsageError("no count or time of a simulated training can be negative")

    @property
    def sent_bytes(self) -> int:
        """Bytes of one batch."""
        return self.input_bytes or self.batch * self.width * _FLOAT

    @property
    def flops(self) -> float:
        """FLOPs of a step: one product forward and two backward per layer."""
        return 3 * self.layers * 2.0 * self.batch * self.width**2


def simulate(
    training: SimulatedTraining, *, gpu: SimulatedGpu | None = None, steps: int = 4
) -> Trace:
    """The trace of some steps in their steady state; each step's mark says that it is simulated.

    Args:
        training: the loop.
        gpu: the device; by default :class:`SimulatedGpu` with its defaults.
        steps: number of marked steps; those before them fill the launch queue.

    Raises:
        UsageError: ``steps`` is less than 1.
    """
    if steps < 1:
        raise UsageError(f"a simulated training needs at least one step, got {steps}")
    run = _Run(training, gpu or SimulatedGpu())
    run.train(steps)
    return replace(load(run.json()), source="simulated")


def what_if(training: SimulatedTraining, *, gpu: SimulatedGpu | None = None) -> dict[str, float]:
    """How many times as fast the step would be without each cause: cause → ratio.

    ``data``: the batch is available at once; ``launch``: operators cost the host (almost) nothing;
    ``sync``: no ``.item()`` (the Python after it stays); ``copy``: the batch is already on the
    device; ``compute``: a device with twice the rates.
    """
    device = gpu or SimulatedGpu()
    now = _step_us(training, device)
    twice = replace(
        device,
        tflop_per_s=2 * device.tflop_per_s,
        gb_per_s=2 * device.gb_per_s,
        shortest_us=device.shortest_us / 2,
    )
    without = {
        "data": (replace(training, loader_us=0), device),
        "launch": (replace(training, op_us=0.1, launch_us=0.1), device),
        "sync": (_without_syncs(training), device),
        "copy": (replace(training, pinned=True), replace(device, link_gb_per_s=1e9)),
        "compute": (training, twice),
    }
    return {cause: now / _step_us(*other) for cause, other in without.items()}


def what_bounds(training: SimulatedTraining) -> str:
    """The cause whose removal helps most; ``compute`` if none would help much."""
    ratios = {cause: r for cause, r in what_if(training).items() if cause != "compute"}
    worst = max(ratios, key=lambda cause: ratios[cause])
    return worst if ratios[worst] >= _BOUND_FROM else "compute"


def _between(begin: float, end: float) -> tuple[float, float]:
    """Start and duration in whole ns: adjacent events stay adjacent after rounding."""
    start = round(begin, 3)
    return start, round(round(end, 3) - start, 3)


def _without_syncs(training: SimulatedTraining) -> SimulatedTraining:
    """The same Python at the start of the step, without waits for the device."""
    return replace(
        training,
        items=0,
        item_at_end=False,
        loader_us=training.loader_us + training.items * training.python_us,
    )


@lru_cache(maxsize=512)
def _step_us(training: SimulatedTraining, gpu: SimulatedGpu) -> float:
    """Length of a step in its steady state."""
    run = _Run(training, gpu, record=False)
    run.train(4)
    return (run.marks[-1][1] - run.marks[0][0]) / len(run.marks)


@dataclass
class _Run:
    """The simulated clock: the host's time, and until when the device is busy."""

    training: SimulatedTraining
    gpu: SimulatedGpu
    record: bool = True
    sim: Simulated = field(default_factory=Simulated)
    now: float = 1_000.0
    device_free: float = 0.0
    starts: list[float] = field(default_factory=list)  # of every kernel, to limit the queue
    marks: list[tuple[float, float]] = field(default_factory=list)

    def json(self) -> bytes:
        """The trace as file content."""
        top = {
            "schemaVersion": 1,
            "traceName": "simulated",
            "deviceProperties": [{"id": 0, "name": "a simulated GPU"}],
            "traceEvents": self.sim.events,
        }
        return json.dumps(top).encode()

    def train(self, n: int) -> None:
        """Run ``n`` marked steps in the steady state, after the steps that lead to it."""
        t = self.training
        record, self.record = self.record, False
        number, behind = 0, -1.0
        for number in range(_MOST_WARM_UP):
            begin = self.now
            self._step()
            behind, before = self.device_free - self.now, behind
            if number and abs(behind - before) <= _STEADY * (self.now - begin):
                break
        self.record = record
        launches = t.layers * (3 + 2 * t.elementwise) + 5
        n_before = 1 + math.ceil(self.gpu.queue / launches)
        for i in range(n_before + n):
            begin = self.now
            self._step()
            if i >= n_before:
                self.marks.append((begin, self.now))
                self._label(f"ProfilerStep#{number + 1 + i} (simulated)", begin)

    def _step(self) -> None:
        t = self.training
        begin = self.now
        self.now += t.loader_us
        self._label(SINGLE, begin)
        self._send(t.sent_bytes)
        for _ in range(t.layers):
            self._forward()
        self._op("aten::log_softmax", [self._memory(2)], name="softmax")
        self._op("aten::nll_loss_forward", [self._memory(1)], name="nll_loss")
        for _ in range(t.items):
            self._item()
            self.now += t.python_us
        self._op("aten::nll_loss_backward", [self._memory(1)], "NllLossBackward0", name="nll_loss")
        self._op(
            "aten::_log_softmax_backward_data", [self._memory(3)], "LogSoftmaxBackward0", "softmax"
        )
        for _ in range(t.layers):
            self._backward()
        begin = self.now
        self.now += 10
        # AdamW reads parameter, gradient and two moments, and writes all but the gradient
        weights = t.layers * t.width**2 * _FLOAT
        self._op("aten::_fused_adamw_", [7 * weights / self.gpu.gb_per_s / 1e3], name="adamw")
        self._label("Optimizer.step#AdamW.step", begin)
        if t.item_at_end:
            self._item()

    def _forward(self) -> None:
        t = self.training
        shapes = [[t.width], [t.batch, t.width], [t.width, t.width]]
        begin = self.now
        self.now += 2
        self._op("aten::addmm", [self._product()], shapes=shapes, name="sgemm")
        self.now += 1
        if self.record:
            self.sim.host("aten::linear", *_between(begin, self.now))
        for _ in range(t.elementwise):
            self._op("aten::relu", [self._memory(2)], name="vectorized_elementwise")

    def _backward(self) -> None:
        t = self.training
        for _ in range(t.elementwise):
            node = "ReluBackward0"
            self._op("aten::threshold_backward", [self._memory(3)], node, "vectorized_elementwise")
        begin = self.now
        self.now += 3
        for shapes in (
            [[t.batch, t.width], [t.width, t.width]],  # gradient of the input
            [[t.width, t.batch], [t.batch, t.width]],  # gradient of the weight
        ):
            self._op("aten::mm", [self._product()], None, "sgemm", shapes, tid=ENGINE)
        self.now += 1
        self._node("AddmmBackward0", begin)

    def _product(self) -> float:
        """µs of one matrix product: (batch, width) by (width, width) or equivalent."""
        t, gpu = self.training, self.gpu
        n_bytes = (2 * t.batch * t.width + t.width**2) * _FLOAT
        flops_us = 2.0 * t.batch * t.width**2 / gpu.tflop_per_s / 1e6
        return max(flops_us, n_bytes / gpu.gb_per_s / 1e3)

    def _memory(self, n: int) -> float:
        """µs for a kernel to read or write ``n`` activations."""
        t = self.training
        return n * t.batch * t.width * _FLOAT / self.gpu.gb_per_s / 1e3

    def _op(
        self,
        op: str,
        kernels: Sequence[float],
        node: str | None = None,
        name: str = "kernel",
        shapes: Sequence[Sequence[int]] = (),
        *,
        tid: int = HOST,
    ) -> None:
        """An operator that launches kernels of these µs each; with ``node``, under autograd."""
        t = self.training
        thread = ENGINE if node else tid
        begin = self.now
        self.now += t.op_us / 2
        calls = [self._launch(us) for us in kernels]
        self.now += t.op_us / 2
        if self.record:
            args: dict[str, Any] = {"Input Dims": shapes} if shapes else {}
            external = self.sim.host(op, *_between(begin, self.now), tid=thread, **args)
            for call, returned, start, end in calls:
                self._record_kernel(name, call, returned, start, end, external, thread)
        if node:
            self._node(node, begin)

    def _record_kernel(
        self,
        name: str,
        call: float,
        returned: float,
        start: float,
        end: float,
        external: int,
        tid: int,
    ) -> None:
        correlation = self.sim.call("cudaLaunchKernel", *_between(call, returned), external, tid)
        self.sim.device(name, *_between(start, end), correlation)

    def _launch(self, us: float) -> tuple[float, float, float, float]:
        """One launch; return the times of call, return, kernel start and kernel end."""
        gpu = self.gpu
        call = self.now
        self.now += self.training.launch_us
        if len(self.starts) >= gpu.queue:
            self.now = max(self.now, self.starts[-gpu.queue])
        start = max(self.now + gpu.arrives_us, self.device_free + gpu.gap_us)
        end = start + max(us, gpu.shortest_us)
        self.starts.append(start)
        self.device_free = end
        return call, self.now, start, end

    def _item(self) -> None:
        """``.item()``: the host waits for the device, then for four bytes."""
        begin = self.now
        call = begin + 2
        copied = max(call + self.gpu.arrives_us, self.device_free + self.gpu.gap_us)
        self.device_free = copied + 1
        self.now = copied + 3
        if self.record:
            self.sim.host("aten::item", *_between(begin, self.now + 2))
            name = "aten::_local_scalar_dense"
            external = self.sim.host(name, *_between(begin + 1, self.now + 1))
            correlation = self.sim.call("cudaMemcpyAsync", *_between(call, self.now), external)
            kind = "Memcpy DtoH (Device -> Pageable)"
            times = _between(copied, copied + 1)
            self.sim.device(kind, *times, correlation, "gpu_memcpy", bytes=_FLOAT)
        self.now += 2

    def _send(self, n_bytes: int) -> None:
        """Copy the batch to the device; from pageable memory, the host waits for the end."""
        begin = self.now
        call = begin + 2
        start = max(call + self.gpu.arrives_us, self.device_free + self.gpu.gap_us)
        us = n_bytes / self.gpu.link_gb_per_s / 1e3
        self.device_free = start + us
        pinned = self.training.pinned
        self.now = call + self.training.launch_us if pinned else self.device_free + 2
        if self.record:
            external = self.sim.host("aten::copy_", *_between(begin, self.now + 2))
            correlation = self.sim.call("cudaMemcpyAsync", *_between(call, self.now), external)
            kind = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
            times = _between(start, start + us)
            self.sim.device(kind, *times, correlation, "gpu_memcpy", bytes=n_bytes)
        self.now += 2

    def _node(self, node: str, begin: float) -> None:
        if self.record:
            name = f"autograd::engine::evaluate_function: {node}"
            self.sim.host(name, *_between(begin, self.now), tid=ENGINE)

    def _label(self, name: str, begin: float) -> None:
        if self.record:
            self.sim.label(name, *_between(begin, self.now))
