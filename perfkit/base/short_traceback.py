"""The traceback of perfkit's own errors in a notebook: the user's lines, then the sentence.

Sixty lines of how perfkit came to refuse something stand between a reader and the one that says
why. The exception keeps its traceback: the debugger, ``sys.last_value`` and scripts have all of it.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from perfkit.base.printable import printable
from perfkit.base.user_code import is_user_code


def short_traceback(error: BaseException) -> list[str]:
    """The lines that IPython shows for this error, in the user's mode and colours.

    Where the user's own code raised what led to it, or IPython runs nothing, all is shown.
    """
    frames = _frames(error)
    users = [i for i, tb in enumerate(frames) if is_user_code(tb.tb_frame.f_code.co_filename)]
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback.format_exception(error)
    if not users:
        return _shown(shell, error, error.__traceback__)
    kept = _linked(frames[users[0] : users[-1] + 1])
    first, *led_to_it = exception_chain(error)
    causes = (tb.tb_frame.f_code.co_filename for one in led_to_it for tb in _frames(one))
    if any(map(is_user_code, causes)):
        return _shown(shell, first, kept)
    said = _shown(shell, copy.copy(error), kept)  # a copy has neither cause nor context
    cause = error.__cause__
    return said if cause is None else [*said, f"({type(cause).__name__}: {printable(str(cause))})"]


def _shown(shell: Any, error: BaseException, tb: TracebackType | None) -> list[str]:
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, tb, tb_offset=0)
    return lines


def _frames(error: BaseException) -> list[TracebackType]:
    frames = []
    tb = error.__traceback__
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    return frames


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    """A traceback of these frames; theirs stays as it is."""
    linked: TracebackType | None = None
    for tb in reversed(frames):
        linked = TracebackType(linked, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return linked


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its causes and contexts, each once (a chain may lead back to itself)."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]
