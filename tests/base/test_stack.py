"""The stack of another thread, and that nobody looks at it while torch compiles there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from perfkit.base.stack import levels_of, stack_of
from perfkit.base.torch_compat import compiles_now


def test_it_is_that_of_the_thread() -> None:
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


def test_while_torch_compiles_nobody_looks() -> None:
    """Such a look ended the process in one of some hundred compilations."""
    seen: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        seen.extend((compiles_now(), bool(stack_of(threading.get_ident()))))
        return graph.forward

    assert not compiles_now()
    compiled = torch.compile(lambda x: x + 1, backend=backend)  # type: ignore[call-overload]
    compiled(torch.ones(2))
    assert seen == [True, False]
    assert not compiles_now()
    assert stack_of(threading.get_ident())
    torch._dynamo.reset()
