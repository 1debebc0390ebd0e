"""What a thread runs, as another one may ask while it goes on.

While torch.compile works on a function, the frames of its thread cannot be looked at: that ended
the process in about one of 400 compilations (Python 3.11, torch 2.13, a busy machine; the frame
that is compiled has no code, or stale memory). So there is nothing to see then.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfkit.base.torch_compat import compiles_now


class Level(NamedTuple):
    """One function on a stack: its code, the line in it (None where it has none), its globals."""

    code: CodeType
    line: int | None
    names: dict[str, Any]


def levels_of(frame: FrameType | None) -> list[Level]:
    """The functions from this frame on, innermost first."""
    found = []
    while frame is not None:
        found.append(Level(frame.f_code, frame.f_lineno, frame.f_globals))
        frame = frame.f_back
    return found


def stack_of(thread_id: int) -> list[Level]:
    """What the thread runs, innermost first; empty if it is over, or while torch compiles."""
    if compiles_now():
        return []
    return levels_of(sys._current_frames().get(thread_id))
