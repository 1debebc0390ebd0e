"""torchrun as a child process, all of whose ranks are gone when it is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from perfkit.script.ranks.heartbeat import Status, lives, read_statuses
from perfkit.script.ranks.job import FOLDER_VARIABLE

# torchrun gives its ranks 30 s to end before it kills them.
_ENDS_WITHIN_S = 40.0
_KILLED_WITHIN_S = 10.0
# A rank that hangs in C takes 5 s to notice, and some to explain what it saw.
_TOLD_WITHIN_S = 15.0


class TorchRun:
    """A job on this machine, started by torchrun.

    Args:
        n_processes: ranks, as torchrun takes it: a number, ``"gpu"``, ``"cpu"`` or ``"auto"``.
        typed: what each rank runs: a script or ``-m module``, with its arguments.
        output: where what they print goes; by default where this process prints.
        meets: what torchrun is told about other machines and about restarts.
    """

    def __init__(
        self,
        n_processes: int | str,
        typed: Sequence[str],
        folder: Path,
        *,
        output: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        meets: Sequence[str] = ("--standalone",),
    ) -> None:
        self._folder = folder
        # of its own session: what a terminal sends arrives once, from us
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "perfkit.script.ranks.torchrun", str(os.getpid())),
                *(*meets, "--nproc-per-node", str(n_processes), *typed),
            ],
            env={**os.environ, **(environment or {}), FOLDER_VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def attempts(self) -> list[Path]:
        """The folders of all attempts, the first one first: torchrun may restart the ranks."""
        return sorted(self._folder.glob("attempt*"), key=lambda p: int(p.name[len("attempt") :]))

    @property
    def attempt(self) -> Path:
        return (self.attempts or [self._folder / "attempt0"])[-1]

    def statuses(self) -> dict[int, Status]:
        return read_statuses(self.attempt)

    def end(self) -> None:
        """End it and all of its ranks; returns when none is left. A second call does nothing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        # torchrun that ends while it starts leaves ranks that have told nothing of themselves yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # torchrun itself was killed: they end by themselves, and tell what they saw, or here
        left = [s for s in self.statuses().values() if lives(s)]
        _wait_while(lambda: any(map(lives, left)), _TOLD_WITHIN_S)
        for status in filter(lives, left):
            with contextlib.suppress(OSError):
                os.kill(status.pid, signal.SIGKILL)
        _wait_while(lambda: any(map(lives, left)), _KILLED_WITHIN_S)


def _wait_while(goes_on: Callable[[], bool], at_most_s: float) -> None:
    deadline_s = time.monotonic() + at_most_s
    while goes_on() and time.monotonic() < deadline_s:
        time.sleep(0.05)
