"""Python programs that are not started, but forked from a process that has torch loaded.

A program takes two to four seconds of a core to import torch. Forked, it begins where that import
ended: nothing of perfkit is in it, and its arguments, descriptors, environment and parent are those
that it would have been started with.

    a kernel, a worker of the tests, torchrun
      └─ a process that has torch ── forks ──> one that ends at once ── forks ──> the program

The program is an orphan then, and who asked for it adopts it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# An optimizer imports torch._dynamo in the end. The last one is nearly all of torchrun.
PRELOAD = ("torch", "torch.utils.data", "torch._dynamo", "torch.distributed.launcher.api")
_FORKABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_THREADS = "OMP_NUM_THREADS"
_SERVER = "from perfkit.experiment.process._server import main"
_TORCHRUN = ("torch.distributed.run", "perfkit.script.ranks.torchrun")
_MOST_FDS = 16
_MOST_BYTES = 1 << 17
_ADOPTED_WITHIN_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36

# What the interpreter and libraries take from the environment once …
_READ_AT_LOAD = (
    "ATEN", "CUDA", "DNNL", "GOMP", "KMP", "LANG", "LC_", "LD_", "MALLOC", "MKL", "OMP", "ONEDNN",
    "OPENBLAS", "PYTHON", "PYTORCH", "TORCH",
)  # fmt: skip
# … but for what is read later, or seen to here, or is the mark of a library on who imported it:
# cv2 adds its folder to LD_LIBRARY_PATH, torch's compiler writes down where it keeps its code.
_READ_LATER = (
    _FORKABLE, _THREADS, "LD_LIBRARY_PATH", "PYTHONPATH", "TORCHELASTIC_",
    "TORCHINDUCTOR_CACHE_DIR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip


def is_server(typed: list[str]) -> bool:
    """Whether this command starts the server of perfkit's experiments."""
    return typed[1:3] == ["-P", "-c"] and _SERVER in typed[3]


def is_torchrun(typed: list[str]) -> bool:
    """Whether it is torchrun, which starts the ranks."""
    return typed[1] == "-m" and typed[2] in _TORCHRUN


class Programs:
    """In place of what starts programs: forks those that it may, and starts the others.

    Args:
        may: whether it may fork what a command would start.
        program: starts the process that forks; by default that is forked from this one.
        env: with which it is started.
    """

    def __init__(
        self,
        may: Callable[[list[str]], bool],
        program: list[str] | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self._may = may
        self._loaded_with = _read_at_load(env)
        self._asking = threading.Lock()
        self._exec: Any = subprocess._fork_exec  # type: ignore[attr-defined]
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if program is not None:
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, env=env,
            )  # fmt: skip
        elif os.fork() == 0:
            self._asked.close()
            _serve(theirs)
        theirs.close()

    def replace(self) -> None:
        """From now on."""
        subprocess._fork_exec = self._start  # type: ignore[attr-defined]

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """While this lasts."""
        self.replace()
        try:
            yield
        finally:
            subprocess._fork_exec = self._exec  # type: ignore[attr-defined]

    def end(self) -> None:
        """End the process that forks, which was started."""
        self._asked.close()
        self._process.terminate()  # what a test forked may hold that socket, too
        self._process.wait()

    def _start(self, command: Any, *rest: Any) -> int:
        """In place of ``_fork_exec``; the process id."""
        keep, cwd, listed, told, own_session, first = (rest[n] for n in (2, 3, 4, 12, 14, -2))
        typed = [os.fsdecode(word) for word in command]
        env = dict(os.environ)
        if listed is not None:
            env = dict(os.fsdecode(pair).split("=", 1) for pair in listed)
        if first is not None or not self._can(typed, env):
            return int(self._exec(command, *rest))
        numbers = [*range(3), *(fd for fd in keep if fd != told)]
        streams = [n if rest[at] == -1 else rest[at] for n, at in enumerate((5, 8, 10))]
        request = {
            "typed": typed, "env": env, "cwd": os.fsdecode(cwd or Path.cwd()), "numbers": numbers,
            "has_own_session": bool(own_session),
        }  # fmt: skip
        with self._asking:
            _adopts_orphans(True)
            try:
                asked = json.dumps(request).encode()
                socket.send_fds(self._asked, [asked], [*streams, *numbers[3:]])
                pid = self._asked.recv(32)
            finally:
                _adopts_orphans(False)
        assert pid, "the process that forks programs has ended"
        return int(pid)

    def _can(self, typed: list[str], env: Mapping[str, str]) -> bool:
        is_shaped = typed[0] == sys.executable and _Parsed.of(typed) is not None
        return is_shaped and self._may(typed) and _read_at_load(env) == self._loaded_with


def _read_at_load(env: Mapping[str, str]) -> dict[str, str]:
    once = (k for k in env if k.startswith(_READ_AT_LOAD) and not k.startswith(_READ_LATER))
    return {k: env[k] for k in once}


def _adopts_orphans(does: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)


class _Parsed:
    """A command of Python: ``python [-u] [-P] (-c CODE | -m MODULE | SCRIPT) ARGUMENTS…``."""

    def __init__(self, flags: set[str], kind: str, what: str, arguments: list[str]) -> None:
        self.flags, self.kind, self.what, self.arguments = flags, kind, what, arguments

    @classmethod
    def of(cls, typed: list[str]) -> _Parsed | None:
        """None where it is none of these."""
        rest = list(typed[1:])
        flags = set()
        while rest and rest[0] in ("-u", "-P"):
            flags.add(rest.pop(0))
        kind = rest.pop(0) if rest and rest[0] in ("-c", "-m") else ""
        if not rest or (not kind and rest[0].startswith("-")):
            return None
        return cls(flags, kind, rest[0], rest[1:])

    def become(self) -> None:
        """Be this program, to its end."""
        sys.modules["__main__"] = main_ = types.ModuleType("__main__")
        sys.argv[:] = [self.kind or self.what, *self.arguments]
        folder = {"-c": "", "-m": str(Path.cwd())}.get(self.kind)
        if folder is None:
            folder = os.path.dirname(os.path.realpath(self.what))  # noqa: PTH120
        if "-P" not in self.flags:
            sys.path.insert(0, folder)
        if self.kind == "-m":
            runpy._run_module_as_main(self.what)  # type: ignore[attr-defined]
            return
        source, name = self.what, "<string>"
        if not self.kind:
            source, name = Path(self.what).read_text(encoding="utf-8"), self.what
            loader = importlib.machinery.SourceFileLoader("__main__", name)
            main_.__dict__.update(__file__=name, __cached__=None, __loader__=loader)
        exec(compile(source, name, "exec", dont_inherit=True), main_.__dict__)


def _serve(asked: socket.socket) -> None:
    """Fork a program for each request, until nobody is there to ask. Never returns."""
    asker = os.getppid()
    was = (os.environ.get("PYTHONPATH", ""), os.environ.get(_THREADS, ""))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(asked, _MOST_BYTES, _MOST_FDS)
        if not request:
            os._exit(0)
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            _be_program(asked, asker, fds, was, **json.loads(request))
        for fd in fds:
            os.close(fd)
        os.waitpid(between, 0)


def _be_program(
    asked: socket.socket,
    asker: int,
    fds: list[int],
    was: tuple[str, str],
    *,
    typed: list[str],
    env: dict[str, str],
    cwd: str,
    numbers: list[int],
    has_own_session: bool,
) -> None:
    """Never returns."""
    deadline = time.monotonic() + _ADOPTED_WITHIN_S
    while os.getppid() != asker:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0005)
    if has_own_session:
        os.setsid()
    # not before: signals are sent to it, and to its group, from now on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked.send(str(os.getpid()).encode())
    asked.detach()
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(numbers) + 1) for fd in fds]
    os.closerange(3, min(above))
    for fd, number in zip(above, numbers, strict=True):
        os.dup2(fd, number)
    os.closerange(min(above), max(above) + 1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    parsed = _Parsed.of(typed)
    assert parsed is not None
    _open_streams(is_unbuffered="-u" in parsed.flags)
    path, threads = (env.get(name, "") for name in ("PYTHONPATH", _THREADS))
    before = was[0].split(os.pathsep)
    own = [one for one in path.split(os.pathsep) if one]
    sys.path[:] = [*own, *(one for one in sys.path if one not in before or one in own)]
    sys.path[:] = list(dict.fromkeys(sys.path))
    if threads != was[1]:
        import torch

        torch.set_num_threads(int(threads or os.cpu_count() or 1))
    sys.orig_argv = typed
    if is_torchrun(typed) or "--nproc-per-node" in typed:
        Programs(lambda _: True).replace()
    parsed.become()
    sys.exit()


def _open_streams(*, is_unbuffered: bool) -> None:
    """As Python does at its start; those of the process that was forked belong to other files."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        was = getattr(sys, name)
        stream = io.TextIOWrapper(
            open(fd, "wb" if fd else "rb", closefd=False),  # noqa: SIM115
            encoding=was.encoding,
            errors=was.errors,
            line_buffering=name == "stderr" or os.isatty(fd),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def preload(names: tuple[str, ...]) -> None:
    """Import these for all that is forked from here."""
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # no program's collector looks through torch again


def main() -> None:
    """The process that forks, as a program; its argument is the descriptor of a socket."""
    del sys.path[0]  # the tests' own folder
    preload(PRELOAD)
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
