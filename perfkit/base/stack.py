"""What a thread runs, as another one may ask while it goes on.

While torch.compile works on a function, the frames of its thread cannot be looked at: that ended
the process in about one of 400 compilations (Python 3.11, torch 2.13, a busy machine; the frame
that is compiled has no code, or stale memory). So there is nothing to see then.
"""

from __future__ import annotations

import contextlib
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.base import collector
from perfkit.base.torch_compat import compiles_now

# From 3.12 on, a collection begins between two instructions only.
_COLLECTS_WITHIN_CALLS = sys.version_info < (3, 12)


class Level(NamedTuple):
    """One function on a stack: its code, the line in it (None where it has none), its globals."""

    code: CodeType
    line: int | None
    names: dict[str, Any]


def looking() -> contextlib.AbstractContextManager[None]:
    """For as long as it takes to look at the frames of another thread, no collection begins.

    ``frame.f_back`` makes an object for a frame that has none. In Python 3.11 that may begin a
    garbage collection, whose callbacks and finalizers let the other thread go on. It returns from
    the function, and the object is made for a frame that is no more: the next look at it ends the
    process.
    """
    return collector.at_rest() if _COLLECTS_WITHIN_CALLS else contextlib.nullcontext()


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
