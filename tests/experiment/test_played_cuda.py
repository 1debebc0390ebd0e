"""The recorder of a run against a played GPU: what it asks of torch.cuda, and what it tells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from perfkit.experiment.process import worker
from perfkit.experiment.process.loader_wait import LoaderWait

MIB = 2**20


class _Cuda:
    """torch.cuda with two devices; the work, 7 ms a step, is on the second."""

    def __init__(self):
        self.ms = itertools.count(0.0, 7.0)
        self.waited_for = []

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return 0

    def synchronize(self, device):
        self.waited_for.append(device)

    def max_memory_allocated(self, device):
        return (0, 30 * MIB)[device]

    def memory_allocated(self, device):
        return (0, 20 * MIB)[device]

    def current_stream(self, device):
        return device

    def Event(self, *, enable_timing):  # noqa: N802 - torch's name
        played = self

        class Event:
            def record(self, stream):
                assert stream == 1
                self.at_ms = next(played.ms)

            def synchronize(self):
                played.waited_for.append("event")

            def elapsed_time(self, later):
                return later.at_ms - self.at_ms

        return Event()


class _Told:
    def __init__(self):
        self.points = []

    def say(self, kind, **content):
        if kind == "points":
            self.points.append(content)


class _Commands:
    def finish_asked(self):
        return False

    def park_asked(self):
        return False


@pytest.fixture
def cuda(monkeypatch):
    played = _Cuda()
    monkeypatch.setattr(torch, "cuda", played)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    return played


def test_a_run_tells_the_time_and_memory_of_the_gpu(cuda):
    told = _Told()
    with LoaderWait() as loader:
        recorder = worker._Recorder(told, loader)
        ended = recorder.follow(iter([8, 8, 8, 8]), _Commands())
        recorder.send()
    assert ended == "ended"
    assert cuda.waited_for[:2] == [0, 1]  # the first step is over when both devices are
    step_ms = np.concatenate([np.frombuffer(p["step_ms"]) for p in told.points])
    assert step_ms[1:].tolist() == [7.0, 7.0, 7.0]  # by the device's clock, after the first
    last = told.points[-1]
    assert (last["memory_kind"], last["peak_kind"]) == (
        "CUDA memory allocated",
        "peak CUDA memory allocated",
    )
    assert last["peak_bytes"] == 30 * MIB
    assert np.frombuffer(last["memory_bytes"], np.int64).tolist() == [20 * MIB] * 3
