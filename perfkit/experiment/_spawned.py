"""The child where nothing is prepared (macOS, Windows): a fresh program for every run.

It has no guard. A thread reads the kernel's commands from standard input; when that ends, the
kernel is gone, and the child kills its process group, itself included.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading

import psutil

from perfkit.experiment import _by_value, _frames, worker


class _ThreadCommands:
    """Commands from standard input, read by a thread that also watches for its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._jobs: queue.SimpleQueue[worker.Job] = queue.SimpleQueue()
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

    def job(self) -> worker.Job:
        """The job; waits for it."""
        return self._jobs.get()

    def finish_asked(self) -> bool:
        """Whether the run shall end after this step."""
        return self._finish.is_set()

    def park_asked(self) -> bool:
        """Whether it shall stand still after this step."""
        return not self._may_go.is_set() and not self._finish.is_set()

    def wait_for_go(self) -> None:
        """Stand still until it may go on, or shall end."""
        self._may_go.wait()


def end_all() -> None:
    """Kill this process and everything below it, at once."""
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.Error:  # it was quicker
            continue
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Standard input brings commands, standard output takes events, the rest is captured."""
    commands, events = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    _by_value.pickle_notebook_classes()
    code = worker.run(_ThreadCommands(commands), worker.Stream(events))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
