from __future__ import annotations

import pytest

from perfkit.experiment._stopwatch import EventStopwatch, HostStopwatch


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
            def record(self):
                self.at_ms = next(device.times_ms)

            def synchronize(self):
                device.synchronised += 1

            def elapsed_time(self, later):
                return later.at_ms - self.at_ms

        return Event()


def test_events_give_the_device_time_with_one_synchronisation_a_window():
    device = Device([0.0, 4.0, 9.0, 100.0, 103.0])
    watch = EventStopwatch(device.event)
    for _ in range(2):
        watch.begin()
        watch.end()
    assert watch.take() == [4.0, 5.0]
    assert device.synchronised == 1
    watch.begin()
    watch.end()
    assert watch.take() == [3.0]  # what lay between the windows is in no step
    assert device.made == 3, "events are used again"
    assert watch.take() == []
    assert device.synchronised == 2
