"""Makes room for what a program prints on the terminal on which a live line is shown.

The line has no newline at its end, so what the program prints would follow it in its row. While
this is on, the line is taken away before the program writes, and it may come back only when the
program has ended its own row: a program that shows a progress bar of its own keeps the row.

Seen is what goes through ``write`` of ``sys.stdout`` and ``sys.stderr``: ``print``, ``logging``,
tqdm. What a library or a child process writes to the terminal by itself is not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from perfkit.base.stand_in import stand_in


class SharedRow:
    """The row of a terminal that a program and a live line share.

    Args:
        clear: takes the line away; called before the program writes.

    Attributes:
        is_free: whether the program's last row has ended, so that the line may be shown.
    """

    def __init__(self, clear: Callable[[], object]) -> None:
        self._clear = clear
        self._undo: list[Callable[[], None]] = []
        self.is_free = True
        self._is_ours = False

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """What is written meanwhile is the live line, not the program's."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def begin(self) -> None:
        """See what the program writes to a terminal from now on."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a stream that takes no attribute, or none at all
                if stream.isatty():
                    self._watch(stream)

    def end(self) -> None:
        """See nothing any more. Does not raise."""
        undo, self._undo = self._undo, []
        for call in reversed(undo):  # both streams may be the same
            with contextlib.suppress(Exception):
                call()

    def _watch(self, stream: Any) -> None:
        original = stream.write

        def write(text: str) -> Any:
            if not self._is_ours:
                try:
                    self._clear()
                    if text:
                        self.is_free = text.endswith("\n")
                except Exception:  # ours: the program writes as before
                    self.end()
            return original(text)

        self._undo.append(stand_in(stream, "write", write))
