"""The stack of another thread, and what must not happen while somebody looks at it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
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


_BESIDE_A_COLLECTION = """
import gc, sys, threading, time
from perfkit.base.stack import stack_of

def lets_others_run(phase, info):
    if threading.get_ident() == looker.ident:
        time.sleep(1e-4)

def deep(n):
    return n and deep(n - 1)

def broad(n, a=0, b=0, c=0):  # where the frames of `deep` were, it leaves others
    return n and broad(n - 1, a, b, c)

def look():
    for _ in range(300):
        seen.append(len(stack_of(threading.main_thread().ident)))

seen = []
looker = threading.Thread(target=look)
gc.callbacks.append(lets_others_run)
gc.set_threshold(1)
gc.freeze()
sys.setswitchinterval(1e-4)
looker.start()
while looker.is_alive():
    deep(30)
    broad(20)
assert gc.isenabled()
print(len(seen), max(seen) > 1)
"""


def test_a_collection_does_not_let_the_thread_go_on_under_a_look() -> None:
    """The frame that ``f_back`` made an object for was gone then: a crash within some looks."""
    said = subprocess.run(
        [sys.executable, "-c", _BESIDE_A_COLLECTION], capture_output=True, text=True
    )
    assert (said.returncode, said.stdout) == (0, "300 True\n"), said.stderr


def test_who_has_switched_collections_off_finds_them_off() -> None:
    gc.disable()
    try:
        stack_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()


_FORKED_BESIDE_LOOKS = """
import gc, os, threading
from perfkit.base.stack import stack_of

def look():
    while not ends.is_set():
        stack_of(own)

own, ends = threading.get_ident(), threading.Event()
looker = threading.Thread(target=look)
looker.start()
codes = []
for _ in range(50):
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() and stack_of(own) else 1)
    codes.append(os.waitpid(child, 0)[1])
ends.set()
looker.join()
print(set(codes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_beside_looks_collects_and_looks() -> None:
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKED_BESIDE_LOOKS],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.stdout == "{0}\n", said.stderr
