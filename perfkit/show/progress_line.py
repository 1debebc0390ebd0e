"""A progress line on standard error: rewritten in a terminal, printed at times elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

from perfkit.base.progress import is_terminal, write
from perfkit.base.words import fmt_bytes, fmt_count, fmt_ms, fmt_number, fmt_share
from perfkit.measure.tracker import Update
from perfkit.show.plain_text import clip
from perfkit.show.shared_row import SharedRow

_TERMINAL_EVERY_S = 0.5
# where lines cannot be overwritten: a log file
_LOG_EVERY_S = 10.0
_LONGEST_S = 3.6e6


class ProgressLine:
    """Tells about a run as it goes.

    Args:
        shares_row: take the line off the terminal while the program that runs writes to it; see
            :mod:`perfkit.show.shared_row`.
    """

    def __init__(self, name: str, *, shares_row: bool = False) -> None:
        self._name = name
        self._told_s = time.monotonic()
        self._width = 0
        self._row: SharedRow | None = None
        if shares_row and is_terminal():
            self._row = SharedRow(self.clear)
            self._row.begin()

    def update(self, update: Update) -> None:
        """Show it, if it is time."""
        terminal = is_terminal()
        now_s = time.monotonic()
        if now_s - self._told_s < (_TERMINAL_EVERY_S if terminal else _LOG_EVERY_S):
            return
        self._told_s = now_s
        if not terminal:
            self._write(f"{self._name}: {status(update)}\n")
            return
        if self._row is not None and not self._row.is_free:
            return
        line = self._fitted(update, shutil.get_terminal_size().columns - 1)
        self._write("\r" + line.ljust(self._width))
        self._width = len(line)

    def _fitted(self, update: Update, width: int) -> str:
        """The line; where there is no room, without what is in its middle: the time left stays."""
        facts = list(_facts(update))
        while len(facts) > 2 and len(f"{self._name}: {' · '.join(facts)}") > width:
            del facts[-2]
        clock = f" · {facts[-1]}"
        line = clip(f"{self._name}: {' · '.join(facts[:-1])}", max(width - len(clock), 0)) + clock
        return line[-width:]

    def clear(self) -> None:
        """Take the line off the terminal."""
        width, self._width = self._width, 0
        if width:
            self._write("\r" + " " * width + "\r")

    def end(self) -> None:
        """Take the line off the terminal for good."""
        self.clear()
        if self._row is not None:
            self._row.end()

    def _write(self, text: str) -> None:
        if self._row is None:
            write(text)
            return
        with self._row.ours():
            write(text)


def status(update: Update) -> str:
    """``step 31/100 · 10.2 ms a step · data wait 12% · …``."""
    return " · ".join(_facts(update))


def progress(update: Update) -> float | None:
    """How much of the epoch is over, 0 to 1; None where its length is unknown."""
    return min(update.done / update.total, 1.0) if update.total else None


def facts(update: Update) -> tuple[float | str | None, ...]:
    """What :func:`status` and :func:`progress` say, for ``js/src/run_line.js`` to put in words."""
    memory = update.memory
    return (
        update.epoch,
        update.done,
        update.total,
        1e3 / update.steps_per_s if update.steps_per_s else None,
        update.wait_share,
        update.samples_per_s,
        memory.n_bytes,
        memory.kind,
        update.elapsed_s,
    )


def _facts(update: Update) -> Iterator[str]:
    if update.epoch > 1:
        yield f"epoch {update.epoch}"
    of = "" if update.total is None else f"/{fmt_count(update.total)}"
    yield f"step {fmt_count(update.done)}{of}"
    if update.steps_per_s:
        yield f"{fmt_ms(1e3 / update.steps_per_s)} a step"
    if update.wait_share is not None:
        yield f"data wait {fmt_share(update.wait_share)}"
    if update.samples_per_s:
        yield f"{fmt_number(update.samples_per_s)} samples/s"
    yield f"{fmt_bytes(update.memory.n_bytes)} {update.memory.kind}"
    clock = fmt_seconds(update.elapsed_s)
    if update.total and 0 < update.done <= update.total:
        left_s = update.elapsed_s / update.done * (update.total - update.done)
        if left_s < _LONGEST_S:  # beyond, the script will end by itself before
            clock += f" < {fmt_seconds(left_s)}"
    yield clock


def fmt_seconds(duration_s: float) -> str:
    """``01:23``, or ``2:01:23`` from one hour up."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
