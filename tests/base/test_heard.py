"""No signal is lost where Python calls perfkit from a place that cannot raise."""

from __future__ import annotations

import _thread
import gc
import operator
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.base.collector import CollectorTime
from perfkit.base.instrument import Instrument
from perfkit.base.uninterrupted import hear, raised_by_handler
from perfkit.memory.account import Accountant
from perfkit.synclint.connections import Connections
from perfkit.trace.record.deadline import call_in_main_thread

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def _press_and(call: Callable[[], Any], number: signal.Signals = signal.SIGINT) -> None:
    """Ctrl-C, then this call, with no instruction of Python's between them; then the code goes on.

    A signal that is sent again comes within a millisecond.
    """
    press = partial(_thread.interrupt_main, number)  # os.kill would call the handler itself
    calls: tuple[Callable[[], Any], ...] = (press, call)
    both: Any = map(operator.call, calls)
    deque(both, maxlen=0)
    _go_on()


def _go_on() -> None:
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        time.sleep(0.01)


def test_ctrl_c_as_a_counted_tensor_is_freed_reaches_the_loop() -> None:
    accountant = Accountant()

    def region() -> None:
        with accountant:
            tensors = [torch.rand(1000)]
            _press_and(tensors.clear)

    with pytest.raises(KeyboardInterrupt):
        region()
    (device,) = accountant.result.devices
    assert device.left_behind_bytes == 0  # and the freed tensor is booked


def test_ctrl_c_as_a_storage_of_the_sync_lint_dies_reaches_the_loop() -> None:
    connections = Connections()
    tensors = [torch.rand(10)]
    spot = connections.spot(tensors[0])
    with pytest.raises(KeyboardInterrupt):
        _press_and(tensors.clear)
    for _ in range(10):  # perhaps at the same address
        tensors = [torch.rand(10)]
        assert connections.spot(tensors[0]) is not spot


@pytest.fixture
def no_other_callbacks() -> Iterator[None]:
    """Of the collector: what falls into one that hypothesis leaves is not perfkit's.

    Nor is what falls into ``__del__`` of garbage from earlier tests.
    """
    gc.collect()
    before = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("no_other_callbacks")
def test_ctrl_c_in_a_garbage_collection_comes_right_after_it() -> None:
    pauses = CollectorTime()
    pauses.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _press_and(gc.collect)
    finally:
        pauses.stop()
    assert pauses.instrument.failure is None


def test_ctrl_c_as_a_watched_loop_is_left_comes_right_after_it() -> None:
    watched = iter(perfkit.watch(DataLoader(TensorDataset(torch.rand(8, 2)))))
    next(watched)
    box = [watched]
    del watched
    with pytest.raises(KeyboardInterrupt):
        _press_and(box.clear)


def test_ctrl_c_in_work_for_the_main_thread_comes_right_after_it() -> None:
    done = []

    def work() -> None:
        done.append("begun")
        signal.raise_signal(signal.SIGINT)

    threading.Timer(0.2, call_in_main_thread, args=(work,)).start()
    with pytest.raises(KeyboardInterrupt):
        _go_on()
    assert done == ["begun"]


class _Alarm:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too slow")

    def method(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too slow")


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("too slow")


def _alarm_of(name: str, number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"{name} is too slow")


@pytest.mark.parametrize(
    "handler",
    [_alarm, _Alarm(), _Alarm().method, partial(_alarm_of, "a page")],
    ids=["function", "object", "method", "partial"],
)
def test_a_handler_of_the_users_is_no_failure_of_the_instrument(handler: Any) -> None:
    signal.signal(signal.SIGALRM, handler)
    instrument = Instrument("the test")

    def work() -> None:
        signal.raise_signal(signal.SIGALRM)

    with pytest.raises(TimeoutError):
        instrument.hook(work)()
    with pytest.raises(TimeoutError), instrument.guard("working"):
        work()
    assert instrument.failure is None

    def breaks() -> None:
        raise TimeoutError("ours")

    instrument.hook(breaks)()
    assert instrument.failure is not None


@pytest.mark.usefixtures("no_other_callbacks")
def test_an_alarm_in_a_garbage_collection_comes_right_after_it() -> None:
    signal.signal(signal.SIGALRM, _alarm)
    pauses = CollectorTime()
    pauses.start()
    try:
        with pytest.raises(TimeoutError):
            _press_and(gc.collect, signal.SIGALRM)
    finally:
        pauses.stop()
    assert pauses.instrument.failure is None


def test_errors_that_are_no_signals_are_shown_as_before() -> None:
    seen = []
    sys.unraisablehook = lambda unraisable: seen.append(unraisable.exc_value)
    import perfkit.base.uninterrupted as heard

    heard._hook = None
    hear()
    try:

        class Breaks:
            def __del__(self) -> None:
                raise ValueError("the user's")

        class Stops:
            def __del__(self) -> None:
                raise KeyboardInterrupt  # in code of the user's

        Breaks()
        Stops()
    finally:
        heard._hook = None
    assert [type(error) for error in seen] == [ValueError, KeyboardInterrupt]


def test_an_error_knows_its_signal() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGINT)
    assert raised_by_handler(caught.value) == signal.SIGINT
    assert raised_by_handler(ValueError("no traceback")) is None
