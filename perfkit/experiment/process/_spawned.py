"""The child on systems without a prepared process (macOS, Windows): a new program per run.

It has no guard. A thread reads the kernel's commands from standard input; when that closes, the
kernel is gone, and the child kills its process group, including itself.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

import psutil

from perfkit.experiment.process import _by_value, _frames, _serve, worker
from perfkit.experiment.process._job import Job


class _ThreadCommands:
    """Commands from standard input, read by a thread that also notices when it closes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._finish = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()
        threading.Thread(target=self._read, name="perfkit-commands", daemon=True).start()

    def _read(self) -> None:
        frames = _frames.Frames()
        while data := os.read(self._fd, 1 << 20):
            for message in frames.feed(data):
                if message["k"] == "finish":
                    self._finish.set()
                    self._may_go.set()
                elif message["k"] == "park":
                    self._may_go.clear()
                elif message["k"] == "go":
                    self._may_go.set()
                else:
                    self._jobs.put(worker.as_job(message))
        end_all()

    def job(self) -> Job:
        """Wait for the job and return it."""
        return self._jobs.get()

    def finish_asked(self) -> bool:
        """Whether to end the run after this step."""
        return self._finish.is_set()

    def park_asked(self) -> bool:
        """Whether to pause after this step."""
        return not self._may_go.is_set() and not self._finish.is_set()

    def wait_for_go(self) -> None:
        """Wait until the run may continue or must end."""
        self._may_go.wait()


def end_all() -> None:
    """Kill this process and all its descendants at once."""
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.Error:  # it had already ended
            continue
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Read commands from standard input, write events to standard output, capture the rest."""
    commands, events = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    _by_value.pickle_notebook_classes()
    code = _serve.run(_ThreadCommands(commands), worker.Stream(events))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
