"""Signals wait until perfkit has put in place, or taken away, what belongs together."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from perfkit.base.uninterrupted import Uninterrupted

pytestmark = pytest.mark.usefixtures("python_handles_ctrl_c")


def _done_before_it_is_raised(*numbers: signal.Signals, nested: bool = False) -> list[int]:
    """The signals after which the work went on."""
    done: list[int] = []

    def work() -> None:
        with Uninterrupted():
            for number in numbers:
                if nested:
                    with Uninterrupted():
                        signal.raise_signal(number)
                else:
                    signal.raise_signal(number)
                done.append(number)

    with pytest.raises(KeyboardInterrupt):
        work()
    return done


def test_ctrl_c_is_raised_at_the_end() -> None:
    assert _done_before_it_is_raised(signal.SIGINT) == [signal.SIGINT]
    assert len(_done_before_it_is_raised(signal.SIGINT, signal.SIGINT)) == 2


def test_an_outer_block_holds_it_longer() -> None:
    assert len(_done_before_it_is_raised(signal.SIGINT, nested=True)) == 1


def test_who_presses_it_a_third_time_is_heard_at_once() -> None:
    assert len(_done_before_it_is_raised(*[signal.SIGINT] * 4)) == 2


def test_each_of_two_signals_comes_through() -> None:
    came = []

    def note(number: int, frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, note)
    try:
        assert len(_done_before_it_is_raised(signal.SIGTERM, signal.SIGINT)) == 2
        assert came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is note
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_as_handlers_are_put_back_keeps_none_of_them_held(
    first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(number: int, frame: Any) -> None:
        raise SystemExit

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: ends}
    really: Any = vars(sys.modules["_signal"])["signal"]

    def comes_at_once(number: signal.Signals, handler: Any) -> Any:
        was = really(number, handler)
        if number == first and handler is handlers[first]:
            signal.raise_signal(number)
        return was

    before = really(signal.SIGTERM, ends)
    try:
        block = Uninterrupted()
        block.__enter__()
        monkeypatch.setattr("_signal.signal", comes_at_once)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            block.__exit__()
        monkeypatch.undo()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        really(signal.SIGTERM, before)


def test_what_nobody_handles_in_python_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Uninterrupted():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_that_came_meanwhile_stays() -> None:
    def other(number: int, frame: Any) -> None:
        pass

    with Uninterrupted():
        signal.signal(signal.SIGINT, other)
    assert signal.getsignal(signal.SIGINT) is other
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_another_thread_is_left_alone() -> None:
    seen = []

    def work() -> None:
        with Uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
