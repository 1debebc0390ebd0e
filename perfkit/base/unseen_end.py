"""A program may leave its process without Python's end: by ``os._exit`` or ``os.exec…``."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def before_unseen_end(tell: Callable[[str], object]) -> Iterator[None]:
    """Within this block ``tell(how)`` is called first, in the thread and process that leaves.

    Args:
        tell: takes words such as ``ended with os._exit(3)``; what it raises is dropped.
    """
    words: dict[str, Callable[..., str]] = {"_exit": _left, "execv": _replaced, "execve": _replaced}
    originals = {name: getattr(os, name) for name in words}
    ours = {name: _told_before(originals[name], words[name], tell) for name in words}
    try:
        for name, function in ours.items():
            setattr(os, name, function)
        yield
    finally:
        for name, function in ours.items():
            if getattr(os, name) is function:
                setattr(os, name, originals[name])


def _told_before(
    original: Callable[..., Any], how: Callable[..., str], tell: Callable[[str], object]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            said = how(*args, **kwargs)
            if said:
                tell(said)
        return original(*args, **kwargs)

    return leave


def _left(status: int) -> str:
    return f"ended with os._exit({status})"


def _replaced(path: Any, *_: Any, **__: Any) -> str:
    """Empty where it will fail: ``os.execvp`` tries one folder after the other."""
    return "was replaced by another program (os.exec)" if os.access(path, os.X_OK) else ""
