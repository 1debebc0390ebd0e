from __future__ import annotations

import pytest
import torch

from perfkit.base.device import of
from perfkit.experiment.process import _memory_now
from perfkit.experiment.process._stopwatch import EventStopwatch, HostStopwatch, device_stopwatch


def ticking(times):
    left = iter(times)
    return lambda: next(left)


def test_the_host_stopwatch_leaves_out_what_lies_between_steps():
    watch = HostStopwatch(ticking([1.0, 1.002, 5.0, 5.003]))
    for _ in range(2):
        watch.begin()
        watch.end()
    assert watch.take() == pytest.approx([2.0, 3.0])
    assert watch.take() == []


def test_a_clock_that_goes_backwards_gives_no_negative_step():
    watch = HostStopwatch(ticking([5.0, 4.0]))
    watch.begin()
    watch.end()
    assert watch.take() == [0.0]


class Device:
    """A stream on which events are reached at given times."""

    def __init__(self, times_ms):
        self.times_ms = iter(times_ms)
        self.made = self.synchronised = 0

    def event(self):
        device = self
        device.made += 1

        class Event:
            def record(self, stream):
                assert stream == "the stream"
                self.at_ms = next(device.times_ms)

            def synchronize(self):
                device.synchronised += 1

            def elapsed_time(self, later):
                return later.at_ms - self.at_ms

        return Event()


def test_events_give_the_device_time_with_one_synchronisation_a_window():
    device = Device([0.0, 4.0, 9.0, 100.0, 103.0])
    watch = EventStopwatch(device.event, lambda: "the stream")
    for _ in range(2):
        watch.begin()
        watch.end()
    assert watch.take() == [4.0, 5.0]
    assert device.synchronised == 1
    watch.begin()
    watch.end()
    assert watch.take() == [3.0]  # time between the windows is in no step
    assert device.made == 3, "events are used again"
    assert watch.take() == []
    assert device.synchronised == 2


class PlayedCuda:
    """torch.cuda with three devices, the second without a context; the work is on the third."""

    def __init__(self, monkeypatch):
        self.peaks = {0: 5, 1: 0, 2: 900}
        self.recorded_on = []
        monkeypatch.setattr(torch, "cuda", self)
        monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda i: i != 1, raising=False)

    def is_initialized(self):
        return True

    def device_count(self):
        return 3

    def current_device(self):
        return 0

    def current_stream(self, device):
        return f"stream of {device}"

    def memory_allocated(self, device):
        return self.peaks[device] // 2

    def max_memory_allocated(self, device):
        return self.peaks[device]

    def Event(self, *, enable_timing):  # noqa: N802 - torch's name
        assert enable_timing
        played = self

        class Event:
            def record(self, stream):
                played.recorded_on.append(stream)

        return Event()


def test_time_and_memory_are_those_of_the_device_that_does_the_work(monkeypatch):
    played = PlayedCuda(monkeypatch)
    device = _memory_now.busiest_gpu(of("cuda"))
    assert device == 2
    watch = device_stopwatch(of("cuda"), device)
    watch.begin()
    watch.end()
    assert played.recorded_on == ["stream of 2", "stream of 2"]
    memory = _memory_now.AllocatorMemory(of("cuda"), device)
    assert (memory.now(), memory.peak()) == (450, 900)
    played.peaks[2] = 5
    assert _memory_now.busiest_gpu(of("cuda")) == 0, "torch's current one where none has more"
