"""What a thread runs, looked at many times a second: from outside of the process where that works.

A helper process reads the frames (:mod:`perfkit.base.stack_reader`): it takes nothing of the
interpreter's lock, so the thread is not disturbed, and a C call that holds the lock is seen where
it runs. It sees the processes that this one starts, too: a DataLoader's workers, say. Until it has
begun, and where the system or the interpreter does not allow it (not Linux, no right to read,
another layout), a thread in this process looks instead: that one is late where the lock is held,
and sees no other process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perfkit.base.frame_layout import frame_layout
from perfkit.base.instrument import Failure, Instrument
from perfkit.base.line_child import EndedError, LineChild
from perfkit.base.stack import Level, levels_of, stack_of

SAMPLES_PER_S = 100.0
_READER = str(Path(__file__).with_name("stack_reader.py"))
_ANSWERS_WITHIN_S = 5.0
_JOIN_S = 2.0
# The reader is waited for: while it starts it takes a core, or half of one, from what is measured.
_BEGINS_WITHIN_S = 0.5
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61


class Frame(NamedTuple):
    """One function on a stack, and the line in it."""

    file: str
    function: str  # with its class
    line: int

    @property
    def place(self) -> tuple[str, int]:
        """The line alone."""
        return self.file, self.line


Stack = tuple[Frame, ...]  # innermost first


class Look(NamedTuple):
    """One look, at a time of ``time.perf_counter``."""

    at_s: float
    stack: Stack


class Samples(NamedTuple):
    """All looks, by time.

    Attributes:
        thread: at the thread.
        children: at the main threads of the Python processes that this one has started, and of
            theirs.
        from_outside: whether a C call that holds the lock is seen where it runs.
    """

    thread: tuple[Look, ...] = ()
    children: tuple[Look, ...] = ()
    from_outside: bool = False


def frames_of(levels: Sequence[Level]) -> Stack:
    """The functions of this process as the reader tells them."""
    return tuple(
        Frame(code.co_filename, code.co_qualname, line or code.co_firstlineno)
        for code, line, _ in levels
    )


class LineSampler:
    """Looks at one thread of this process from :meth:`start` to :meth:`stop`.

    It cannot raise into the sampled code; where it fails it stops, and :attr:`failure` says why.

    Args:
        thread_id: of the thread, as of ``threading.get_ident``; by default the calling one.
        per_s: how often to look.
    """

    def __init__(self, thread_id: int | None = None, per_s: float = SAMPLES_PER_S) -> None:
        self._thread_id = thread_id or threading.get_ident()
        ids = {t.ident: t.native_id for t in threading.enumerate()}
        self._native_id = ids.get(self._thread_id) or threading.get_native_id()
        self._per_s = per_s
        self._pid = os.getpid()
        self._child: LineChild | None = None
        self._agrees = False
        self._reader = 0  # its process
        self._inside: list[Look] = []
        self._stacks: dict[Stack, Stack] = {}
        self._closed, self._has_begun = threading.Event(), threading.Event()
        self._samples: Samples | None = None
        self._instrument = Instrument("the line sampler", switch_off=self._closed.set)
        self._thread = threading.Thread(
            target=self._instrument.hook(self._run), name="perfkit-lines", daemon=True
        )

    @property
    def failure(self) -> Failure | None:
        """Why it stopped by itself; None where it did not."""
        return self._instrument.failure

    def start(self) -> None:
        """Begin."""
        # Here and not in the thread: if this one forked meanwhile, the new process would for ever
        # wait for the locks that starting a program takes.
        with self._instrument.guard("starting"), contextlib.suppress(OSError):
            if frame_layout() is not None:
                self._child = LineChild(
                    "-I", "-S", _READER, str(os.getpid()), own_group=True, hands_on=True
                )
        self._thread.start()
        if self._child is not None:
            self._has_begun.wait(_BEGINS_WITHIN_S)

    def stop(self) -> Samples:
        """End, and say what was seen; once more where it has ended."""
        if self._samples is None and os.getpid() == self._pid:
            self._samples = Samples(tuple(self._inside))
            self._closed.set()
            with self._instrument.guard("ending"):
                self._stop()
        return self._samples or Samples()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._samples = Samples(tuple(self._inside))
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if self._agrees:
                child.tell("take")
                self._samples = self._told(child.hear(_ANSWERS_WITHIN_S))
                child.has_said(_JOIN_S)  # its end
        except EndedError:  # somebody has ended it
            pass
        finally:
            child.end()
            _readers.discard(self._reader)
            if self._reader:
                with contextlib.suppress(OSError):  # it is this one's child in a container's first
                    os.waitpid(self._reader, 0)

    def _run(self) -> None:
        """Look from here until the reader has begun."""
        child = self._child
        while not self._closed.wait(0.0 if child is not None else 1.0 / self._per_s):
            if child is not None and child.has_said(1.0 / self._per_s):
                try:
                    self._heard(child, child.hear(_ANSWERS_WITHIN_S))
                except EndedError:
                    child = None
                if self._agrees or child is None:
                    self._has_begun.set()
                if self._agrees:
                    return
            self._look()

    def _heard(self, child: LineChild, said: Any) -> None:
        """First its process, then the stack of this very thread as it has seen it."""
        if isinstance(said, int):
            self._reader = said
            _readers.add(said)
            _let_read()
            child.tell(
                {
                    "pid": os.getpid(),
                    "asks": threading.get_native_id(),
                    "native_id": self._native_id,
                    "layout": frame_layout(),
                    "per_s": self._per_s,
                }
            )
            return
        # what called _run: there it waited on one line, and is on another now
        around = frames_of(levels_of(sys._getframe(2)))
        self._agrees = tuple(Frame(*frame) for frame in said[-len(around) :]) == around
        if not self._agrees:
            raise EndedError("it reads stacks as they are not")

    def _look(self) -> None:
        stack = frames_of(stack_of(self._thread_id))
        if stack:
            stack = self._stacks.setdefault(stack, stack)
            self._inside.append(Look(time.perf_counter(), stack))

    def _told(self, answer: Any) -> Samples:
        frames = [Frame(*frame) for frame in answer["frames"]]
        stacks = [tuple(frames[i] for i in stack) for stack in answer["stacks"]]
        columns = []
        for name in ("at_ns", "who", "stack"):
            column = array("q")
            column.frombytes(bytes.fromhex(answer[name]))
            columns.append(column)
        thread = list(self._inside)
        children: list[Look] = []
        for at_ns, who, stack in zip(*columns, strict=True):
            (children if who else thread).append(Look(at_ns / 1e9, stacks[stack]))
        thread.sort(key=lambda look: look.at_s)  # from here and from there
        return Samples(tuple(thread), tuple(children), from_outside=True)


_readers: set[int] = set()


def _let_read() -> None:
    """Where only a process's parents may read it: the reader, too (see ptrace(2), Yama)."""
    try:
        if _readers and _PTRACE_SCOPE.read_text().strip() == "1":
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(max(_readers)), 0, 0, 0)
    except OSError:
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_read)  # it is no right that a worker inherits
