"""The stack of another thread, of which no frame is kept."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

from perfkit.base.stack import levels_of, stack_of


def test_it_is_that_of_the_thread_and_no_frame_is_kept() -> None:
    here, goes_on = threading.Event(), threading.Event()
    frames: list[FrameType] = []

    def inner() -> None:
        frames.append(sys._getframe())
        here.set()
        goes_on.wait()

    thread = threading.Thread(target=lambda: inner())
    thread.start()
    here.wait()
    try:
        found = stack_of(thread.ident or 0)
        names = [one.code.co_name for one in found]
        own = names.index("inner")
        expected = levels_of(frames[0])
        assert found[own].line is not None
        # where it is within `inner` moves on from `here.set()` to the wait
        assert [(one.code, one.line) for one in found[own + 1 :]] == [
            (one.code, one.line) for one in expected[1:]
        ]
        assert found[own].names is globals()
        # the test itself, and the thread in whose function it is called
        assert not [
            one
            for one in gc.get_referrers(frames[0])
            if isinstance(one, list | tuple) and one is not frames
        ]
    finally:
        goes_on.set()
        thread.join()


def test_a_thread_that_has_ended_has_none() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert stack_of(thread.ident or 0) == []


def test_of_this_thread_it_begins_with_itself() -> None:
    found = stack_of(threading.get_ident())
    assert [one.code.co_name for one in found[:2]] == ["stack_of", sys._getframe().f_code.co_name]
