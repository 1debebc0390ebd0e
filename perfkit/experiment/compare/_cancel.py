"""Cancel an experiment from another thread, within a second and with all its processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

_asked: ContextVar[threading.Event | None] = ContextVar("perfkit_cancel", default=None)


class Cancelled(Exception):  # noqa: N818 - not an error: the user pressed Stop
    """The experiment was cancelled."""


@contextlib.contextmanager
def cancellable(asked: threading.Event) -> Iterator[None]:
    """Code inside, in this thread, raises :class:`Cancelled` soon after ``asked`` is set."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def raise_if_cancelled() -> None:
    """End here if the experiment was cancelled.

    Raises:
        Cancelled: it was.
    """
    asked = _asked.get()
    if asked is not None and asked.is_set():
        raise Cancelled
