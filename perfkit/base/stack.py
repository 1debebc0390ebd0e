"""What a thread runs, as another one may ask while it goes on.

While torch.compile works on a function, the frames of its thread cannot be looked at: that ended
the process in about one of 400 compilations (Python 3.11, torch 2.13, a busy machine; the frame
that is compiled has no code, or stale memory). So there is nothing to see then.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.base.torch_compat import compiles_now

# From 3.12 on, a collection begins between two instructions only.
_COLLECTS_WITHIN_CALLS = sys.version_info < (3, 12)
_one_looks = threading.RLock()
if hasattr(os, "register_at_fork"):
    # else a process forked during a look would never collect, nor look
    os.register_at_fork(
        before=_one_looks.acquire,
        after_in_parent=_one_looks.release,
        after_in_child=_one_looks.release,
    )


class Level(NamedTuple):
    """One function on a stack: its code, the line in it (None where it has none), its globals."""

    code: CodeType
    line: int | None
    names: dict[str, Any]


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """For as long as it takes to look at the frames of another thread, no collection begins.

    ``frame.f_back`` makes an object for a frame that has none. In Python 3.11 that may begin a
    garbage collection, whose callbacks and finalizers let the other thread go on. It returns from
    the function, and the object is made for a frame that is no more: the next look at it ends the
    process. (A ``gc.disable()`` of the other thread within this look would be undone.)
    """
    if not _COLLECTS_WITHIN_CALLS:
        yield
        return
    with _one_looks:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def levels_of(frame: FrameType | None) -> list[Level]:
    """The functions from this frame on, innermost first; of another thread's, while looking."""
    found = []
    while frame is not None:
        found.append(Level(frame.f_code, frame.f_lineno, frame.f_globals))
        frame = frame.f_back
    return found


def stack_of(thread_id: int) -> list[Level]:
    """What the thread runs, innermost first; empty if it is over, or while torch compiles."""
    if compiles_now():
        return []
    with looking():
        return levels_of(sys._current_frames().get(thread_id))
