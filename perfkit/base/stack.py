"""The stack of a thread that runs meanwhile, read at one moment.

Between two lines of Python another thread may run. Where it left a function whose frame was still
held here, and torch.compile had to do with that frame, the next look at it ended the process
(torch 2.13 under Python 3.11: about one in fifteen recordings of eight compilations, on a busy
machine). So a stack is read, and its frames are let go, in one call of C that no other thread can
interrupt.
"""

from __future__ import annotations

import operator
import sys
from itertools import chain, tee
from types import CodeType, FrameType
from typing import Any, NamedTuple

__all__ = ["Level", "levels_of", "stack_of"]


class Level(NamedTuple):
    """One function on a stack: its code, the line in it (None where it has none), its globals."""

    code: CodeType
    line: int | None
    names: dict[str, Any]


def levels_of(frame: FrameType | None) -> list[Level]:
    """The same from a frame of the calling thread on."""
    found = []
    while frame is not None:
        found.append(Level(frame.f_code, frame.f_lineno, frame.f_globals))
        frame = frame.f_back
    return found


_WHAT = operator.attrgetter("f_code", "f_lineno", "f_globals")
_BACK = operator.attrgetter("f_back")
_FIRST = operator.itemgetter(0)


def stack_of(thread_id: int) -> list[Level]:
    """What the thread runs, innermost first; empty where there is no such thread."""
    frames: list[FrameType] = []
    found: list[tuple[CodeType, int | None, dict[str, Any]]] = []
    threads = map(operator.call, (sys._current_frames,))
    # the innermost frame, then what called each of those that were kept
    source: Any = chain(map(operator.itemgetter(thread_id), threads), map(_BACK, frames))
    to_read: Any
    to_keep: Any
    kept: Any
    to_read, to_keep = tee(source)
    try:
        kept = map(frames.append, to_keep)
        found.extend(map(_FIRST, zip(map(_WHAT, to_read), kept, strict=False)))
    except (AttributeError, KeyError):  # no more frames; or no such thread
        # nothing else has run since; these hold frames, too
        source = to_read = to_keep = kept = None
        frames.clear()
    return [Level(*one) for one in found]
