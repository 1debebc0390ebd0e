"""Kernels of lessons, forked from one process in each worker that has torch and IPython loaded.

A kernel takes three to four seconds of a core to import them, and there are twenty lessons. Forked,
it begins where those imports ended: nothing of perfkit, and nothing that a cell did, is in it.

    worker ── starts ──> this file as a program ── forks ──> a kernel, another, …

A request is one line of JSON, the answer the kernel's process id. Kernels end with that program
(they look at their parent), and that with the worker, whose end of the pipe is then closed.

A Lab or an experiment in a lesson starts a server, ``perfkit.launch`` torchrun and its ranks: more
processes that import torch. They are forked, too, see :mod:`forked_programs`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forked_programs import PRELOAD, Programs, is_server, is_torchrun, preload

_IPYTHON = ("IPython", "ipykernel.kernelapp", "ipykernel.ipkernel", "ipywidgets")
_LOOK_EVERY_S = 0.02


class Kernel:
    """The process of a kernel, as far as jupyter_client looks at one."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """0 as soon as it has ended, however it did: its parent alone knows."""
        if self.returncode is None and select.select([self._fd], [], [], 0)[0]:
            os.close(self._fd)
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a kernel", timeout or 0)
            time.sleep(_LOOK_EVERY_S)
        return 0

    def send_signal(self, number: int) -> None:
        """To this process alone."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Prepared:
    """The process from which kernels are forked; started with the first, or before."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Start the process if there is none. It takes seconds, for which a kernel would wait."""
        if self._program is None:
            self._program = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
        return self._program

    def kernel(
        self, cmd: list[str], *, env: dict[str, str], cwd: str | None = None, **_: Any
    ) -> Kernel:
        """In place of :func:`jupyter_client.launcher.launch_kernel`."""
        program = self.start()
        asked, told = program.stdin, program.stdout
        assert asked is not None
        assert told is not None
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        request = {"arguments": arguments, "env": env, "cwd": cwd or str(Path.cwd())}
        asked.write(json.dumps(request) + "\n")
        asked.flush()
        pid = told.readline()
        assert pid, "the process that forks kernels has ended"
        return Kernel(int(pid))

    def end(self) -> None:
        """End the process, if there is one."""
        program, self._program = self._program, None
        if program is not None:
            with program:  # closes its input, on which it ends
                pass


def _be_kernel(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    # not before: who asked sends signals to this group, and it was that of the program until now
    print(os.getpid(), flush=True)
    with Path(os.devnull).open("r+b") as nothing:
        for fd in (0, 1, 2):
            os.dup2(nothing.fileno(), fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    Programs(lambda typed: is_server(typed) or is_torchrun(typed)).replace()
    from ipykernel import kernelapp

    sys.argv[:] = [importlib.util.find_spec("ipykernel_launcher").origin, *arguments]  # type: ignore
    kernelapp.launch_new_instance()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Fork a kernel for each line that comes."""
    del sys.path[0]  # the tests' own folder; a kernel finds what lies beside its notebook
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # which ipykernel reads as it is imported
    preload((*PRELOAD, *_IPYTHON))
    for line in sys.stdin:
        if os.fork() == 0:
            _be_kernel(**json.loads(line))
            return
        _reap()
    _reap()


if __name__ == "__main__":
    main()
