"""A helper process that takes and gives lines of JSON, and ends with whoever started it.

It reads its standard input until that ends, so it cannot outlive this process; what it writes to
standard error is kept for the message when it ends early. A workload's process is another thing:
see :mod:`perfkit.experiment.process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from typing import IO, Any

_END_WITHIN_S = 5.0


class EndedError(Exception):
    """The process ended instead of answering; the text is the last line that it complained in."""


class LineChild:
    """One such process of Python.

    Args:
        arguments: Python's own: ``"-m", "package.module", …``.
        env: its environment; by default this one's.
        own_group: whether a Ctrl-C in this terminal spares it.
        hands_on: it goes on in a process that it forks at once, whose id is its first line: then
            this one has no child, for which a program that waits for all of its children would
            wait.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        own_group: bool = False,
        hands_on: bool = False,
    ) -> None:
        complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._complaints = complaints
        self._hands_on = hands_on
        self._goes_on: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=None if env is None else dict(env),
            text=True,
            encoding="utf-8",
            process_group=0 if own_group else None,
        )
        self._ending = weakref.finalize(self, _end, self._process, complaints, os.getpid())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether nobody has ended it; it may have ended by itself."""
        return self._ending.alive

    def has_said(self, within_s: float) -> bool:
        """Whether there is something to hear, or it has ended, within so many seconds."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def hear(self, within_s: float | None = None) -> Any:
        """Its next line.

        Args:
            within_s: seconds after which it is ended.

        Raises:
            EndedError: it ended; :meth:`end` need not be called.
        """
        assert self._process.stdout is not None
        if within_s is not None and not self.has_said(within_s):
            self.kill()
        line = self._process.stdout.readline()
        if self._hands_on:
            self._process.wait()
        if line:
            said = json.loads(line)
            if self._hands_on and self._goes_on is None:
                self._goes_on = said
            return said
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        self.end()
        raise EndedError(said[-1] if said else "it left no message")

    def ask(self, question: Any) -> Any:
        """Write a line and wait for its answer.

        Raises:
            EndedError: as :meth:`hear`.
        """
        self.tell(question)
        return self.hear()

    def tell(self, order: Any) -> None:
        """Write a line and do not wait: several can then work at once. :meth:`hear` comes later."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # hear() says what happened
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it at once, in the middle of an answer too; :meth:`hear` then raises."""
        if self._goes_on is not None:
            with contextlib.suppress(OSError):
                os.kill(self._goes_on, signal.SIGKILL)
        elif self._process.poll() is None:
            self._process.kill()

    def end(self) -> None:
        """Let it end; a second call does nothing."""
        self._ending()


def _end(process: subprocess.Popen[str], complaints: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked worker drops its copy but does not own the process
        return
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not written goes to nobody
            if pipe is not None:
                pipe.close()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    complaints.close()
