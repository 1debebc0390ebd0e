"""Which threads a region starts: the profiler sees only the one that started it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from perfkit.base.stand_in import Calls, Listeners, stand_in


def watch_thread_starts(listener: Callable[[str], None]) -> Callable[[], None]:
    """Call ``listener(name)`` for each ``threading.Thread`` that starts; returns how to stop.

    While somebody listens, ``Thread.start`` is a wrapper of ours. A thread may be
    over before anybody could look for it in ``threading.enumerate``.
    """
    return _listeners.add(listener)


def _install(calls: Calls) -> Callable[[], None]:
    thread: Any = threading.Thread
    original = thread.start

    def start(self: threading.Thread) -> None:
        calls.begin(self.name)
        original(self)

    return stand_in(thread, "start", start)


_listeners = Listeners(_install)
