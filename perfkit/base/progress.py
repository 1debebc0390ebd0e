"""One progress line on standard error: how far something is, and about how long it still takes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

from perfkit.base.arguments import shown
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable

#: If lines cannot be overwritten (a log file), one every so often is enough.
LOG_EVERY_S = 10.0
_WIDTH = 100

Say = Callable[[str], None]


class Progress:
    """Passes each line to ``say``, or overwrites the last one on standard error.

    Args:
        say: called with each line; ``None`` for standard error, ``False`` for no output.
    """

    def __init__(self, say: Say | bool | None = None) -> None:
        if not (say is None or say is False or callable(say)):
            raise UsageError(
                f"say is {shown(say)}; give a function of one line of text, False for no output, "
                "or None"
            )
        self._say = say
        self._wrote = False
        self._last_s = float("-inf")

    def line(self, text: str) -> None:
        """Show the current state."""
        if callable(self._say):
            self._say(text)
        elif self._say is None:
            self._write(printable(text)[:_WIDTH])

    def _write(self, text: str) -> None:
        if is_terminal() or type(sys.stderr).__module__.startswith("ipykernel"):
            write(f"\r{text:<{_WIDTH}}")
            self._wrote = True
        elif time.monotonic() - self._last_s >= LOG_EVERY_S:
            write(f"{text}\n")
            self._last_s = time.monotonic()

    def close(self) -> None:
        """Keep the line; further output begins a new one."""
        if self._wrote:
            write("\n")
            self._wrote = False


def write(text: str) -> None:
    """To standard error; what only tells must not end a run if that is closed or full."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def is_terminal() -> bool:
    """Whether standard error is one; False where there is none (pythonw), or a closed one."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False


def left(seconds: float) -> str:
    """A remaining time in words: ``about 40 s left``."""
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return "nearly done"
    if seconds < 100:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
