"""Which threads a region starts: the profiler sees only the one that started it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_listeners: list[Callable[[str], None]] = []
_originals: list[Any] = []


def watch_thread_starts(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call ``listener(name)`` for each ``threading.Thread`` that starts; returns how to stop.

    While somebody listens, ``Thread.start`` is a wrapper of ours. A thread may be
    over before anybody could look for it in ``threading.enumerate``.
    """
    thread: Any = threading.Thread
    if not _listeners:
        original = thread.start
        _originals.append(original)

        def start(self: threading.Thread) -> None:
            for listen in tuple(_listeners):
                listen(self.name)
            original(self)

        thread.start = start
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            if not _listeners:
                thread.start = _originals.pop()

    return stop
