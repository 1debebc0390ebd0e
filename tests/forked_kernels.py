"""Kernels of lessons, forked from one process in each worker that has torch and IPython loaded.

A kernel takes three to four seconds of a core to import them, and there are twenty lessons. Forked,
it begins where those imports ended: nothing of perfkit, and nothing that a cell did, is in it.

    worker ── starts ──> this file as a program ── forks ──> a kernel, another, …

A request is one line of JSON, the answer the kernel's process id. Kernels end with that program
(they look at their parent), and that with the worker, whose end of the pipe is then closed.

A Lab or an experiment in a lesson starts a server, another process that imports torch. Each kernel
has a few children that have it already and wait to become one, see :class:`Spares`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

# imported by each lesson's kernel in the end: an optimizer imports torch._dynamo
PRELOAD = (
    "torch",
    "torch.utils.data",
    "torch._dynamo",
    "IPython",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipywidgets",
)
_LOOK_EVERY_S = 0.02
_SPARES = 2
_SERVER = "from perfkit.experiment.process._server import main"
_MOST_FDS = 8
_MOST_BYTES = 1 << 20
_FORKABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_READ_AT_LOAD = ("CUDA", "KMP", "LD", "MALLOC", "MKL", "OMP", "PYTORCH", "TORCH")


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
    """The process from which kernels are forked; started with the first."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[str] | None = None

    def kernel(
        self, cmd: list[str], *, env: dict[str, str], cwd: str | None = None, **_: Any
    ) -> Kernel:
        """In place of :func:`jupyter_client.launcher.launch_kernel`."""
        if self._program is None:
            self._program = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
        asked, told = self._program.stdin, self._program.stdout
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


class Spares:
    """Children of a kernel, each of which can become the server of perfkit's experiments.

    :class:`subprocess.Popen` then gives one of them what a new program would get: descriptors,
    environment, arguments. What needs an environment of its own is a new program as ever.
    """

    def __init__(self) -> None:
        self._loaded_with = _read_at_load()
        self._waiting: list[tuple[int, socket.socket]] = []
        for _ in range(_SPARES):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for one in (ours, *(other for _, other in self._waiting)):
                    one.close()
                _wait_to_be_server(theirs)
            theirs.close()
            self._waiting.append((pid, ours))
        self._exec = subprocess._fork_exec  # type: ignore[attr-defined]
        subprocess._fork_exec = self.start  # type: ignore[attr-defined]

    def start(self, command: Any, *rest: Any) -> int:
        """In place of what starts a program; the process id."""
        keep, listed, reads, writes, errors = (rest[n] for n in (2, 4, 5, 8, 10))
        told = rest[12]  # a pipe for an error of exec
        env = dict(os.fsdecode(pair).split("=", 1) for pair in listed or ())
        env_is_ours = {k: v for k, v in env.items() if k != _FORKABLE} == dict(os.environ)
        typed = [os.fsdecode(word) for word in command]
        as_forked = self._loaded_with == _read_at_load()
        if not (self._waiting and env_is_ours and as_forked and _is_server(typed)):
            return int(self._exec(command, *rest))
        numbers = [*range(3), *(fd for fd in keep if fd != told)]
        pid, spare = self._waiting.pop()
        request = json.dumps({"typed": typed[3:], "numbers": numbers, "env": env})
        with spare:
            socket.send_fds(spare, [request.encode()], [reads, writes, errors, *numbers[3:]])
        return pid


def _read_at_load() -> dict[str, str]:
    """What libraries take from the environment once."""
    return {k: v for k, v in os.environ.items() if k.startswith(_READ_AT_LOAD)}


def _is_server(typed: list[str]) -> bool:
    return typed[:3] == [sys.executable, "-P", "-c"] and _SERVER in typed[3]


def _wait_to_be_server(asked: socket.socket) -> None:
    """Be the server once somebody asks; end with the kernel. Never returns."""
    try:
        request, fds, _, _ = socket.recv_fds(asked, _MOST_BYTES, _MOST_FDS)
        if request:
            _be_server(fds, **json.loads(request))
    finally:
        os._exit(1)


def _be_server(fds: list[int], typed: list[str], numbers: list[int], env: dict[str, str]) -> None:
    os.setsid()
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(numbers) + 1) for fd in fds]
    os.closerange(3, min(above))
    for fd, number in zip(above, numbers, strict=True):
        os.dup2(fd, number)
    os.closerange(min(above), max(above) + 1)
    os.environ.clear()
    os.environ.update(env)
    program, *sys.argv[1:] = typed
    sys.argv[0] = "-c"
    sys.modules["__main__"] = main_ = types.ModuleType("__main__")
    exec(program, main_.__dict__)


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
    Spares()
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
    gc.disable()
    for name in PRELOAD:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # no kernel's collector looks through torch again
    for line in sys.stdin:
        if os.fork() == 0:
            _be_kernel(**json.loads(line))
            return
        _reap()
    _reap()


if __name__ == "__main__":
    main()
