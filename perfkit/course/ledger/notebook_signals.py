"""Ctrl-C and SIGTERM while nbclient runs a notebook.

It handles both itself: it ends the kernel, forgets it, fails over that, and leaves Python's own
handlers behind instead of those of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def signals_as_before(client: Any) -> Iterator[None]:
    """Around ``client.execute()``: a signal raises what it raised before, and does so afterwards.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM without a handler; the kernel has ended.
    """
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _NUMBERS}
    terminated = False

    def started(**_: Any) -> None:
        def ends() -> None:
            nonlocal terminated
            terminated = True
            signal.raise_signal(signal.SIGINT)  # nbclient does for both what it does for this one

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(says)
        with contextlib.suppress(RuntimeError, NotImplementedError):  # another thread, Windows
            loop.add_signal_handler(signal.SIGTERM, ends)

    def says(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if client.km is not None:  # else it has ended, and what still waited for it fails
            loop.default_exception_handler(context)

    client.on_notebook_start = started
    try:
        yield
    except Exception as error:
        # it forgets the kernel, and then fails over that; or it sees first that the kernel is dead
        ends_kernel = getattr(client, "_async_cleanup_kernel_future", None) is not None
        if not ends_kernel and (client.km is not None or not isinstance(error, AssertionError)):
            raise
        if terminated and callable(before[signal.SIGTERM]):
            before[signal.SIGTERM](signal.SIGTERM, None)
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # None: one in C, which Python cannot put back
                    signal.signal(number, handler)
