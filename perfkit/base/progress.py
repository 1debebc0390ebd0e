"""How far long work is, and about how long it still takes: one line, gone when it ends.

It stands below the cell in a Jupyter kernel, never on standard error, which JupyterLab paints as
an error; elsewhere on standard error where that is a terminal. A log file gets none, nor does a
notebook that a program runs (nbval, nbconvert): what a cell leaves there must not depend on how
long it took.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any, Self

from perfkit.base import display
from perfkit.base.arguments import shown
from perfkit.base.errors import UsageError
from perfkit.base.printable import printable

#: What is over by then needs no line.
_SILENT_S = 2.0
_EVERY_S = 0.5
_BAR = 20
_SHORTEST_BAR = 6

Say = Callable[[str], None]


class Progress:
    """Shows what :meth:`line` tells, from two seconds on, until :meth:`close`.

    Args:
        name: what works; the line begins with it.
        say: called with each line instead; False for no output; another one for a part of its work.
        total_s: the most seconds that it takes; None where the lines tell how far it is.
        waits: whether to show the last line when two seconds are over and no further one has come.
            That takes a thread, so it is not for what measures times.
    """

    def __init__(
        self,
        name: str,
        say: Say | Progress | bool | None = None,
        *,
        total_s: float | None = None,
        waits: bool = False,
    ) -> None:
        if not (say is None or say is False or isinstance(say, Progress) or callable(say)):
            raise UsageError(
                f"say is {shown(say)}; give a function of one line of text, False for no output, "
                "or None"
            )
        self._name, self._say, self._total_s, self._waits = name, say, total_s, waits
        self._began_s = time.monotonic()
        self._drawn_s = float("-inf")
        self._timer: threading.Timer | None = None
        self._last: tuple[str, float | None, float | None] = "", None, None
        self._intervals: list[tuple[float, float]] = []
        self._output: _Below | _Row | None = None
        if say is None:
            if has_front_end():
                self._output = _Below() if _can_answer() else None
            elif is_terminal():
                self._output = _Row()

    @property
    def is_due(self) -> bool:
        """Whether a line would be shown now: to make one takes time, too."""
        if self._say is None:
            now_s = time.monotonic()
            return (
                self._output is not None
                and now_s - max(self._began_s + _SILENT_S - _EVERY_S, self._drawn_s) >= _EVERY_S
            )
        return self._say is not False

    def line(
        self,
        text: str,
        *,
        share: float | None = None,
        left_s: float | None = None,
        interval: tuple[float, float] | None = None,
    ) -> None:
        """Show where it is.

        Args:
            left_s: seconds that it still takes, if that is known better than by ``share``.
            interval: of the ratio that is measured, so far; a notebook draws how it narrows.
        """
        text = f"{self._name}: {text}" if self._name else text
        if isinstance(self._say, Progress):
            self._say.line(text, left_s=left_s, interval=interval)
            return
        if self._say is False or (self._say is None and self._output is None):
            return
        now_s = time.monotonic()
        spent_s = now_s - self._began_s
        if self._total_s is not None:  # of the whole: a part's is not its own
            left_s = None
        known = left_s is not None and spent_s + left_s >= _SILENT_S
        if left_s is None and share:
            left_s = spent_s * (1 - share) / share
        elif left_s is None and self._total_s is not None:
            left_s = self._total_s - spent_s
        if callable(self._say):
            self._say(text if left_s is None else f"{text}; {left(left_s)}")
            return
        if share is None and left_s is not None:
            share = spent_s / (spent_s + max(left_s, 0.0) or 1.0)
        self._last = text, share, left_s
        if now_s - self._drawn_s < _EVERY_S:
            return
        if interval is not None:
            self._intervals.append(interval)
        if spent_s >= _SILENT_S or known:
            self._draw()
        elif self._waits and self._timer is None:
            self._timer = threading.Timer(_SILENT_S - spent_s, self._draw)
            self._timer.daemon = True
            self._timer.start()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        text, share, left_s = self._last
        if self._output is not None:
            self._output.draw(
                printable(text), share, "" if left_s is None else left(left_s), self._intervals
            )

    def hide(self) -> None:
        """Take the line away until the next one, so that something else can be printed."""
        if isinstance(self._output, _Row):
            self._output.clear()
            self._drawn_s = float("-inf")

    def close(self) -> None:
        """Take it away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._output is not None:
            self._output.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Row:
    """The row of a terminal in which the cursor stands."""

    def __init__(self) -> None:
        self._width = 0

    def draw(self, text: str, share: float | None, rest: str, intervals: object) -> None:
        columns = shutil.get_terminal_size().columns - 1
        line = one_line(text, share, rest, columns)
        write("\r" + line.ljust(min(self._width, columns)))
        self._width = len(line)

    def clear(self) -> None:
        width, self._width = self._width, 0
        if width:
            write("\r" + " " * width + "\r")


class _Below:
    """An output of the cell that runs."""

    def __init__(self) -> None:
        self._id = ""

    def draw(
        self, text: str, share: float | None, rest: str, intervals: list[tuple[float, float]]
    ) -> None:
        bar = ""
        if share is not None:
            bar = (
                '<span style="flex:none;width:10em;height:.5em;border-radius:.25em;overflow:hidden;'
                'background:var(--jp-layout-color3,#bdbdbd)"><span style="display:block;height:100%'
                f";width:{share:.0%};background:var(--jp-brand-color1,#1976d2)"
                '"></span></span>'
            )
        picture = ""
        with contextlib.suppress(Exception):  # the picture is an extra
            if len(intervals) > 1:
                picture = display.show_part(".narrowing").svg(intervals)
        html = (
            '<div style="display:flex;gap:.8em;align-items:center;font-size:.9em;'
            f'color:var(--jp-ui-font-color1,currentColor)">{bar}<span>{escape(text)}</span>'
            f'<span style="flex:none;opacity:.75">{rest}</span></div>{picture}'
        )
        self._publish({"text/plain": one_line(text, share, rest, 100), "text/html": html})

    def clear(self) -> None:
        if self._id:
            self._publish({})
        self._id = ""

    def _publish(self, data: dict[str, str]) -> None:
        update = bool(self._id)
        self._id = self._id or f"perfkit-{id(self)}-{time.monotonic_ns()}"
        with contextlib.suppress(Exception):  # what only tells must not end a run
            shell: Any = sys.modules["IPython"].get_ipython()
            shell.display_pub.publish(
                data=data, metadata={}, transient={"display_id": self._id}, update=update
            )


def one_line(text: str, share: float | None, rest: str, columns: int) -> str:
    """``text  ━━━━━━──────  about 13 s left``: for want of room, the text is cut."""
    tail = f"  {rest}" if rest else ""
    if share is not None:
        room = min(_BAR, columns - len(tail) - 2 - min(len(text), columns // 2))
        if room >= _SHORTEST_BAR:
            done = round(min(max(share, 0.0), 1.0) * room)
            tail = f"  {'━' * done}{'─' * (room - done)}{tail}"
    room = max(columns - len(tail), 0)
    return ((text if len(text) <= room else f"{text[: room - 1]}…" if room else "") + tail)[
        :columns
    ]


def has_front_end() -> bool:
    """Whether this Python is a Jupyter kernel, which may have a front end with widgets.

    False in a script, a plain IPython shell and a worker process. Whether a browser is really
    connected cannot be known: ``nbconvert --execute`` gives True and shows nothing live.
    """
    kernelbase = sys.modules.get("ipykernel.kernelbase")
    return kernelbase is not None and bool(kernelbase.Kernel.initialized())


def _can_answer() -> bool:
    """Whether who sent the running cell would answer ``input()``: a person's front end does."""
    with contextlib.suppress(Exception):
        shell: Any = sys.modules["IPython"].get_ipython()
        return bool(shell.get_parent()["content"].get("allow_stdin", True))
    return True


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
