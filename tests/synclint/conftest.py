"""A played GPU: CUDA runtime calls inserted into the trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from perfkit.synclint.watch import SyncWatch
from perfkit.trace.record import record


@pytest.fixture(autouse=True)
def _distributions_check_what_they_are_given() -> Iterator[None]:
    """The first compile of a process turns these checks, which wait, off for good."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


def _encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return (
        outer is not inner
        and outer["name"] == inner["name"]
        and outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )


class FakeGpu:
    """Puts calls of the CUDA runtime into a trace.

    Attributes:
        traces: operators under which the trace shows a wait, with its copy (``""`` for none).
            Where it is empty the profiler sees no runtime calls, as without CUPTI.
    """

    def __init__(self) -> None:
        self.traces: dict[str, str] = {}

    def trace(self, raw: bytes) -> bytes:
        """The trace as a GPU's profiler would have recorded it."""
        data = json.loads(raw)
        events = data["traceEvents"]
        named = [e for e in events if e.get("ph") == "X" and e["name"] in self.traces]
        for number, event in enumerate(named):
            # ops that pass a dispatch mode appear twice; the kernel is in the inner one
            if any(_encloses(event, other) for other in named):
                continue
            copy = self.traces[event["name"]]
            args = {"External id": event["args"].get("External id", -1), "correlation": number}
            length = event["dur"]
            where = {"ph": "X", "pid": event["pid"], "tid": event["tid"], "args": args}
            wait = {**where, "cat": "cuda_runtime", "name": "cudaStreamSynchronize"}
            events.append({**wait, "ts": event["ts"] + 0.5 * length, "dur": 0.25 * length})
            if copy:
                call = {**where, "cat": "cuda_runtime", "name": "cudaMemcpyAsync"}
                events.append({**call, "ts": event["ts"] + 0.1 * length, "dur": 0.25 * length})
                moved = {**where, "cat": "gpu_memcpy", "name": copy, "pid": 0, "tid": 7}
                events.append({**moved, "ts": event["ts"] + 0.2 * length, "dur": 0.1 * length})
        return json.dumps(data).encode()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    if torch.cuda.is_available():
        pytest.skip("plays a GPU; here the profiler would see another one, too")
    fake = FakeGpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # the tensors stay on the CPU: pretend that one is on the GPU
    monkeypatch.setattr(SyncWatch, "saw_gpu", True, raising=False)
    init = SyncWatch.__init__

    def started(self: SyncWatch, model: nn.Module | None = None, **more: Any) -> None:
        init(self, model, **more)
        self.saw_gpu = True

    monkeypatch.setattr(SyncWatch, "__init__", started)
    raw_trace = record.raw_trace
    monkeypatch.setattr(record, "raw_trace", lambda profile: fake.trace(raw_trace(profile)))
    return fake
