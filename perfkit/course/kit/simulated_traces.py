"""Simulated Kineto traces, built event by event: small enough to compute by hand.

Times are µs. Nothing here was measured. The tests use these; the lesson's simulated GPU
(:mod:`perfkit.course.kit.simulated_gpu`) writes its traces with :class:`Simulated`.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

HOST, ENGINE, STREAM = 100, 101, 7
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class Simulated:
    """A trace built event by event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    def host(
        self,
        name: str,
        start: float,
        dur: float,
        cat: str = "cpu_op",
        tid: int | str = HOST,
        **args: Any,
    ) -> int:
        """Add an op or label on the host; return its external id. ``args`` are the event's args."""
        external = self._next()
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": HOST,
                "tid": tid,
                "ts": start,
                "dur": dur,
                "args": {"External id": external, **args},
            }
        )
        return external

    def label(self, name: str, start: float, dur: float, tid: int = HOST) -> int:
        """Add a label on the host, as from ``record_function``; return its external id."""
        return self.host(name, start, dur, "user_annotation", tid)

    def step(self, number: int, start: float, dur: float) -> None:
        """Add the profiler's mark around one step."""
        self.label(f"ProfilerStep#{number}", start, dur)

    def call(self, name: str, start: float, dur: float, external: int = -1, tid: int = HOST) -> int:
        """Add a runtime call; return its correlation id."""
        correlation = self._next() + 10_000
        self.events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": name,
                "pid": HOST,
                "tid": tid,
                "ts": start,
                "dur": dur,
                "args": {"External id": external, "correlation": correlation},
            }
        )
        return correlation

    def device(
        self,
        name: str,
        start: float,
        dur: float,
        correlation: int,
        cat: str = "kernel",
        device: int = 0,
        **args: Any,
    ) -> None:
        """Add a kernel, copy or memset on the device."""
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": device,
                "tid": STREAM,
                "ts": start,
                "dur": dur,
                "args": {"correlation": correlation, "device": device, "stream": STREAM, **args},
            }
        )

    def kernel(
        self, op: str, launch: float, start: float, dur: float, name: str = "sgemm", tid: int = HOST
    ) -> None:
        """Add an op of 10 µs that launches one kernel, which starts at ``start`` on the device."""
        external = self.host(op, launch, 10, tid=tid)
        self.device(name, start, dur, self.call("cudaLaunchKernel", launch + 2, 5, external, tid))

    def copy(
        self, kind: str, call: float, call_dur: float, start: float, dur: float, n_bytes: int = 4096
    ) -> None:
        """``aten::copy_`` with its transfer: ``HtoD (Pageable -> Device)`` and the like."""
        external = self.host("aten::copy_", call - 1, call_dur + 2)
        correlation = self.call("cudaMemcpyAsync", call, call_dur, external)
        self.device(f"Memcpy {kind}", start, dur, correlation, "gpu_memcpy", bytes=n_bytes)

    def item(self, call: float, call_dur: float) -> None:
        """``.item()``: a copy to the host that waits until the device has finished."""
        self.host("aten::item", call - 2, call_dur + 4)
        external = self.host("aten::_local_scalar_dense", call - 1, call_dur + 2)
        correlation = self.call("cudaMemcpyAsync", call, call_dur, external)
        end = call + call_dur
        self.device(
            "Memcpy DtoH (Device -> Pageable)", end - 2, 1, correlation, "gpu_memcpy", bytes=4
        )

    def json(self, form: str = "object") -> bytes:
        """The trace as file content; ``form="list"`` as in traces of 2019."""
        if form == "list":
            return json.dumps(self.events).encode()
        top = {"schemaVersion": 1, "traceName": "simulated", "traceEvents": self.events}
        return json.dumps(top).encode()

    def gz(self) -> bytes:
        """The trace, compressed."""
        return gzip.compress(self.json())


def cpu_training(
    n_steps: int = 4,
    *,
    wait: float = 0,
    forward: float = 300,
    backward: float = 500,
    optimizer: float = 50,
    python: float = 20,
    loader: str = WORKERS,
) -> Simulated:
    """Steps on a CPU: data wait, Python, forward, backward, optimizer; healthy by default."""
    sim = Simulated()
    at = 1_000.0
    for number in range(n_steps):
        begin = at
        if wait:
            sim.label(loader, at, wait)
            at += wait
        at += python
        sim.host("aten::conv2d", at, forward)
        at += forward
        sim.host("autograd::engine::evaluate_function: ConvolutionBackward0", at, backward)
        sim.host("aten::convolution_backward", at + 5, backward - 10)
        at += backward
        sim.label("Optimizer.step#AdamW.step", at, optimizer)
        sim.host("aten::_fused_adamw_", at + 5, optimizer - 10)
        at += optimizer
        sim.step(number, begin, at - begin)
    return sim


def gpu_training(
    n_steps: int = 4,
    *,
    n_kernels: int = 10,
    kernel: float = 95,
    every: float = 100,
    launch_ahead: bool = True,
    wait: float = 0,
    copy: str = "",
    copy_call: float = 0,
    item: bool = False,
    restart: float = 0,
    python: float = 0,
    loader: str = SINGLE,
) -> Simulated:
    """Steps on a GPU: ``n_kernels`` kernels of ``kernel`` µs, one every ``every`` µs.

    With ``launch_ahead`` the host is ahead of the device; else each kernel starts 8 µs after
    its launch. ``wait``, ``python`` and ``copy_call`` are host times before the first kernel, in
    which the device idles; ``item`` ends the step with a wait for the device, after which
    ``restart`` µs pass on the host before the next step launches anything.
    """
    sim = Simulated()
    at = 1_000.0
    for number in range(n_steps):
        begin = at
        if wait:
            sim.label(loader, at, wait)
            at += wait
        at += python
        if copy:
            sim.copy(copy, at + 1, copy_call, at + copy_call - 6, 5)
            at += copy_call + 2
        if item:
            sim.host("aten::relu", at, restart)
            at += restart
        for i in range(n_kernels):
            start = at + 10 + i * every
            launch = at + i * 10 if launch_ahead else start - 8
            sim.kernel("aten::linear", launch, start, kernel)
        end = at + 10 + n_kernels * every
        if item:
            called = at + n_kernels * 10 + 5
            sim.item(called, end - called)
        at = end
        sim.step(number, begin, at - begin)
    return sim
